#!/usr/bin/env python3
"""Tessera's collectives beside Gloo (torch.distributed) and Open MPI, the three running at the same time and taking turns.

  bench/comm/run.py [--build build/release] [--ranks 2,4] [--network local,1gbit] [--operations all_reduce,...] [--json FILE]
  bench/comm/run.py --per-host 2 --ranks 4,8 --network 1gbit [--dealt] ...

local: all ranks on this host, each library with its own best transport. 1gbit: a network namespace per rank, links held
to 1 Gbit/s (tools/netlab; needs root), TCP for all three. With --per-host above 1, so many ranks in each namespace, which
exchange through memory within it, and Tessera in one ring over all ranks (instead of Open MPI) beside Tessera on two levels.

Bus bandwidth is what each link carries at least, with n hosts: all_reduce 2(n-1)/n S/t, reduce_scatter, all_gather and all_to_all
(n-1)/n S/t, broadcast and message S/t, with S the bytes of the whole buffer and t the median time of a call.
"""
import argparse
import json
import os
import pathlib
import platform
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from lab import load_netlab  # noqa: E402
from machine import processor  # noqa: E402
HERE = pathlib.Path(__file__).resolve().parent
OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "message"]
SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
PATIENCE = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Peer:
    """One library's ranks, waiting for commands in named pipes."""

    def __init__(self, name, ranks, folder, start):
        self.name, self.prefix = name, str(folder / name)
        for suffix in [*range(ranks), "out"]:
            os.mkfifo(f"{self.prefix}.{suffix}")
        self.log = open(f"{self.prefix}.log", "w+")
        self.processes = start(self.prefix, self.log)
        # Opened for reading and writing, so that opening never waits for the other side.
        self.pipes = [os.open(f"{self.prefix}.{rank}", os.O_RDWR) for rank in range(ranks)]
        self.answers = os.open(f"{self.prefix}.out", os.O_RDWR)
        self.broken = ""

    def measure(self, operation, size, iterations):
        """Seconds per call, or None when this library cannot."""
        if self.broken:
            return None
        for pipe in self.pipes:
            os.write(pipe, f"{operation} {size} {iterations}\n".encode())
        answer, give_up = b"", time.monotonic() + PATIENCE
        while not answer.endswith(b"\n"):
            if any(process.poll() is not None for process in self.processes) or time.monotonic() > give_up:
                self.log.seek(0)
                self.broken = f"stopped at {operation} of {size} bytes: {self.log.read()[-500:].strip()}"
                return None
            if select.select([self.answers], [], [], 0.2)[0]:
                answer += os.read(self.answers, 4096)
        return float(answer)

    def close(self):
        # The ranks end by themselves at the end of their commands; killed ones would leave their shared memory behind.
        for pipe in self.pipes:
            os.close(pipe)
        give_up = time.monotonic() + 10
        for process in self.processes:
            for stop in (None, process.terminate, process.kill):
                try:
                    if stop:
                        stop()
                    process.wait(max(0.5, give_up - time.monotonic()))
                    break
                except subprocess.TimeoutExpired:
                    continue
        os.close(self.answers)
        self.log.close()


class Hosts:
    """Where the ranks run: all here, or as many on each emulated host; `dealt`: neighbouring ranks on different hosts."""

    def __init__(self, lab, ranks, folder, per_host=1, dealt=False):
        self.lab, self.ranks, self.per_host, self.dealt = lab, ranks, per_host, dealt
        # UCX shares memory between processes of one IPC namespace: those of a host get one of their own.
        self.memories = [folder / f"memory{host}" for host in range(ranks // per_host)] if per_host > 1 else []
        for memory in self.memories:
            memory.touch()
            subprocess.run(["unshare", f"--ipc={memory}", "true"], check=True)

    def master(self):
        return self.lab.address(0) if self.lab else "127.0.0.1"

    def start(self, rank, words, environment, log):
        if self.lab and self.per_host > 1:
            host = rank % (self.ranks // self.per_host) if self.dealt else rank // self.per_host
            return self.lab.popen(host, ["nsenter", f"--ipc={self.memories[host]}", *words], {"UCX_TLS": "all", **environment}, stdout=log, stderr=log)
        if self.lab:
            return self.lab.popen(rank, words, environment, stdout=log, stderr=log)
        return subprocess.Popen(words, env={**os.environ, **environment}, stdout=log, stderr=log)

    def one_each(self, words, extra):
        port = free_port()
        def start(prefix, log):
            return [self.start(rank, [*words, prefix], {"RANK": str(rank), "WORLD_SIZE": str(self.ranks), "MASTER_ADDR": self.master(), "MASTER_PORT": str(port),
                                                        "RENDEZVOUS": f"{self.master()}:{port}", "OMP_NUM_THREADS": "1", **extra}, log) for rank in range(self.ranks)]
        return start

    def close(self):
        for memory in self.memories:
            subprocess.run(["umount", str(memory)], check=False)

    def mpirun(self, program, folder):
        options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "-n", str(self.ranks)]
        if not self.lab:
            return lambda prefix, log: [subprocess.Popen(["mpirun", *options, str(program), prefix], stdout=log, stderr=log)]
        # Open MPI reaches the other hosts through a "remote shell" that enters their namespace.
        agent = folder / "agent"
        cases = "\n".join(f"  {self.lab.address(host)}) exec {' '.join(map(quote, self.lab.words(host, ['sh', '-c'])))} \"$*\";;" for host in range(self.ranks))
        agent.write_text(f"#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1\nshift\ncase $host in\n{cases}\nesac\nexit 1\n")
        agent.chmod(0o755)
        options += ["--host", ",".join(self.lab.address(host) for host in range(self.ranks)), "--mca", "plm_rsh_agent", str(agent), "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
                    "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0"]
        return lambda prefix, log: [self.lab.popen(0, ["mpirun", *options, str(program), prefix], stdout=log, stderr=log)]


def quote(word):
    return "'" + word.replace("'", "'\\''") + "'"


def bus_factor(operation, ranks):
    return {"all_reduce": 2 * (ranks - 1) / ranks, "reduce_scatter": (ranks - 1) / ranks, "all_gather": (ranks - 1) / ranks, "all_to_all": (ranks - 1) / ranks}.get(operation, 1.0)


def version_of(words):
    try:
        return subprocess.run(words, capture_output=True, text=True).stdout.splitlines()[0].strip()
    except (OSError, IndexError):
        return ""


def machine():
    return {"cpu": processor(), "cores": os.cpu_count(), "kernel": platform.release()}


def measure_all(peers, operation, size, rounds, seconds, at_least):
    """Median seconds per call of each peer; the peers take turns, so that a noisy neighbour meets all of them. Each turn
    moves `at_least` bytes: what passes for free through a full token bucket must not count."""
    samples, iterations = {peer.name: [] for peer in peers}, {}
    for peer in peers:
        first = peer.measure(operation, size, 1)
        second = peer.measure(operation, size, 1) if first else None
        iterations[peer.name] = max(1, at_least // size, min(2000, int(seconds / max(min(first, second), 1e-6)))) if second else 0
    for turn in range(rounds):
        for offset in range(len(peers)):
            peer = peers[(turn + offset) % len(peers)]
            passed = peer.measure(operation, size, iterations[peer.name]) if iterations[peer.name] else None
            if passed is not None:
                samples[peer.name].append(passed)
    return {name: statistics.median(times) if times else None for name, times in samples.items()}


def size_text(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def show(row, names):
    cells = [f"{row['network']:>6} {row['ranks']:>2} {row['operation']:<14} {size_text(row['bytes']):>8}"]
    for name in names:
        value = row["seconds"].get(name)
        cells.append(f"{value * 1e6:11.0f}" if value else f"{'-':>11}")
    cells.append(f"{row['speedup']:8.2f}" if row["speedup"] else f"{'-':>8}")
    cells.append(f"{row['gbit']:9.2f}" if row["gbit"] else f"{'-':>9}")
    cells.append(f"{row['link'] * 100:6.1f} %" if row["link"] else "")
    print(" ".join(cells), flush=True)


def columns(arguments):
    return ["tessera", "one ring", "gloo"] if arguments.per_host > 1 else ["tessera", "gloo", "mpi"]


def bench(network, ranks, arguments, build, folder):
    lab, per_host = None, arguments.per_host
    if network != "local":
        lab = load_netlab().Lab(ranks // per_host, [float(network.removesuffix("gbit"))])
        lab.__enter__()
    hosts, peers, rows = None, [], []
    rate = float(network.removesuffix("gbit")) if lab else None
    try:
        hosts = Hosts(lab, ranks, folder, per_host, arguments.dealt)
        peers.append(Peer("tessera", ranks, folder, hosts.one_each([str(build / "bin/tessera_bench_comm")], {})))
        if per_host > 1:
            peers.append(Peer("one ring", ranks, folder, hosts.one_each([str(build / "bin/tessera_bench_comm")], {"ONE_RING": "1"})))
        python = ROOT / ".venv/bin/python"
        if python.exists() and "gloo" in arguments.peers:
            peers.append(Peer("gloo", ranks, folder, hosts.one_each([str(python), str(HERE / "gloo_bench.py")], {} if lab else {"GLOO_SOCKET_IFNAME": "lo"})))
        program = build / "bin/tessera_bench_comm_mpi"
        if program.exists() and shutil.which("mpirun") and "mpi" in arguments.peers and per_host == 1:
            peers.append(Peer("mpi", ranks, folder, hosts.mpirun(program, folder)))
        for operation in arguments.operations:
            for size in arguments.sizes:
                median = measure_all(peers, operation, size, arguments.rounds, arguments.seconds, (32 << 20) if lab else 0)
                ours, others = median["tessera"], [value for name, value in median.items() if name != "tessera" and value]
                turns = 2 if operation == "message" else 1
                gbit = bus_factor(operation, ranks // per_host) * size * turns * 8 / ours / 1e9 if ours else None
                rows.append({"network": network, "ranks": ranks, "operation": operation, "bytes": size, "seconds": median, "speedup": min(others) / ours if ours and others else None,
                             "gbit": gbit, "link": gbit / rate if rate and gbit else None})
                show(rows[-1], columns(arguments))
    finally:
        for peer in peers:
            if peer.broken:
                print(f"{peer.name}: {peer.broken}", file=sys.stderr)
            peer.close()
        if hosts:
            hosts.close()
        if lab:
            lab.close()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--ranks", default="2,4", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--per-host", default=1, type=int, help="ranks on each emulated host")
    parser.add_argument("--dealt", action="store_true", help="neighbouring ranks stand on different hosts instead of host by host")
    parser.add_argument("--network", default="local,1gbit", type=lambda text: text.split(","), help="local or RATEgbit, such as 1gbit or 0.5gbit")
    parser.add_argument("--operations", default=["all_reduce"], type=lambda text: OPERATIONS if text == "all" else text.split(","))
    parser.add_argument("--sizes", default=SIZES, type=lambda text: [int(part) for part in text.split(",")], help="in bytes")
    parser.add_argument("--peers", default=["gloo", "mpi"], type=lambda text: text.split(","))
    parser.add_argument("--rounds", default=9, type=int)
    parser.add_argument("--seconds", default=0.1, type=float, help="of back-to-back calls in each turn")
    parser.add_argument("--json", help="write all figures to this file; - for standard output alone")
    arguments = parser.parse_args()
    if arguments.per_host > 1 and ("local" in arguments.network or any(ranks % arguments.per_host for ranks in arguments.ranks)):
        parser.error("--per-host: on emulated hosts alone, as --network 1gbit, and for numbers of ranks that it divides")
    signal.signal(signal.SIGTERM, lambda *ignored: sys.exit(143))
    build = pathlib.Path(arguments.build).resolve()
    output = sys.stdout
    if arguments.json == "-":
        sys.stdout = sys.stderr
    python = ROOT / ".venv/bin/python"
    versions = {"ucx": version_of(["ucx_info", "-v"]) or version_of(["dpkg-query", "-W", "-f", "${Version}", "libucx0"]), "mpi": version_of(["mpirun", "--version"]),
                "gloo": version_of([str(python), "-c", "import torch; print('torch', torch.__version__)"])}
    print(f"machine: {machine()}\nversions: {versions}\nrounds: {arguments.rounds} of {arguments.seconds} s each, medians; times in microseconds; faster = better peer / tessera")
    names = " ".join(f"{name:>11}" for name in columns(arguments))
    print(f"{'net':>6} {'n':>2} {'operation':<14} {'size':>8} {names} {'faster':>8} {'bus Gbit/s':>9} {'link':>6}", flush=True)
    rows, skipped = [], []
    for network in arguments.network:
        problem = load_netlab().missing() if network != "local" else ""
        if problem:
            skipped.append(f"{network}: {problem}")
            print(f"SKIPPED {network}: emulated hosts are not possible here: {problem}", file=sys.stderr)
            continue
        for ranks in arguments.ranks:
            with tempfile.TemporaryDirectory(prefix="tessera-bench-comm-") as folder:
                rows += bench(network, ranks, arguments, build, pathlib.Path(folder))
    if arguments.json:
        result = json.dumps({"machine": machine(), "versions": versions, "rows": rows, "skipped": skipped}, indent=1)
        if arguments.json == "-":
            print(result, file=output)
        else:
            pathlib.Path(arguments.json).write_text(result + "\n")


if __name__ == "__main__":
    main()
