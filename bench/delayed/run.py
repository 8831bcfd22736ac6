"""Trains on four emulated hosts with the exchange of gradients at the end of each step, with it delayed into the next one, and with gradients used a step late.

    python bench/delayed/run.py [--bin build/release/bin] [--rounds 3] [--steps 10] [--gbit 0.3] [--learn 200] [--json]

Each plan as two replicas of a pipeline of two stages, and as four replicas. The plans take turns; medians over the steps of all
rounds, without each run's first two. The losses of the first two ways are compared digit by digit. What `staleness: 1` does to what is learned: the validation loss of a
small Llama on the example's text after --learn steps on one device, with it and without, at two learning rates. Needs root (tools/netlab).
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
from lab import netlab_or_exit, planned, train_on_hosts, trained  # noqa: E402
MODEL = {"arch": "llama", "hidden": 384, "layers": 8, "heads": 6, "kv_heads": 6, "ffn": 1024, "seq": 128, "vocab": 2048}
HOSTS = 4
CPU = 0.45
SKIPPED_STEPS = 2
DEGREES = {"dp 4": {"dp": 4, "pp": 1, "micro_batches": 1}, "dp 2 x pp 2": {"dp": 2, "pp": 2, "micro_batches": 2}}
EXCHANGES = {"at the end": {"delayed_exchange": False}, "delayed": {"delayed_exchange": True}, "stale": {"staleness": 1}}
WAYS = [(degrees, exchange) for degrees in DEGREES for exchange in EXCHANGES]
TEXT = ROOT / "examples" / "shakespeare" / "shakespeare.txt"
LEARNER = {"arch": "llama", "hidden": 128, "layers": 4, "heads": 4, "kv_heads": 4, "ffn": 384, "seq": 128, "vocab": 257}
RATES = (1e-3, 4e-3)


def plan_for(tessera, way, gbit, folder, environment):
    degrees, exchange = way
    job = {"name": "delayed", "model": MODEL, "data": {"source": "synthetic"}, "cluster": {"lab": {"hosts": HOSTS, "gbit": gbit, "cpu": CPU}},
           "parallel": {"tp": 1, "zero": 0, **DEGREES[degrees], **EXCHANGES[exchange]},
           "train": {"steps": 1, "global_batch": 16, "precision": "fp32", "optimizer": {"kind": "adamw", "clip": 0}, "eval": {"sequences": 1}}}
    return planned(tessera, folder, f"{degrees} {exchange}", job, environment)


def learned(tessera, exchange, rate, steps, folder, environment):
    """The validation loss at the end."""
    name = f"{exchange}-{rate}".replace(" ", "-")
    job = {"name": name, "model": LEARNER, "data": {"source": str(TEXT), "tokenizer": {"kind": "bytes"}}, "cluster": "auto",
           "parallel": {"dp": 1, "tp": 1, "pp": 1, **EXCHANGES[exchange]}, "checkpoint": {"every": 0},
           "train": {"steps": steps, "global_batch": 16, "precision": "fp32", "optimizer": {"kind": "adamw", "lr": rate, "clip": 0},
                     "schedule": {"kind": "cosine", "warmup": steps // 10}, "eval": {"sequences": 64}}}
    path, plan = planned(tessera, folder, name, job, environment)
    return json.loads((trained(tessera, path, plan, environment) / "evaluations.jsonl").read_text().splitlines()[-1])["validation_loss"]


def main():
    parser = argparse.ArgumentParser(prog="./dev bench delayed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--gbit", type=float, default=0.3)
    parser.add_argument("--learn", type=int, default=200, help="steps; 0: none of it")
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
                print(f"round {turn + 1} of {arguments.rounds}, {way[0]}, {way[1]}: {seconds[way][-1]:.3f} s", file=sys.stderr)
        learning = [{"lr": rate, **{exchange: learned(tessera, exchange, rate, arguments.learn, folder, environment) for exchange in ("at the end", "stale")}}
                    for rate in RATES if arguments.learn]
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    rows = [{"plan": degrees, "seconds": {exchange: medians[degrees, exchange] for exchange in EXCHANGES},
             "same_losses": losses[degrees, "at the end"] == losses[degrees, "delayed"]} for degrees in DEGREES]
    if arguments.json:
        print(json.dumps({"gbit": arguments.gbit, "rows": rows, "learning": learning}))
        return
    print(f"{HOSTS} hosts of {CPU} cores, {arguments.gbit:g} Gbit/s; seconds of a step, gradients exchanged")
    print(f"{'plan':<14}{'at its end':>12}{'delayed':>10}{'ratio':>8}   {'losses of both':<26}{'stale':>8}{'ratio':>8}")
    for row in rows:
        at_end, delayed, stale = (row["seconds"][exchange] for exchange in EXCHANGES)
        print(f"{row['plan']:<14}{at_end:12.3f}{delayed:10.3f}{at_end / delayed:8.2f}   {'equal to the last digit' if row['same_losses'] else 'DIFFERENT':<26}{stale:8.3f}{at_end / stale:8.2f}")
    for row in learning:
        print(f"learning rate {row['lr']:g}: validation loss {row['at the end']:.4f}, and {row['stale']:.4f} with gradients a step late")


if __name__ == "__main__":
    main()
