"""Trains on two emulated hosts of unequal speed: the fast one alone, both with equal and with unequal shares of the batch, and both as one pipeline.

    python bench/unequal/run.py [--bin build/release/bin] [--rounds 3] [--steps 10] [--gbit 1] [--json]

Tessera plans each way from a cluster file that says how fast the hosts are; for equal shares its plan is edited. The plans take turns;
medians over the steps of all rounds, without each run's first two. Needs root (tools/netlab).
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
MODEL = {"arch": "llama", "hidden": 256, "layers": 8, "heads": 4, "kv_heads": 4, "ffn": 768, "seq": 128, "vocab": 4096}
CPU = {"fast": 0.8, "slow": 0.4}
CORE_GFLOPS = 100  # only the ratio of the two hosts matters
SKIPPED_STEPS = 2
WAYS = {"fast host alone": ({"dp": 1, "pp": 1, "tp": 1}, 1), "equal shares": ({"dp": 2, "zero": 0}, 2), "shares by speed": ({"dp": 2, "zero": 0}, 2), "one pipeline": ({"pp": 2}, 2)}


def cluster(gbit):
    def group(name):
        return {"name": name, "inside": "shm", "network": link,
                "device": {"name": name, "vendor": "cpu", "peak": {"fp32": f"{CORE_GFLOPS * CPU[name]} GFLOP/s"}, "memory": "8 GiB", "memory_bandwidth": f"{20 * CPU[name]} GB/s", "cores": 1}}
    link = {"name": "lab", "bandwidth": f"{gbit} Gbit/s", "latency": "100 us", "shared": True}
    return {"name": "unequal hosts", "groups": [group(name) for name in CPU], "between": link}


def plan_for(tessera, way, folder, environment):
    degrees, _ = WAYS[way]
    job, path = planned(tessera, folder, way,
                        {"name": "unequal", "model": MODEL, "data": {"source": "synthetic"}, "cluster": "cluster.yaml", "parallel": degrees,
                         "train": {"steps": 1, "global_batch": 12, "precision": "fp32", "eval": {"sequences": 1}}}, environment)
    if way == "equal shares":
        plan = json.loads(path.read_text())
        for stage in plan["stages"]:
            del stage["shares"]
        path.write_text(json.dumps(plan))
    return job, path


def main():
    parser = argparse.ArgumentParser(prog="./dev bench unequal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--gbit", type=float, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    netlab = netlab_or_exit()
    tessera = os.path.join(arguments.bin, "tessera")
    seconds = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as scratch:
        folder, environment = pathlib.Path(scratch), dict(os.environ, TESSERA_CACHE=os.path.join(scratch, "cache"))
        (folder / "cluster.yaml").write_text(json.dumps(cluster(arguments.gbit)))
        plans = {way: plan_for(tessera, way, folder, environment) for way in WAYS}
        for turn in range(arguments.rounds):
            for way, (_, hosts) in WAYS.items():
                with netlab.Lab(hosts, [arguments.gbit], list(CPU.values())[:hosts]) as lab:
                    seconds[way] += train_on_hosts(lab, tessera, *plans[way], folder / "run", arguments.steps, environment)[SKIPPED_STEPS:]
                print(f"round {turn + 1} of {arguments.rounds}, {way}: {seconds[way][-1]:.3f} s", file=sys.stderr)
        shares = {way: [stage.get("shares") for stage in json.loads(plan.read_text())["stages"]] for way, (_, plan) in plans.items()}
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    if arguments.json:
        print(json.dumps({"step_s": medians, "steps": seconds, "shares": shares}))
        return
    print(f"hosts of {CPU['fast']} and {CPU['slow']} cores, {arguments.gbit:g} Gbit/s")
    for way, value in medians.items():
        samples = " + ".join(str(share["samples"]) for share in shares[way][0] or [])
        print(f"{way:<18}{value:8.3f} s  {medians['equal shares'] / value:5.2f} x  {samples}")


if __name__ == "__main__":
    main()
