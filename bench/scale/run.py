#!/usr/bin/env python3
"""How long plans for large clusters take: Pangu Ultra's 135B model on 8192 Ascend 910B beside the published plan, on 100,000 of them and on 10,000
devices of five kinds, Llama-2-70B on clusters of three and four kinds. The search alone, and `tessera plan` as one types it, runners-up included."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def line(plan):
    several = f" ({plan['stages_a_rank']} a rank)" if plan["stages_a_rank"] > 1 else ""
    return (f"{plan['stages']} stages{several}, dp{plan['dp']} tp{plan['tp']} cp{plan['cp']} zero {plan['zero']}, {plan['micro_batches']} micro-batches, {plan['schedule']}: "
            f"predicted {plan['predicted_s']:.2f} s with ranks idle {100 * plan['predicted_bubble']:.1f} %, "
            f"simulated {plan['simulated_s']:.2f} s with {100 * plan['simulated_bubble']:.1f} %, {plan['memory_bytes'] / 2**30:.1f} GiB"
            + "".join(f"\n    extrapolated: {one}" for one in plan["extrapolated"]))


def typed(tessera, result):
    """Seconds, and bytes resident at most, of `tessera plan`."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("train.yaml", "cluster.yaml"):
            (pathlib.Path(folder) / name).write_text(result[name])
        begin = time.monotonic()
        process = subprocess.Popen([tessera, "plan", "train.yaml", "--cluster", "cluster.yaml"], cwd=folder, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"tessera plan ended with {process.returncode}")
    return seconds, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(prog="./dev bench scale", description=__doc__)
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/tessera_bench_scale"))
    parser.add_argument("--tessera", default=str(ROOT / "build/release/bin/tessera"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", metavar="CASE", help="one case instead of all")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    names = subprocess.run([arguments.binary], check=True, capture_output=True, text=True).stdout.split()
    if arguments.only and arguments.only not in names:
        parser.error(f"no case is called '{arguments.only}'; there are {', '.join(names)}")
    results = {}
    for name in [arguments.only] if arguments.only else names:
        runs = [json.loads(subprocess.run([arguments.binary, name], check=True, capture_output=True, text=True).stdout) for _ in range(arguments.runs)]
        result = results[name] = runs[0]
        for key in ("search_s", "simulate_s"):
            result[key] = statistics.median(run[key] for run in runs)
        commands = [typed(arguments.tessera, result) for _ in range(arguments.runs)]
        result["command_s"] = statistics.median(seconds for seconds, _ in commands)
        result["command_peak_resident_bytes"] = max(peak for _, peak in commands)
        if not arguments.json:
            print(f"{name}: {result['used']} of {result['devices']} devices, searched for {result['search_s']:.2f} s (median of {arguments.runs}), simulated in "
                  f"{result['simulate_s']:.2f} s, {result['peak_resident_bytes'] / 2**20:.0f} MiB resident at most; no plan is faster than {result['bound_s']:.2f} s")
            print(f"  `tessera plan` took {result['command_s']:.2f} s and {result['command_peak_resident_bytes'] / 2**20:.0f} MiB")
            print(f"  {line(result['plan'])}", flush=True)
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
