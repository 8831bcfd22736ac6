#!/usr/bin/env python3
"""How long the search takes for Pangu Ultra's 135B model on 8192 Ascend 910B, what it finds, and what the published plan costs."""
import argparse
import json
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def line(plan):
    return (f"dp{plan['dp']} tp{plan['tp']} cp{plan['cp']} pp{plan['pp']} {plan['schedule']}{' x' + str(plan['chunks']) if plan['chunks'] > 1 else ''} "
            f"micro-batch {plan['micro_batch']} zero {plan['zero']}")


def main():
    parser = argparse.ArgumentParser(prog="./dev bench scale", description=__doc__)
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/tessera_bench_scale"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = [json.loads(subprocess.run([arguments.binary], check=True, capture_output=True, text=True).stdout) for _ in range(arguments.runs)]
    result = results[0]
    result["search_s"] = statistics.median(each["search_s"] for each in results)
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['considered']} plans in {result['search_s']:.3f} s (median of {arguments.runs}), {result['peak_resident_bytes'] / 2**20:.0f} MiB resident at most")
    print(f"{'':<28}{'step':>9}{'memory':>10}  plan")
    for name, plan in [("published", result["published"])] + [(each["family"], each) for each in result["families"]]:
        print(f"{name:<28}{plan['step_s']:>7.2f} s{plan['memory_bytes'] / 1e9:>7.1f} GB  {line(plan)}")


if __name__ == "__main__":
    main()
