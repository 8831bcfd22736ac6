#!/usr/bin/env python3
"""Twenty plans that people have published: their step, what the cost model says of it, and the plan that `auto` chooses there instead.

    ./dev bench known [--seconds S] [--row N] [--json]

bench/known/plans.csv has the plans, each with its source and what of it is quoted, derived or assumed. Every plan is priced with the
calibration of the stack that the table names for it; the search chooses for the same model, batch, cluster and stack, in S seconds for
each row (default 20). Both steps are the cost model's. "memory" is what the fullest device holds of what it may use, by our count.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "bench" / "known"


def line(row):
    if "why_not" in row:
        return f"{row['name']}: not priced, {row['why_not']}"
    ours, measured, best = row["published"], row.get("published_s"), row["chosen"]
    published = f"{measured:8.2f} s" if measured else "-".rjust(10)
    error = f"{100 * (ours['step_s'] / measured - 1):+6.1f} %" if measured else "-".rjust(8)
    fits = "fits" if ours["memory_of_limit"] <= 1 else f"{100 * (ours['memory_of_limit'] - 1):.0f} % over"
    out = f"{row['label']:<88}{'*' if row['fitted'] else ' '}{published}{ours['step_s']:>8.2f} s{error:>10}  {fits:<11}"
    if "why_not" in best:
        return f"{out} no plan: {best['why_not']}"
    return f"{out}{best['step_s']:>8.2f} s{ours['step_s'] / best['step_s']:>7.3f}x  {best['plan']}"


def main():
    parser = argparse.ArgumentParser(prog="./dev bench known", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/tessera_bench_known"))
    parser.add_argument("--seconds", type=float, default=20, help="for each search")
    parser.add_argument("--row", type=int, default=0, help="only this one, from 1")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    command = [arguments.binary, str(HERE / "plans.csv"), str(ROOT / "bench/truth/fit.yaml"), str(arguments.seconds), str(arguments.row)]
    if not arguments.json:
        print(f"{'plan':<89}{'published':>10}{'ours':>10}{'error':>10}  {'memory':<11}{'auto':>10}{'gain':>8}  its plan", flush=True)
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for text in process.stdout:
            rows.append(json.loads(text))
            if not arguments.json:
                print(line(rows[-1]), flush=True)
    if process.returncode:
        sys.exit(process.returncode)
    if arguments.json:
        print(json.dumps(rows))
        return
    errors = [abs(row["published"]["step_s"] / row["published_s"] - 1) for row in rows if row.get("published_s")]
    if errors:
        print(f"\nmean error over {len(errors)} rows with a published step: {100 * sum(errors) / len(errors):.1f} %, worst {100 * max(errors):.1f} %")
    print("* a calibration was fitted on this row, among others")


if __name__ == "__main__":
    main()
