"""Trains on four emulated hosts of which two are joined by a slow link: under the order of ranks that measuring the links gives, and in order of their numbers.

    python bench/order/run.py [--bin build/release/bin] [--gbit 2] [--slow 0.2] [--rounds 2] [--steps 8] [--seconds 20] [--json]

One Llama in fp32 with AdamW, data parallel over the four hosts, one thread each. `tessera profile` measures the link of every two hosts; the plan made from that profile has
the ranks of its stage in the order of the best ring. The other plan is the same file with the ranks in ascending order. Both train in turns, in the same lab; medians over
the steps, without each run's first two. The losses of both are compared, and those of the same plan trained twice. Needs root (tools/netlab).
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "parallel")]
from lab import checked, cluster_of_hosts, netlab_or_exit, planned, train_on_hosts  # noqa: E402
from llama import save  # noqa: E402
from machine import processor  # noqa: E402

MODEL = {"hidden": 256, "layers": 4, "heads": 4, "kv_heads": 4, "ffn": 768, "seq": 64, "vocab": 4096}
BATCH, HOSTS, SLOW_PAIR = 8, 4, (0, 1)
SKIPPED_STEPS = 2
TEXT = ROOT / "examples" / "shakespeare" / "shakespeare.txt"


def measured(arguments, folder, netlab):
    tessera, environment = os.path.join(arguments.bin, "tessera"), dict(os.environ, TESSERA_CACHE=str(folder / "cache"))
    weights = folder / "llama"
    save(MODEL, weights)
    job = {"name": "order", "model": {"hf": str(weights), "seq": MODEL["seq"]}, "data": {"source": str(TEXT), "tokenizer": {"kind": "bytes"}},
           "train": {"init": str(weights), "steps": arguments.steps, "global_batch": BATCH, "precision": "fp32", "eval": {"sequences": 1},
                     "optimizer": {"kind": "adamw", "lr": 3e-4, "clip": 1.0}, "schedule": {"kind": "constant"}},
           "cluster": cluster_of_hosts(folder / "cluster.yaml", HOSTS, arguments.gbit)}
    yaml, profile = folder / "profile.yaml", folder / "profile.json"
    yaml.write_text(json.dumps(job))
    launcher = f"{sys.executable} {ROOT / 'tools' / 'netlab'} --hosts {HOSTS} --gbit {arguments.gbit:g} --pair {SLOW_PAIR[0]}-{SLOW_PAIR[1]}:{arguments.slow:g} --"
    checked([tessera, "profile", yaml, "--seconds", arguments.seconds, "--launcher", launcher, "-o", profile], environment)
    links = {sample["link"]: sample["bandwidth"] * 8e-9 for sample in json.loads(profile.read_text())["communication"] if ":" in sample["link"]}
    job["parallel"] = {"dp": HOSTS, "tp": 1, "pp": 1, "zero": 0, "micro_batches": 1}
    path, plan = planned(tessera, folder, "order", job, environment, profile)
    by_links = json.loads(plan.read_text())
    order = by_links["stages"][0]["ranks"]
    ascending = folder / "ascending.json"
    print(f"{links}: order {order}, predicted {by_links['predicted'].get('step_seconds')}", file=sys.stderr)
    by_links["stages"][0]["ranks"] = sorted(order)
    ascending.write_text(json.dumps(by_links))
    plans = {"measured order": plan, "ascending": ascending}
    seconds, losses = {way: [] for way in plans}, {way: [] for way in plans}
    with netlab.Lab(HOSTS, [arguments.gbit], pairs={SLOW_PAIR: arguments.slow}) as lab:
        for turn in range(arguments.rounds):
            for way, file in plans.items():
                run = folder / "run"
                seconds[way] += train_on_hosts(lab, tessera, path, file, run, arguments.steps, environment)[SKIPPED_STEPS:]
                losses[way].append([json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()])
                print(f"round {turn + 1} of {arguments.rounds}, {way}: {statistics.median(seconds[way]):.3f} s", file=sys.stderr)
    medians = {way: statistics.median(of) for way, of in seconds.items()}
    apart = max(abs(a - b) for a, b in zip(losses["measured order"][0], losses["ascending"][0]))
    return {"links": links, "order": order, "seconds": medians, "gain": medians["ascending"] / medians["measured order"],
            "losses_apart": apart, "same_again": all(of[0] == other for of in losses.values() for other in of[1:]) if arguments.rounds > 1 else None}


def main():
    parser = argparse.ArgumentParser(prog="./dev bench order", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--gbit", type=float, default=2, help="of every host")
    parser.add_argument("--slow", type=float, default=0.2, help="Gbit/s between hosts 0 and 1")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=20, help="of measuring the hosts, about")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    netlab = netlab_or_exit()
    with tempfile.TemporaryDirectory() as folder:
        result = {"machine": processor(), "gbit": arguments.gbit, "slow": arguments.slow, **measured(arguments, pathlib.Path(folder), netlab)}
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['machine']}; {HOSTS} hosts, {arguments.gbit:g} Gbit/s, {arguments.slow:g} between hosts {SLOW_PAIR[0]} and {SLOW_PAIR[1]}")
    for link, gbit in result["links"].items():
        print(f"{link:<16}{gbit:8.2f} Gbit/s measured")
    for way, value in result["seconds"].items():
        print(f"{way:<16}{value:8.3f} s a step{'  ' + ' '.join(map(str, result['order'])) if way == 'measured order' else ''}")
    print(f"{result['gain']:.2f} x; losses, as metrics.jsonl has them, at most {result['losses_apart']:.1e} apart")
    if result["same_again"] is not None:
        print(f"trained again under the same plan: {'the same' if result['same_again'] else 'other'} losses")


if __name__ == "__main__":
    main()
