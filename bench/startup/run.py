#!/usr/bin/env python3
"""How long the tessera command takes to answer, beside the shell's own `true`, and a worker, which has libtorch to load."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from machine import processor  # noqa: E402

PROGRAMS = ROOT / "build" / "release" / "bin"
TESSERA = PROGRAMS / "tessera"
WORKER = "tessera-worker --version"
LIMIT_MS = 50.0  # of all but the worker


def milliseconds(command):
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - begin) * 1000


def main():
    parser = argparse.ArgumentParser(prog="./dev bench startup", description=__doc__)
    parser.add_argument("--runs", type=int, default=41, help="of each command, interleaved (default: 41)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    commands = {"true": ["/bin/true"], "tessera --help": [TESSERA, "--help"], "tessera plan --help": [TESSERA, "plan", "--help"],
                "tessera --version": [TESSERA, "--version"], WORKER: [PROGRAMS / "tessera-worker", "--version"]}
    times = {name: [] for name in commands}
    for command in commands.values():
        milliseconds(command)
    for _ in range(arguments.runs):
        for name, command in commands.items():
            times[name].append(milliseconds(command))
    rows = {name: {"median_ms": round(statistics.median(values), 2), "worst_ms": round(max(values), 2)} for name, values in times.items()}
    within = all(row["median_ms"] < LIMIT_MS for name, row in rows.items() if name != WORKER)
    if arguments.json:
        print(json.dumps({"machine": processor(), "runs": arguments.runs, "limit_ms": LIMIT_MS, "within": within, "commands": rows}, indent=2))
    else:
        print(f"{processor()}, {arguments.runs} runs of each, interleaved, in milliseconds")
        print(f"{'command':<26}{'median':>8}{'worst':>8}")
        for name, row in rows.items():
            print(f"{name:<26}{row['median_ms']:>8.1f}{row['worst_ms']:>8.1f}")
        print(f"limit {LIMIT_MS:.0f} ms, of tessera: {'kept' if within else 'NOT kept'}")
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
