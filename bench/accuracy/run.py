"""Trains classifiers on the example's digits on one device, and under two pipelines that share each batch unequally: what share of the validation images each gets right.

    python bench/accuracy/run.py [--bin build/release/bin] [--models resnet18,resnet18-synchronized,vgg11] [--steps 280] [--seeds 1] [--json]

The grouped plan has two stages of two ranks each; one pipeline takes 10 of 16 images of each micro-batch. All ranks run on this host, one thread each. One device takes micro-batches of as many images; where batch norm is not
synchronized, each rank of the grouped plan normalizes by the images of its share alone.
"""
import argparse
import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from lab import planned, trained  # noqa: E402
from machine import processor  # noqa: E402

RESNET = {"arch": "resnet18", "image": 32, "channels": 1, "classes": 10}
MODELS = {"resnet18": RESNET, "resnet18-synchronized": {**RESNET, "batch_norm": "synchronized"},
          "vgg11": {"arch": "vgg11", "image": 32, "channels": 1, "classes": 10, "norm": True}}
BATCH, MICRO_BATCHES, SHARES, DEVICES = 64, 4, (10, 6), 4
LINK = {"name": "memory", "bandwidth": "40 Gbit/s", "latency": "5 us", "shared": True}
CLUSTER = {"name": "one host", "groups": [{"name": "workers", "inside": LINK, "network": LINK, "device": {
    "name": "core", "vendor": "cpu", "peak": {"fp32": "100 GFLOP/s"}, "memory": "16 GiB", "memory_bandwidth": "20 GB/s", "cores": DEVICES}}]}
WAYS = {"one device": {"dp": 1, "pp": 1, "micro_batches": MICRO_BATCHES, "threads": 1}, "grouped": {"dp": 2, "pp": 2, "micro_batches": MICRO_BATCHES, "threads": 1}}


def train(tessera, folder, name, way, steps, seed, environment):
    run = f"{name}-{way.replace(' ', '-')}-{seed}"
    job = {"name": run, "model": MODELS[name], "data": {"source": str(ROOT / "examples" / "mnist" / "mnist"), "images": {"normalize": {"mean": 0.13, "std": 0.31}}},
           "train": {"steps": steps, "global_batch": BATCH, "precision": "fp32", "seed": seed, "eval": {"sequences": 1000},
                     "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}, "schedule": {"kind": "cosine", "warmup": steps // 10}},
           "cluster": "cluster.yaml", "parallel": WAYS[way], "checkpoint": {"every": 0}}
    path, plan = planned(tessera, folder, run, job, environment)
    if way == "grouped":
        content = json.loads(plan.read_text())
        for stage in content["stages"]:
            stage["shares"] = [{"ranks": 1, "samples": samples} for samples in SHARES]
        plan.write_text(json.dumps(content))
    return json.loads((trained(tessera, path, plan, environment) / "evaluations.jsonl").read_text().splitlines()[-1])["accuracy"]


def main():
    parser = argparse.ArgumentParser(prog="./dev bench accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--models", type=lambda words: words.split(","), default=list(MODELS))
    parser.add_argument("--steps", type=int, default=280)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind, whose accuracies are averaged")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - set(MODELS):
        parser.error(f"not known: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    tessera, rows = os.path.join(arguments.bin, "tessera"), []
    with tempfile.TemporaryDirectory() as scratch:
        folder, environment = pathlib.Path(scratch), dict(os.environ, TESSERA_CACHE=os.path.join(scratch, "cache"))
        (folder / "cluster.yaml").write_text(json.dumps(CLUSTER))
        for name in arguments.models:
            reached = {}
            for way in WAYS:
                found = []
                for seed in range(1, arguments.seeds + 1):
                    found.append(train(tessera, folder, name, way, arguments.steps, seed, environment))
                    print(f"{name}, {way}, seed {seed}: {100 * found[-1]:.2f} %", file=sys.stderr)
                reached[way] = sum(found) / len(found)
            rows.append({"model": name, **reached})
    if arguments.json:
        print(json.dumps({"machine": processor(), "steps": arguments.steps, "seeds": arguments.seeds, "rows": rows}))
        return
    print(f"{processor()}; {arguments.steps} steps of {BATCH} digits; validation accuracy")
    for row in rows:
        print(f"{row['model']:<22}" + "".join(f"  {way} {100 * row[way]:6.2f} %" for way in WAYS) + f"  difference {100 * (row['grouped'] - row['one device']):+.2f} points")


if __name__ == "__main__":
    main()
