"""Trains on four emulated hosts of unequal speed: what measuring them and planning for them gains, and what becomes of a run whose host slows down.

    python bench/unequal/run.py [--bin build/release/bin] [--cpu 0.75,0.5,0.25,0.5] [--gbit 10] [--rounds 1] [--steps 10] [--seconds 60] [--json]

One Llama in fp32 with AdamW, one thread a host. Each host trains alone first, one after the other and then all at once, as emulated hosts share the cores of this
machine: the sum of their rates is what they could reach together if exchanges cost nothing. Then all train under the plan that `parallel: auto` makes from a profile of these hosts, under equal shares, and as PyTorch's DDP with Tessera's allocator, in turns. Last, one of the two
hosts of medium speed is slowed to half in mid-run: how many steps it takes until the ranks go on under another plan, and their rate then beside that of a run that was
planned for the slow host from the start. Medians over the steps, without each run's first two. Needs root (tools/netlab).
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
PARALLEL = ROOT / "bench" / "parallel"
sys.path[:0] = [str(ROOT / "bench"), str(PARALLEL)]
from lab import checked, cluster_of_hosts, netlab_or_exit, planned, profiled, python_on_hosts, train_alone_on_hosts, train_on_hosts  # noqa: E402
from llama import save  # noqa: E402
from machine import processor  # noqa: E402

MODEL = {"hidden": 256, "layers": 8, "heads": 4, "kv_heads": 4, "ffn": 768, "seq": 128, "vocab": 4096}
BATCH = 128
SKIPPED_STEPS = 2
ALONE_BATCH, ALONE_STEPS = 32, 6
SLOWED, SLOWED_AT, LONGEST = 1, 10, 44  # which host, after how many steps, and how many steps there are
TEXT = ROOT / "examples" / "shakespeare" / "shakespeare.txt"
DEGREES = {"dp": 4, "tp": 1, "pp": 1, "zero": 0, "micro_batches": 1}


def numbers(words):
    return [float(word) for word in words.split(",")]


class Bench:
    def __init__(self, arguments, folder, netlab):
        self.tessera, self.folder, self.netlab, self.arguments = os.path.join(arguments.bin, "tessera"), folder, netlab, arguments
        self.environment = dict(os.environ, TESSERA_CACHE=str(folder / "cache"))
        self.weights = folder / "llama"
        save(MODEL, self.weights)

    def job(self, name, hosts, parallel, steps, batch=BATCH):
        """`hosts` of one core each; how fast they are a profile says."""
        cluster = cluster_of_hosts(self.folder / f"{name}-cluster.yaml", hosts, self.arguments.gbit)
        return {"name": name, "model": {"hf": str(self.weights), "seq": MODEL["seq"]}, "data": {"source": str(TEXT), "tokenizer": {"kind": "bytes"}},
                "train": {"init": str(self.weights), "steps": steps, "global_batch": batch, "precision": "fp32", "eval": {"sequences": 1},
                          "optimizer": {"kind": "adamw", "lr": 3e-4, "clip": 1.0}, "schedule": {"kind": "constant"}},
                "cluster": cluster, "parallel": parallel}

    def profile(self, name, cpu):
        words = ",".join(map(str, cpu))
        path = profiled(self.tessera, self.folder / f"{name}-profile.json", self.job(name, len(cpu), {}, 1), self.arguments.seconds, self.environment,
                        {"hosts": len(cpu), "gbit": f"{self.arguments.gbit:g}", "cpu": words})
        print(f"{words}: speeds {json.loads(path.read_text()).get('speeds')}", file=sys.stderr)
        return path

    def plan(self, name, hosts, parallel, profile=None, steps=None):
        paths = planned(self.tessera, self.folder, name, self.job(name, hosts, parallel, steps or self.arguments.steps), self.environment, profile)
        chosen = json.loads(paths[1].read_text())
        print(f"{name}: {json.dumps(chosen['stages'])}, {chosen['micro_batches']} micro-batches, {json.dumps(chosen['predicted'].get('step'))}", file=sys.stderr)
        return paths

    def alone(self, cpu):
        """The rate of each host: all of them at once."""
        paths = planned(self.tessera, self.folder, "alone", self.job("alone", 1, {"dp": 1, "tp": 1, "pp": 1}, ALONE_STEPS, ALONE_BATCH), self.environment)
        with self.netlab.Lab(len(cpu), [0], cpu) as lab:
            seconds = train_alone_on_hosts(lab, self.tessera, *paths, self.folder / "run", ALONE_STEPS, self.environment)
        return [rate(of[SKIPPED_STEPS:], ALONE_BATCH) for of in seconds]

    def train(self, job_and_plan, cpu, run="run"):
        with self.netlab.Lab(len(cpu), [self.arguments.gbit], cpu) as lab:
            return train_on_hosts(lab, self.tessera, *job_and_plan, self.folder / run, self.arguments.steps, self.environment)

    def ddp(self, job_and_plan, cpu):
        batches, spec = self.folder / "batches.jsonl", self.folder / "ddp.json"
        batches.write_text(checked([self.tessera, "data", "batch", job_and_plan[0], "--count", self.arguments.steps, "--json"], self.environment))
        spec.write_text(json.dumps({"way": "ddp", "model": MODEL, "weights": str(self.weights / "model.safetensors"), "batches": str(batches), "micro_batches": 1}))
        with self.netlab.Lab(len(cpu), [self.arguments.gbit], cpu) as lab:
            return json.loads(python_on_hosts(lab, [PARALLEL / "peer.py", spec], self.folder / "peer.log"))["seconds"]

    def slowed(self, job_and_plan, profile, cpu):
        """Trains until some steps after the ranks have taken another plan: the seconds of all steps, and after which one they took it."""
        run = self.folder / "slowed"
        with self.netlab.Lab(len(cpu), [self.arguments.gbit], cpu) as lab:
            def slow():
                metrics = run / "metrics.jsonl"
                while not metrics.exists() or len(metrics.read_text().splitlines()) < SLOWED_AT:
                    time.sleep(0.05)
                lab.hold(SLOWED, cpu[SLOWED] / 2)
            threading.Thread(target=slow, daemon=True).start()
            seconds = train_on_hosts(lab, self.tessera, *job_and_plan, run, LONGEST, self.environment, ["--profile", str(profile)])
        said = re.findall(r"after step (\d+) (rebalanced: .*)", (run / "log.txt").read_text())
        for step, words in said:
            print(f"after step {step} {words}", file=sys.stderr)
        return seconds, [int(step) for step, _ in said]


def rate(seconds, batch=BATCH):
    return batch * MODEL["seq"] / statistics.median(seconds)


def measured(bench, cpu, rounds):
    profile = bench.profile("unequal", cpu)
    later = [share / 2 if host == SLOWED else share for host, share in enumerate(cpu)]
    auto = bench.plan("auto", len(cpu), "auto", profile, LONGEST)
    even = bench.plan("even", len(cpu), DEGREES)
    planned_later = bench.plan("later", len(cpu), "auto", bench.profile("later", later))
    ways = {"planned": lambda: bench.train(auto, cpu), "equal shares": lambda: bench.train(even, cpu), "DDP": lambda: bench.ddp(even, cpu),
            "planned for the slow host": lambda: bench.train(planned_later, later)}
    one_by_one = {share: bench.alone([share])[0] for share in sorted(set(cpu))}
    at_once = []
    seconds = {way: [] for way in ways}
    for turn in range(rounds):
        at_once.append(sum(bench.alone(cpu)))
        print(f"round {turn + 1} of {rounds}, each host alone, all at once: {at_once[-1]:.0f} tokens/s", file=sys.stderr)
        for way, run in ways.items():
            seconds[way] += run()[SKIPPED_STEPS:]
            print(f"round {turn + 1} of {rounds}, {way}: {rate(seconds[way]):.0f} tokens/s", file=sys.stderr)
    rates = {way: rate(of) for way, of in seconds.items()}
    together = {"one by one": sum(one_by_one[share] for share in cpu), "at once": statistics.median(at_once)}
    of_run, changes = bench.slowed(auto, profile, cpu)
    rebalanced = next((step for step in changes if step > SLOWED_AT), None)
    after = rate(of_run[changes[-1] + SKIPPED_STEPS:]) if changes else None
    return {"rates": {**{f"one host of {share:g}": value for share, value in one_by_one.items()}, **rates}, "sum_of_hosts": together, "over_ddp": rates["planned"] / rates["DDP"],
            "steps_until_rebalanced": rebalanced and rebalanced - SLOWED_AT, "rate_before": rate(of_run[SKIPPED_STEPS:SLOWED_AT]),
            "rate_slowed": rebalanced and rate(of_run[SLOWED_AT:rebalanced]), "rate_rebalanced": after, "of_planned_from_the_start": after and after / rates["planned for the slow host"]}


def main():
    parser = argparse.ArgumentParser(prog="./dev bench unequal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--cpu", type=numbers, default=[0.75, 0.5, 0.25, 0.5], help="cores of each host; they are spread over the cores of this machine, each of which must have as much as stands on it")
    parser.add_argument("--gbit", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=60, help="of measuring the hosts, about")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    netlab = netlab_or_exit()
    with tempfile.TemporaryDirectory() as folder:
        result = {"machine": processor(), "cpu": arguments.cpu, "gbit": arguments.gbit, **measured(Bench(arguments, pathlib.Path(folder), netlab), arguments.cpu, arguments.rounds)}
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['machine']}; hosts of {', '.join(map(str, arguments.cpu))} cores, {arguments.gbit:g} Gbit/s; tokens/s")
    for way, value in result["rates"].items():
        print(f"{way:<28}{value:8.0f}")
    for how, value in result["sum_of_hosts"].items():
        print(f"planned: {result['rates']['planned'] / value:.1%} of {value:.0f}, the sum of the hosts alone, {how}")
    print(f"planned: {result['over_ddp']:.2f} x DDP")
    if result["steps_until_rebalanced"]:
        print(f"host {SLOWED} slowed to half: {result['rate_before']:.0f} before, {result['rate_slowed']:.0f} then, after {result['steps_until_rebalanced']} steps rebalanced, "
              f"{result['rate_rebalanced']:.0f}: {100 * result['of_planned_from_the_start']:.1f} % of a run planned for it")
    else:
        print(f"host {SLOWED} slowed to half: not rebalanced")


if __name__ == "__main__":
    main()
