"""Trains on four emulated hosts with the exchange of gradients at the end of each step, and with it delayed into the next one.

    python bench/delayed/run.py [--bin build/release/bin] [--rounds 3] [--steps 10] [--gbit 0.3] [--json]

Each plan as two replicas of a pipeline of two stages, and as four replicas. The plans take turns; medians over the steps of all
rounds, without each run's first two. The losses of both ways are compared digit by digit. Needs root (tools/netlab).
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from lab import netlab_or_exit, planned, train_on_hosts  # noqa: E402
MODEL = {"arch": "llama", "hidden": 384, "layers": 8, "heads": 6, "kv_heads": 6, "ffn": 1024, "seq": 128, "vocab": 2048}
HOSTS = 4
CPU = 0.45
SKIPPED_STEPS = 2
DEGREES = {"dp 4": {"dp": 4, "pp": 1, "micro_batches": 1}, "dp 2 x pp 2": {"dp": 2, "pp": 2, "micro_batches": 2}}
WAYS = [(degrees, delayed) for degrees in DEGREES for delayed in (False, True)]


def plan_for(tessera, way, gbit, folder, environment):
    degrees, delayed = way
    job = {"name": "delayed", "model": MODEL, "data": {"source": "synthetic"}, "cluster": {"lab": {"hosts": HOSTS, "gbit": gbit, "cpu": CPU}},
           "parallel": {"tp": 1, "zero": 0, **DEGREES[degrees], "delayed_exchange": delayed},
           "train": {"steps": 1, "global_batch": 16, "precision": "fp32", "optimizer": {"kind": "adamw", "clip": 0}, "eval": {"sequences": 1}}}
    return planned(tessera, folder, f"{degrees}{delayed}", job, environment)


def main():
    parser = argparse.ArgumentParser(prog="./dev bench delayed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--gbit", type=float, default=0.3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    netlab = netlab_or_exit()
    tessera = os.path.join(arguments.bin, "tessera")
    seconds, losses = {way: [] for way in WAYS}, {}
    with tempfile.TemporaryDirectory() as scratch:
        folder, environment = pathlib.Path(scratch), dict(os.environ, TESSERA_CACHE=os.path.join(scratch, "cache"))
        plans = {way: plan_for(tessera, way, arguments.gbit, folder, environment) for way in WAYS}
        for turn in range(arguments.rounds):
            for way in WAYS:
                with netlab.Lab(HOSTS, [arguments.gbit], [CPU] * HOSTS) as lab:
                    seconds[way] += train_on_hosts(lab, tessera, *plans[way], folder / "run", arguments.steps, environment)[SKIPPED_STEPS:]
                losses[way] = [json.loads(line)["loss"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
                print(f"round {turn + 1} of {arguments.rounds}, {way[0]}{', delayed' if way[1] else ''}: {seconds[way][-1]:.3f} s", file=sys.stderr)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    rows = [{"plan": degrees, "at_the_end_s": medians[degrees, False], "delayed_s": medians[degrees, True], "ratio": medians[degrees, False] / medians[degrees, True],
             "same_losses": losses[degrees, False] == losses[degrees, True]} for degrees in DEGREES]
    if arguments.json:
        print(json.dumps({"gbit": arguments.gbit, "rows": rows}))
        return
    print(f"{HOSTS} hosts of {CPU} cores, {arguments.gbit:g} Gbit/s; seconds of a step, gradients exchanged")
    print(f"{'plan':<14}{'at its end':>12}{'delayed':>10}{'ratio':>8}   losses of both")
    for row in rows:
        print(f"{row['plan']:<14}{row['at_the_end_s']:12.3f}{row['delayed_s']:10.3f}{row['ratio']:8.2f}   {'equal to the last digit' if row['same_losses'] else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
