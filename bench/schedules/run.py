#!/usr/bin/env python3
"""Pipeline schedules: bubbles and memory beside their closed forms, and how long their check and simulation take."""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from closed_forms import bubble_of  # noqa: E402
from machine import processor  # noqa: E402

BINARY = ROOT / "build" / "release" / "bin" / "tessera_bench_schedules"


def main():
    parser = argparse.ArgumentParser(prog="./dev bench schedules", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="the fastest counts (default: 5)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for ranks, micro_batches, chunks in ((8, 16, 6), (8, 64, 3), (32, 256, 4)):
        runs = []
        for _ in range(arguments.runs):
            out = subprocess.run([BINARY, str(ranks), str(micro_batches), str(chunks)], capture_output=True, text=True, check=True).stdout
            runs.append([json.loads(line) for line in out.splitlines()])
        for same in zip(*runs):
            row = dict(same[0])
            for key in ("compile_ms", "check_ms", "simulate_ms"):
                row[key] = min(run[key] for run in same)
            row["closed_form"] = bubble_of(row["schedule"], ranks, micro_batches, row["stages_a_rank"])
            rows.append(row)
    if arguments.json:
        print(json.dumps({"machine": processor(), "rows": rows}, indent=2))
        return
    print(f"{processor()}, one thread, the fastest of {arguments.runs} runs; forward, input and weight halves of equal length, messages free")
    print(f"{'ranks x micro-batches':<22}{'schedule':<13}{'bubble':>9}{'closed form':>12}{'held':>8}{'instructions':>13}{'compile':>11}{'check':>11}{'simulate':>11}")
    for row in rows:
        print(f"{row['ranks']:>2} x {row['micro_batches']:<17}{row['schedule']:<13}{100 * row['pipeline_bubble']:>7.3f} %{100 * row['closed_form']:>10.3f} %"
              f"{row['held']:>8.3f}{row['instructions']:>13}{row['compile_ms']:>8.2f} ms{row['check_ms']:>8.2f} ms{row['simulate_ms']:>8.2f} ms")


if __name__ == "__main__":
    main()
