#!/usr/bin/env python3
"""How much faster the chosen plan's simulated step is than sharded data parallel, the best 3D template, one kind of device, equal shares.

    ./dev bench gain [--json]

12 pairs of a model and a cluster of one kind: against pure sharded data parallel (ZeRO-3 over all devices) and against the best plan
with one dp x tp x pp for all blocks and equal stages (1F1B or interleaved, ZeRO-0 or -1). 4 mixed clusters: against the best plan that
uses one kind of device alone, and against the best with equal stages over all of them. Every plan is the best of its kind that fits, by
the same cost model, and all are simulated.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def ratio(row, other):
    return row[other]["step_s"] / row["tessera"]["step_s"] if row.get(other) else None


def text(row, other):
    value = ratio(row, other)
    return f"{value:8.3f}x" if value else "does not fit".rjust(9)


def geometric_mean(values):
    known = [value for value in values if value]
    return math.exp(sum(map(math.log, known)) / len(known))


def table(title, rows, others):
    print(f"{title:<62}{'step':>10}{'search':>9}  " + "  ".join(name.rjust(22) for name, _ in others))
    for row in rows:
        print(f"{row['pair']:<62}{row['tessera']['step_s']:>8.2f} s{row['search_s']:>7.1f} s  " + "  ".join(text(row, key).rjust(22) for _, key in others))
    means = [geometric_mean([ratio(row, key) for row in rows]) for _, key in others]
    least = [min(value for value in (ratio(row, key) for row in rows) if value) for _, key in others]
    print(f"{'geometric mean':<83}" + "  ".join(f"{mean:8.3f}x".rjust(22) for mean in means))
    print(f"{'least':<83}" + "  ".join(f"{value:8.3f}x".rjust(22) for value in least) + "\n")


def main():
    parser = argparse.ArgumentParser(prog="./dev bench gain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/tessera_bench_gain"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    done = subprocess.run([arguments.binary], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip())
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if arguments.json:
        print(json.dumps(rows))
        return
    table("one kind of device", [row for row in rows if not row["mixed"]], [("over sharded data p.", "sharded"), ("over best 3D template", "template")])
    table("mixed devices", [row for row in rows if row["mixed"]], [("over one kind", "one_kind"), ("over equal stages", "as_equals")])


if __name__ == "__main__":
    main()
