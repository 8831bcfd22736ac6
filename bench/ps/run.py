"""Measures parameter servers: a table alone beside a plain one, embeddings of PyTorch and FBGEMM in one process, and one server with one worker beside PaddlePaddle's.

    python bench/ps/run.py [--bin build/release/bin] [--rows 5000000] [--rounds 5] [--only shard,lifecycle,torch,fbgemm,service,log,paddle,load,growth,wire,tier,move] [--json]

Dimension 16, AdaGrad with a moment a row, batches of 4096 x 26 keys, small ones of 64 x 26: uniform, and Zipf (row k with a probability of 1 / k). Medians over the rounds. CPU
time is that of server and worker together. The plain table's rows begin as zeros, ours with random numbers.

PaddlePaddle 2.6.2, which has a parameter server where 3.x has none, and FBGEMM come from the package index into .cache on first use (0.6 GB). `service`, `log` and `paddle` take turns; `log` is a server with `--log`,
in a folder under build/.
Paddle sends each push at once and by itself. Its rows are inserted by pushes, as its pulls make none; ours by pulls; each round into new servers. Resident bytes of a row are what the server's memory grew by.

`load` pulls and pushes all rows once and counts the rows that exist afterwards. Paddle has its defaults there: it merges up to 12 pushes, its server refuses messages above 64 MiB, and
the trainer gets no error. `growth` runs one, two and four servers, with as many workers, on emulated hosts (tools/netlab, needs root), and `wire` one server and one worker over a slow link, with values in fp32, bf16 and int8. With `service` beside it, what a trillion parameters would take follows from both (scale.py).
`move` takes a table from two servers to three while a worker trains it. `tier` gives a table memory for a quarter of its rows; tessera_bench_ps_tier --billion makes a billion of them.
"""
import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from growth import CORES, SLOW_GBIT, growth, show_growth, wires  # noqa: E402
from machine import processor  # noqa: E402
from packages import beside_ours, environment  # noqa: E402
from scale import scale, show_scale  # noqa: E402
from served import Program  # noqa: E402

DIMENSION, BATCH = 16, 4096 * 26
PARTS = ["shard", "lifecycle", "torch", "fbgemm", "service", "log", "paddle", "load", "growth", "wire", "tier", "move"]
PADDLE = "2.6.2"
FBGEMM = "1.8.0"  # the release for the torch that setup installs
TIMED = ["pull uniform", "pull zipf", "pull + push uniform", "pull + push zipf", "small pull", "small pull + push"]
MEASURES = ["million_keys_per_s", "milliseconds_of_a_batch", "cpu_milliseconds_of_a_batch", "rows", "bytes_of_a_row", "resident_bytes_of_a_row",
            "million_rows_per_s"]


def checked(words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{words[0]}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def torch_embedding(rows, rounds):
    """Forward, backward and step of nn.Embedding(sparse=True) with Adagrad: million keys/s."""
    import torch
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    embedding = torch.nn.Embedding(rows, DIMENSION, sparse=True)
    optimizer = torch.optim.Adagrad(embedding.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(1)
    rates = []
    for _ in range(rounds + 1):
        keys = torch.randint(rows, (BATCH,), generator=draw)
        start = time.perf_counter()
        embedding(keys).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        rates.append(BATCH / 1e6 / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def fbgemm(rows, rounds):
    folder = beside_ours(f"fbgemm-{FBGEMM}", f"fbgemm-gpu-cpu=={FBGEMM}")
    return checked([sys.executable, HERE / "fbgemm_peer.py", rows, rounds], env={**os.environ, "PYTHONPATH": str(folder)})


@contextlib.contextmanager
def working(server, name, words):
    """The worker beside a running server: both end with the context."""
    try:
        program = Program(name, [str(word) for word in words])
        program.wait_until_ready()
        yield program
        program.close()
    finally:
        server.terminate()
        server.wait()


def tessera(bin_folder, rows, logs=None):
    place = f"127.0.0.1:{free_port()}"
    words = ["--log", tempfile.mkdtemp(dir=logs)] if logs else []
    server = subprocess.Popen([bin_folder / "tessera", "ps", "serve", "--listen", place, *words], stdout=subprocess.PIPE, text=True)
    server.stdout.readline()
    return working(server, "with a log" if logs else "Tessera", [bin_folder / "tessera_bench_ps_service", place, rows, server.pid])


def listens(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def paddle(rows, sending):
    # Newer releases of what it needs no longer fit.
    python = environment(f"paddlepaddle-{PADDLE}", [f"paddlepaddle=={PADDLE}", "numpy==1.26.4", "protobuf==3.20.3", "setuptools"])
    port = free_port()
    server = subprocess.Popen([python, HERE / "paddle_peer.py", "serve", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not listens(port):
        if server.poll() is not None:
            sys.exit(f"Paddle's server ended with status {server.returncode}")
        time.sleep(0.1)
    return working(server, "Paddle", [python, HERE / "paddle_peer.py", "work", port, rows, server.pid, sending])


def medians(answers):
    return {measure: statistics.median(answer[measure] for answer in answers) for measure in answers[0]}


def in_turns(arguments, logs):
    """Of each side and what it did: the medians of what it told."""
    starts = {"service": lambda: tessera(arguments.bin, arguments.rows), "log": lambda: tessera(arguments.bin, arguments.rows, logs), "paddle": lambda: paddle(arguments.rows, "at-once")}
    starts = [start for name, start in starts.items() if name in arguments.only]
    inserts = []
    for _ in range(arguments.rounds - 1):
        for start in starts:
            with start() as program:
                inserts.append((program.name, program.ask("insert")))
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(start()) for start in starts]
        answers = {program.name: {name: [] for name in ["insert", *TIMED]} for program in programs}
        for side, answer in inserts:
            answers[side]["insert"].append(answer)
        for name in ["insert", *TIMED * arguments.rounds]:
            for program in programs:
                answers[program.name][name].append(program.ask(name))
        for program in programs:
            answers[program.name]["save"] = [program.ask("save")]
    return {side: {name: medians(every) for name, every in done.items()} for side, done in answers.items()}


def load(arguments):
    """Of each side: rows that exist after all were pulled and pushed once."""
    there = {}
    for start in (lambda: tessera(arguments.bin, arguments.rows), lambda: paddle(arguments.rows, "merged")):
        with start() as program:
            there[program.name] = program.ask("load")["rows"]
    return there


def move(arguments):
    """A table that goes from two servers to three beside steps; medians over the rounds, each on servers of its own."""
    answers = []
    for _ in range(arguments.rounds):
        places, servers = [f"127.0.0.1:{free_port()}" for _ in range(3)], []
        try:
            for place in places:
                servers.append(subprocess.Popen([arguments.bin / "tessera", "ps", "serve", "--listen", place], stdout=subprocess.PIPE, text=True))
                servers[-1].stdout.readline()
            answers.append(checked([arguments.bin / "tessera_bench_ps_move", ",".join(places[:2]), ",".join(places), arguments.rows]))
        finally:
            for server in servers:
                server.kill()
                server.wait()
    return {name: statistics.median(answer[name] for answer in answers) for name in answers[0]}


def show_alone(result):
    if shard := result.get("shard"):
        rates = shard["million_keys_per_s"]
        print(f"{'alone, one thread':<24}{'table':>9}{'plain':>9}{'of plain':>10}")
        for name in rates:
            if f"plain {name}" in rates:
                print(f"{name:<24}{rates[name]:9.1f}{rates['plain ' + name]:9.1f}{100 * rates[name] / rates['plain ' + name]:9.0f}%")
        print(f"random reads of 64 bytes: {rates['reads uniform']:.0f}")
        print("bytes of a row: " + ", ".join(f"{words} {value:.0f}" for words, value in shard["bytes_of_a_row"].items()))
    if life := result.get("lifecycle"):
        rates = life["million_keys_per_s"]
        print(f"{'a lifecycle, one thread':<24}{'with':>9}{'without':>9}")
        for name in sorted({name.rpartition(",")[0] for name in rates if name.endswith(", with")}):
            print(f"{name:<24}{rates[name + ', with']:9.1f}{rates[name + ', without']:9.1f}")
        print(json.dumps({name: value for name, value in life.items() if name != "million_keys_per_s"}))
        print(f"push of keys that wait: {rates['push of keys that wait']:.1f}")
    if tier := result.get("tier"):
        print(f"{tier['rows']} rows, memory for a quarter: " + json.dumps(tier))
    if "torch" in result:
        print(f"torch.nn.Embedding(sparse=True) with Adagrad, forward, backward and step: {result['torch']:.2f}")
    for name, rate in result.get("fbgemm", {}).items():
        print(f"FBGEMM with rowwise AdaGrad, one process, {name}: {rate:.2f}")


def show_sides(sides):
    print(f"\n{'one server, one worker':<52}" + "".join(f"{name:>12}" for name in sides) + f"{' / '.join(sides):>20}" * (len(sides) == 2))
    names = dict.fromkeys(name for side in sides.values() for name in side)
    for measure in MEASURES:
        for name in names:
            values = [side.get(name, {}).get(measure) for side in sides.values()]
            if all(value is None for value in values):
                continue
            ratio = f"{values[0] / values[1]:20.2f}" if len(values) == 2 and None not in values else ""
            words = f"{measure.replace('_', ' ')}, {name}"
            print(f"{words:<52}" + "".join(f"{'' if value is None else f'{value:.2f}':>12}" for value in values) + ratio)


def show(result):
    print(f"{result['machine']}, {result['cores']} cores; " + ", ".join(f"{name} {version}" for name, version in result["versions"].items()))
    print(f"{result['rows']} rows of {DIMENSION} values; million keys a second")
    show_alone(result)
    if "sides" in result:
        show_sides(result["sides"])
    if "load" in result:
        there = ", ".join(f"{name} {rows}" for name, rows in result["load"].items())
        print(f"\nrows that exist after all were pulled and pushed once, Paddle with its defaults: {there}")
    if found := result.get("move"):
        print(f"\nfrom two servers to three: {found['copied'] / 1e6:.1f} million rows are copied beside steps, {found['copied_million_rows_per_s']:.2f} million a second, and "
              f"{found['copied_meanwhile'] / 1e6:.2f} million while steps stand for {found['stood_seconds']:.2f} s")
        print(f"pull and push, Zipf: {found['before']:.2f} before, {found['beside']:.2f} meanwhile, {found['afterwards']:.2f} afterwards")
    if "growth" in result:
        show_growth(result["growth"])
    if "wire" in result:
        show_growth(result["wire"], "values as", f"one server and one worker, a host of {CORES} cores and {SLOW_GBIT} Gbit/s each")
    if "scale" in result:
        show_scale(result["scale"])


def main():
    parser = argparse.ArgumentParser(prog="./dev bench ps", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=lambda words: words.split(","), default=PARTS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(PARTS):
        parser.error(f"not known: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    versions = {"Python": platform.python_version(), "torch": importlib.metadata.version("torch"), "PaddlePaddle": PADDLE, "FBGEMM": FBGEMM}
    result = {"machine": processor(), "cores": len(os.sched_getaffinity(0)), "versions": versions, "rows": arguments.rows}
    if "shard" in arguments.only:
        result["shard"] = checked([arguments.bin / "tessera_bench_ps_shard", arguments.rows, arguments.rounds])
    if "lifecycle" in arguments.only:
        result["lifecycle"] = checked([arguments.bin / "tessera_bench_ps_lifecycle", arguments.rows, arguments.rounds])
    if "torch" in arguments.only:
        result["torch"] = torch_embedding(arguments.rows, arguments.rounds)
    if "fbgemm" in arguments.only:
        result["fbgemm"] = fbgemm(arguments.rows, arguments.rounds)
    if {"service", "log", "paddle"} & set(arguments.only):
        with tempfile.TemporaryDirectory(dir=ROOT / "build") as logs:
            result["sides"] = in_turns(arguments, logs)
    if "load" in arguments.only:
        result["load"] = load(arguments)
    if "growth" in arguments.only:
        result["growth"] = growth(arguments.bin, arguments.rows, arguments.rounds)
    if "wire" in arguments.only:
        result["wire"] = wires(arguments.bin, arguments.rows, arguments.rounds)
    if "sides" in result and "Tessera" in result["sides"] and "problem" not in result.get("growth", {"problem": ""}):
        result["scale"] = scale(DIMENSION, result["sides"]["Tessera"], list(result["growth"].values())[-1])
    if "tier" in arguments.only:
        with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
            result["tier"] = checked([arguments.bin / "tessera_bench_ps_tier", folder, "--rounds", arguments.rounds])
    if "move" in arguments.only:
        result["move"] = move(arguments)
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
