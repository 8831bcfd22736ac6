#!/usr/bin/env python3
"""How long a save stops training: made in place, and made beside the steps that follow."""
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

BINARY = ROOT / "build" / "release" / "bin" / "tessera_bench_checkpoint"


def main():
    parser = argparse.ArgumentParser(prog="./dev bench checkpoint", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="saves of either kind, in turns (default: 5)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8, help="sequences of 128 tokens a step (default: 8)")
    parser.add_argument("--folder", help="where the checkpoints are written, for a moment (default: the system's temporary folder)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    words = [BINARY, "--rounds", arguments.rounds, "--threads", arguments.threads, "--hidden", arguments.hidden, "--layers", arguments.layers,
             "--batch", arguments.batch]
    environment = dict(os.environ, TMPDIR=arguments.folder) if arguments.folder else None
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    times = json.loads(done.stdout)
    found = {name: statistics.median(times[name]) for name in ("in_place", "stopped", "beside", "steps", "steps_beside")}
    found["ratio"] = found["stopped"] / found["in_place"]
    # Writing and training share cores and memory.
    found["slowed"] = max(0.0, found["steps_beside"] - found["steps"]) * len(times["steps_beside"]) / arguments.rounds
    if arguments.json:
        print(json.dumps({"machine": processor(), "parameters": times["parameters"], **found}, indent=2))
        return
    print(f"{processor()}, {arguments.threads} threads; {times['parameters'] / 1e6:.1f} M parameters with AdamW, {times['parameters'] * 12 / 1e6:.0f} MB a checkpoint; "
          f"medians of {arguments.rounds} saves of either kind, in turns")
    for what, name in (("a save in place stops training for", "in_place"), ("one beside the steps stops it for", "stopped"),
                       ("  and is committed after", "beside"), ("a step alone takes", "steps"), ("a step beside a save takes", "steps_beside")):
        print(f"{what:40}{1000 * found[name]:>9.0f} ms")
    print(f"{'stopped, of a save in place':40}{100 * found['ratio']:>9.1f} %")
    print(f"{'steps are longer, of a save in place':40}{100 * found['slowed'] / found['in_place']:>9.1f} %")


if __name__ == "__main__":
    main()
