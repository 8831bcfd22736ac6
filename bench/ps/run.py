"""Measures parameter servers: a table alone beside a plain one, PyTorch's sparse embedding in one process, and one server with one worker.

    python bench/ps/run.py [--bin build/release/bin] [--rows 5000000] [--rounds 5] [--only shard,torch,service] [--json]

Dimension 16, AdaGrad with a moment a row, batches of 4096 x 26 keys: uniform, and Zipf (row k with a probability of 1 / k). Medians over the rounds. CPU time is that of
server and worker together. The plain table's rows begin as zeros, ours with random numbers.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from machine import processor  # noqa: E402

DIMENSION, BATCH = 16, 4096 * 26
PARTS = ["shard", "torch", "service"]


def checked(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
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


def service(bin_folder, rows, rounds):
    place = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen([bin_folder / "tessera", "ps", "serve", "--listen", place], stdout=subprocess.PIPE, text=True)
    try:
        server.stdout.readline()
        return checked([bin_folder / "tessera_bench_ps_service", place, rows, rounds, server.pid])
    finally:
        server.terminate()
        server.wait()


def show(result):
    print(f"{processor()}; {result['rows']} rows of {DIMENSION} values; million keys a second")
    if shard := result.get("shard"):
        rates = shard["million_keys_per_s"]
        print(f"{'alone, one thread':<24}{'table':>9}{'plain':>9}{'of plain':>10}")
        for name in rates:
            if f"plain {name}" in rates:
                print(f"{name:<24}{rates[name]:9.1f}{rates['plain ' + name]:9.1f}{100 * rates[name] / rates['plain ' + name]:9.0f}%")
        print(f"random reads of 64 bytes: {rates['reads uniform']:.0f}")
        print("bytes of a row: " + ", ".join(f"{words} {value:.0f}" for words, value in shard["bytes_of_a_row"].items()))
    if "torch" in result:
        print(f"torch.nn.Embedding(sparse=True) with Adagrad, forward, backward and step: {result['torch']:.2f}")
    if told := result.get("service"):
        print(f"one server, one worker; rows there {told['rows']}, bytes of a row {told['bytes_of_a_row']:.0f}")
        print(f"{'':<24}{'M keys/s':>9}{'ms':>9}{'CPU ms':>9}")
        for name, rate in told["million_keys_per_s"].items():
            cpu = told["cpu_milliseconds_of_a_batch"][name]
            print(f"{name:<24}{rate:9.2f}{told['milliseconds_of_a_batch'][name]:9.2f}{cpu:9.2f}")


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
    result = {"rows": arguments.rows}
    if "shard" in arguments.only:
        result["shard"] = checked([arguments.bin / "tessera_bench_ps_shard", arguments.rows, arguments.rounds])
    if "torch" in arguments.only:
        result["torch"] = torch_embedding(arguments.rows, arguments.rounds)
    if "service" in arguments.only:
        result["service"] = service(arguments.bin, arguments.rows, arguments.rounds)
    if arguments.json:
        print(json.dumps({"machine": processor(), **result}))
    else:
        show(result)


if __name__ == "__main__":
    main()
