#!/usr/bin/env python3
"""Ranks killed, stopped and slowed at random while they train: how long it takes until all others have said so."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from machine import processor  # noqa: E402

BINARY = ROOT / "build" / "release" / "bin" / "tessera_train_tests"
TEST = "TrainingFaults.DISABLED_RandomInjectionsAreTold"
# A stopped rank is given up after two seconds without a heartbeat there; training sets thirty.
KINDS = ("killed", "stopped", "slowed")


def main():
    parser = argparse.ArgumentParser(prog="./dev bench faults", description=__doc__)
    parser.add_argument("--injections", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    environment = dict(os.environ, TESSERA_INJECTIONS=str(arguments.injections), TESSERA_INJECTION_SEED=str(arguments.seed))
    process = subprocess.Popen([str(BINARY), f"--gtest_filter={TEST}", "--gtest_also_run_disabled_tests"], env=environment, stdout=subprocess.PIPE, text=True)
    rows, said = [], []
    for line in process.stdout:
        if not line.startswith("INJECTION "):
            said.append(line)
            continue
        rows.append(json.loads(line.split(" ", 1)[1]))
        if sys.stderr.isatty():
            print(f"\r{len(rows)} of {arguments.injections}", end="", file=sys.stderr)
    failed = process.wait() != 0
    figures = {kind: [row["seconds"] for row in rows if row["fault"] == kind] for kind in KINDS}
    if arguments.json:
        print(json.dumps({"machine": processor(), "injections": rows, "failed": failed}, indent=2))
    else:
        print(f"{processor()}; {len(rows)} injections with seed {arguments.seed}, {len({row['layout'] for row in rows})} strategies and schedules, 2 to 4 ranks; "
              "seconds until the last rank had said who")
        print(f"{'':12}{'injections':>11}{'median':>9}{'99 %':>9}{'longest':>9}")
        for kind, seconds in figures.items():
            if seconds:
                ordered = sorted(seconds)
                print(f"{kind:12}{len(seconds):>11}{statistics.median(seconds):>9.2f}{ordered[int(0.99 * (len(ordered) - 1))]:>9.2f}{ordered[-1]:>9.2f}")
    if failed:
        sys.exit("".join(said) + f"an injection was not told as it should be: {rows[-1] if rows else 'the first one'}")


if __name__ == "__main__":
    main()
