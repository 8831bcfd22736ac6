"""Servers on one, two and four emulated hosts, each with one worker on another host."""
import concurrent.futures
import os
import pathlib
import statistics
import subprocess
import time

from keys import BATCH, BATCHES
from lab import load_netlab
from served import Program

SERVERS = [1, 2, 4]
GBIT, CORES = 10, 0.2
WIRES, SLOW_GBIT = ["fp32", "bf16", "int8"], 0.25
SECONDS = 4  # of a round: many periods in which a control group gives a host its share of a core, of which each begins with a burst
NAMES = ["pull uniform", "pull zipf", "pull + push uniform", "pull + push zipf"]


def sent_and_received(process):
    """Bytes that the process's host has sent and received so far."""
    lines = pathlib.Path(f"/proc/{process}/net/dev").read_text().splitlines()
    counts = next(line.split(":")[1].split() for line in lines if line.strip().startswith("eth0:"))
    return int(counts[0]) + int(counts[8])


def repeated(worker, name, until):
    """How often it has done it by then, once at least, and million keys/s."""
    rates = [worker.ask(name)["million_keys_per_s"]]
    while time.monotonic() < until:
        rates.append(worker.ask(name)["million_keys_per_s"])
    return len(rates), statistics.harmonic_mean(rates)


def together(pool, workers, name):
    """Million keys/s of all workers, each at its own pace, and the bytes that cross their links for each key."""
    before, until = sum(sent_and_received(worker.process.pid) for worker in workers), time.monotonic() + SECONDS
    counts, rates = zip(*pool.map(lambda worker: repeated(worker, name, until), workers))
    crossed = sum(sent_and_received(worker.process.pid) for worker in workers) - before
    return sum(rates), crossed / (sum(counts) * BATCHES * BATCH)


def on_hosts(netlab, count, bin_folder, rows, rounds, wire="fp32", gbit=GBIT):
    with netlab.Lab(2 * count, [gbit], [CORES]) as lab, concurrent.futures.ThreadPoolExecutor(count) as pool:
        places = [f"{lab.address(host)}:29500" for host in range(count)]
        servers = [lab.popen(host, [str(bin_folder / "tessera"), "ps", "serve", "--listen", place], stdout=subprocess.PIPE, text=True)
                   for host, place in enumerate(places)]
        for server in servers:
            server.stdout.readline()
        words = [str(bin_folder / "tessera_bench_ps_service"), ",".join(places), str(rows), str(servers[0].pid), wire]
        workers = [Program(f"worker {host}", lab.words(host, words), {**os.environ, **lab.environment(host)}) for host in range(count, 2 * count)]
        for worker in workers:
            worker.wait_until_ready()
        workers[0].ask("insert")
        told = {name: [together(pool, workers, name) for _ in range(rounds)] for name in NAMES}
        for worker in workers:
            worker.close()
    return {name: {"million_keys_per_s_of_a_host": statistics.median(rate for rate, _ in every) / count,
                   "bytes_of_a_key": statistics.median(crossed for _, crossed in every)} for name, every in told.items()}


def growth(bin_folder, rows, rounds):
    netlab = load_netlab()
    if problem := netlab.missing():
        return {"problem": problem}
    return {str(count): on_hosts(netlab, count, bin_folder, rows, rounds) for count in SERVERS}


def wires(bin_folder, rows, rounds):
    """One server and one worker, whose values cross a slow link in so many ways."""
    netlab = load_netlab()
    if problem := netlab.missing():
        return {"problem": problem}
    return {wire: on_hosts(netlab, 1, bin_folder, rows, rounds, wire, SLOW_GBIT) for wire in WIRES}


def show_growth(told, words="servers", what=f"as many servers as workers, a host of {CORES} cores and {GBIT} Gbit/s each"):
    if "problem" in told:
        print(f"\nno servers on emulated hosts: {told['problem']}")
        return
    print(f"\n{what}; million keys/s of each server, and bytes that cross the workers' links for each key")
    print(f"{words:<24}" + "".join(f"{count:>20}" for count in told))
    for name in NAMES:
        print(f"{name:<24}" + "".join(f"{of[name]['million_keys_per_s_of_a_host']:12.2f}{of[name]['bytes_of_a_key']:8.1f}" for of in told.values()))
