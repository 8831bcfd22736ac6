#!/usr/bin/env python3
"""How long a plan takes for Pangu Ultra's 135B model on 8192 Ascend 910B and for a mixed cluster of 1792 devices, beside the published plan."""
import argparse
import json
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def line(plan):
    several = f" ({plan['stages_a_rank']} a rank)" if plan["stages_a_rank"] > 1 else ""
    return (f"{plan['stages']} stages{several}, dp{plan['dp']} tp{plan['tp']} cp{plan['cp']} zero {plan['zero']}, {plan['micro_batches']} micro-batches, {plan['schedule']}: "
            f"predicted {plan['predicted_s']:.2f} s with ranks idle {100 * plan['predicted_bubble']:.1f} %, "
            f"simulated {plan['simulated_s']:.2f} s with {100 * plan['simulated_bubble']:.1f} %, {plan['memory_bytes'] / 2**30:.1f} GiB"
            + "".join(f"\n    extrapolated: {one}" for one in plan["extrapolated"]))


def main():
    parser = argparse.ArgumentParser(prog="./dev bench scale", description=__doc__)
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/tessera_bench_scale"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = [json.loads(subprocess.run([arguments.binary], check=True, capture_output=True, text=True).stdout) for _ in range(arguments.runs)]
    result = results[0]
    for cluster in ("pangu", "mixed"):
        result[cluster]["search_s"] = statistics.median(each[cluster]["search_s"] for each in results)
    result["simulate_s"] = statistics.median(each["simulate_s"] for each in results)
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"Pangu Ultra on 8192 Ascend 910B: planned in {result['pangu']['search_s']:.2f} s (median of {arguments.runs}), {result['peak_resident_bytes'] / 2**20:.0f} MiB resident at most")
    print(f"  chosen     {line(result['pangu']['plan'])}")
    print(f"  no plan is faster than {result['pangu']['bound_s']:.2f} s")
    print(f"  published (simulated in {result['simulate_s']:.2f} s)  {line(result['published'])}")
    print(f"Llama-2-70B on 512 A100 + 256 V100 + 1024 Ascend 910B: planned in {result['mixed']['search_s']:.2f} s")
    print(f"  chosen     {line(result['mixed']['plan'])}")


if __name__ == "__main__":
    main()
