"""Trains on four emulated hosts of which two are joined by a slow link: under the order of ranks that measuring the links gives, and in order of their numbers.

    python bench/order/run.py [--bin build/release/bin] [--gbit 2] [--slow 0.2] [--rounds 2] [--steps 8] [--seconds 20] [--drift] [--json]

One Llama in fp32 with AdamW, data parallel over the four hosts, one thread each. `tessera profile` measures the link of every two hosts; the plan made from that profile has
the ranks of its stage in the order of the best ring. The other plan is the same file with the ranks in ascending order. Both train in turns, in the same lab; medians over
the steps, without each run's first two. The losses of both are compared, and those of the same plan trained twice. With --drift all links are fast when the hosts are measured, and the
link becomes slow in mid-run: how long steps take until then, until the ranks go on in another order, and from then on, beside those of a run that was planned for the slow link from
its start; and whether the losses are those of a run that nothing happened to. Needs root (tools/netlab).
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "parallel")]
from lab import checked, cluster_of_hosts, netlab_or_exit, planned, train_on_hosts  # noqa: E402
from llama import save  # noqa: E402
from machine import processor  # noqa: E402

MODEL = {"hidden": 256, "layers": 4, "heads": 4, "kv_heads": 4, "ffn": 768, "seq": 64, "vocab": 4096}
BATCH, HOSTS, SLOW_PAIR = 8, 4, (0, 1)
SKIPPED_STEPS = 2
SLOWED_AT, LONGEST = 30, 60  # after how many steps the link becomes slow, and how many there are
TEXT = ROOT / "examples" / "shakespeare" / "shakespeare.txt"


def profiled(arguments, folder, name, slow):
    """Measures the hosts, with the slow link or without: the job, its profile, and Gbit/s of each link."""
    environment = dict(os.environ, TESSERA_CACHE=str(folder / "cache"))
    weights = folder / "llama"
    if not weights.exists():
        save(MODEL, weights)
    job = {"name": "order", "model": {"hf": str(weights), "seq": MODEL["seq"]}, "data": {"source": str(TEXT), "tokenizer": {"kind": "bytes"}},
           "train": {"init": str(weights), "steps": arguments.steps, "global_batch": BATCH, "precision": "fp32", "eval": {"sequences": 1},
                     "optimizer": {"kind": "adamw", "lr": 3e-4, "clip": 1.0}, "schedule": {"kind": "constant"}},
           "cluster": cluster_of_hosts(folder / "cluster.yaml", HOSTS, arguments.gbit)}
    yaml, profile = folder / f"{name}-profile.yaml", folder / f"{name}-profile.json"
    yaml.write_text(json.dumps(job))
    pair = f"--pair {SLOW_PAIR[0]}-{SLOW_PAIR[1]}:{arguments.slow:g} " if slow else ""
    launcher = f"{sys.executable} {ROOT / 'tools' / 'netlab'} --hosts {HOSTS} --gbit {arguments.gbit:g} {pair}--"
    checked([os.path.join(arguments.bin, "tessera"), "profile", yaml, "--seconds", arguments.seconds, "--launcher", launcher, "-o", profile], environment)
    links = {sample["link"]: sample["bandwidth"] * 8e-9 for sample in json.loads(profile.read_text())["communication"] if ":" in sample["link"]}
    job["parallel"] = {"dp": HOSTS, "tp": 1, "pp": 1, "zero": 0, "micro_batches": 1}
    return job, profile, links


def losses_of(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def measured(arguments, folder, netlab):
    tessera, environment = os.path.join(arguments.bin, "tessera"), dict(os.environ, TESSERA_CACHE=str(folder / "cache"))
    job, profile, links = profiled(arguments, folder, "order", True)
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
                losses[way].append(losses_of(run))
                print(f"round {turn + 1} of {arguments.rounds}, {way}: {statistics.median(seconds[way]):.3f} s", file=sys.stderr)
    medians = {way: statistics.median(of) for way, of in seconds.items()}
    apart = max(abs(a - b) for a, b in zip(losses["measured order"][0], losses["ascending"][0]))
    return {"links": links, "order": order, "seconds": medians, "gain": medians["ascending"] / medians["measured order"],
            "losses_apart": apart, "same_again": all(of[0] == other for of in losses.values() for other in of[1:]) if arguments.rounds > 1 else None}


def drifted(arguments, folder, netlab):
    """The link becomes slow in mid-run, after the hosts were measured and the plan was made."""
    tessera, environment = os.path.join(arguments.bin, "tessera"), dict(os.environ, TESSERA_CACHE=str(folder / "cache"))
    job, profile, _ = profiled(arguments, folder, "fast", False)
    job["train"]["steps"] = LONGEST
    path, plan = planned(tessera, folder, "drift", job, environment, profile)
    later, slow_profile, links = profiled(arguments, folder, "slow", True)
    later_path, later_plan = planned(tessera, folder, "later", later, environment, slow_profile)
    orders = [json.loads(file.read_text())["stages"][0]["ranks"] for file in (plan, later_plan)]
    print(f"{links}: orders {orders}", file=sys.stderr)
    run = folder / "drift-run"

    def train(path, plan, steps, *more, pairs=None, drifts=False):
        with netlab.Lab(HOSTS, [arguments.gbit], pairs=pairs) as lab:
            def slow():
                while not (run / "metrics.jsonl").exists() or len(losses_of(run)) < SLOWED_AT:
                    time.sleep(0.05)
                lab.slow(*SLOW_PAIR, arguments.slow)
            if drifts:
                threading.Thread(target=slow, daemon=True).start()
            seconds = train_on_hosts(lab, tessera, path, plan, run, steps, environment, more)
        return seconds, losses_of(run)
    calm, calm_losses = train(path, plan, LONGEST)
    from_start, _ = train(later_path, later_plan, arguments.steps, pairs={SLOW_PAIR: arguments.slow})
    seconds, losses = train(path, plan, LONGEST, "--profile", str(profile), drifts=True)
    said = [line.split(" info: ")[-1] for line in (run / "log.txt").read_text().splitlines() if re.search(r"after step \d+ ", line)]
    for line in said:
        print(line, file=sys.stderr)
    changed = next((int(found[1]) for line in said if (found := re.match(r"after step (\d+) rebalanced", line))), None)
    if changed is None:
        sys.exit(f"the ranks went on in their order:\n{(run / 'log.txt').read_text()}")
    return {"links": links, "orders": [*orders[:1], json.loads((run / "plan.json").read_text())["stages"][0]["ranks"]], "said": said, "steps_until_changed": changed - SLOWED_AT,
            "seconds": {"before": statistics.median(seconds[SKIPPED_STEPS:SLOWED_AT]), "slow": statistics.median(seconds[SLOWED_AT + 1:changed]),
                        "after the change": statistics.median(seconds[changed + SKIPPED_STEPS:]), "planned for it": statistics.median(from_start[SKIPPED_STEPS:]),
                        "all links fast": statistics.median(calm[SKIPPED_STEPS:])},
            "losses_apart": max(abs(a - b) for a, b in zip(losses, calm_losses))}


def main():
    parser = argparse.ArgumentParser(prog="./dev bench order", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--gbit", type=float, default=2, help="of every host")
    parser.add_argument("--slow", type=float, default=0.2, help="Gbit/s between hosts 0 and 1")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=20, help="of measuring the hosts, about")
    parser.add_argument("--drift", action="store_true", help="the link becomes slow in mid-run")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    netlab = netlab_or_exit()
    with tempfile.TemporaryDirectory() as folder:
        result = {"machine": processor(), "gbit": arguments.gbit, "slow": arguments.slow, **(drifted if arguments.drift else measured)(arguments, pathlib.Path(folder), netlab)}
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['machine']}; {HOSTS} hosts, {arguments.gbit:g} Gbit/s, {arguments.slow:g} between hosts {SLOW_PAIR[0]} and {SLOW_PAIR[1]}")
    for link, gbit in result["links"].items():
        print(f"{link:<16}{gbit:8.2f} Gbit/s measured")
    if arguments.drift:
        for what, value in result["seconds"].items():
            print(f"{what:<16}{value:8.3f} s a step")
        print("\n".join(result["said"]))
        print(f"another order after {result['steps_until_changed']} steps; losses, as metrics.jsonl has them, at most {result['losses_apart']:.1e} apart from those of a run whose links stayed fast")
        return
    for way, value in result["seconds"].items():
        print(f"{way:<16}{value:8.3f} s a step{'  ' + ' '.join(map(str, result['order'])) if way == 'measured order' else ''}")
    print(f"{result['gain']:.2f} x; losses, as metrics.jsonl has them, at most {result['losses_apart']:.1e} apart")
    if result["same_again"] is not None:
        print(f"trained again under the same plan: {'the same' if result['same_again'] else 'other'} losses")


if __name__ == "__main__":
    main()
