"""Trains a model of clicks on emulated hosts of unequal speed, whose ranks also hold its tables: what planning for all of them gains over the fast or the slow ones alone.

    python bench/mixed/run.py [--bin build/release/bin] [--fast 0.8] [--slow 0.4,0.4] [--gbit 10] [--rounds 3] [--steps 14] [--consistency synchronous] [--json]

DeepFM in fp32 on a log of examples/clicks, AdaGrad on rows, AdamW on the rest, one thread a rank. Servers share the CPU time of their host with its rank. Where the model trains:

  fast alone    on the fast hosts
  slow alone    on the slow hosts
  planned       on all hosts
  equal shares  on all hosts, every rank with as many samples, a server on each

The first three are planned by `parallel: auto` from a profile of their hosts: the shares of the batch, which hosts serve, and with how many threads. They run in turns; a rate is that of the median
step of all rounds, without each run's first two. Fast hosts together are as fast as slow ones together by default, so that twice the rate of either is all there is to gain. Needs root (tools/netlab).
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
from lab import checked, cluster_of_hosts, netlab_or_exit, planned, profiled, train_on_hosts  # noqa: E402
from machine import processor  # noqa: E402

TABLES, DIM, DENSE, LINES = 26, 8, 13, 100_000
SKIPPED_STEPS = 2
FAST, SLOW, PLANNED, EVEN = "fast alone", "slow alone", "planned", "equal shares"


def numbers(words):
    return [float(word) for word in words.split(",")]


def whole_numbers(words):
    return [int(word) for word in words.split(",")]


def said(plan):
    """A plan in words."""
    def of(stage):
        run = stage["blocks"][0]
        shares = ", ".join(str(part["samples"]) for part in stage.get("shares", []))
        return f"blocks {run['first']} to {stage['blocks'][-1]['last'] - 1} on ranks {stage['ranks']}, dp {run['dp']}, zero {run['zero']}, {f'samples {shares}' if shares else 'equal shares'}"
    servers = ", ".join(f"{server['threads']} with rank {server['rank']}" for server in plan["servers"])
    return f"{'; '.join(map(of, plan['stages']))}; {plan['micro_batches']} micro-batches of a replica; servers: {servers}; {plan['predicted']['step_seconds']:.3f} s predicted"


class Bench:
    def __init__(self, arguments, folder, netlab):
        self.tessera, self.folder, self.netlab, self.arguments = os.path.join(arguments.bin, "tessera"), folder, netlab, arguments
        self.environment = dict(os.environ, TESSERA_CACHE=str(folder / "cache"))
        self.cpu = arguments.fast + arguments.slow
        self.fast, self.slow = list(range(len(arguments.fast))), list(range(len(arguments.fast), len(self.cpu)))
        self.log = folder / "clicks.tsv"
        checked([sys.executable, ROOT / "examples" / "clicks" / "make_clicks.py", self.log, "--lines", LINES], self.environment)

    def job(self, name, hosts, parallel):
        arguments = self.arguments
        return {"name": name, "model": {"arch": "deepfm", "tables": TABLES, "dim": DIM, "dense": DENSE, "hidden": arguments.hidden},
                "data": {"source": str(self.log), "format": "criteo", "split": {"train": 0.95}},
                "train": {"steps": arguments.steps, "global_batch": arguments.batch, "precision": "fp32", "eval": {"sequences": 1}, "schedule": {"kind": "constant"},
                          "optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0, "clip": 0}},
                "parameter_servers": {"optimizer": {"kind": "adagrad", "lr": 0.02}, "consistency": arguments.consistency},
                "cluster": cluster_of_hosts(self.folder / f"{name}-cluster.yaml", hosts, arguments.gbit), "parallel": parallel}

    def plan(self, way, hosts, parallel="auto"):
        """The paths of the job and of its plan."""
        name, profile = way.replace(" ", "-"), None
        job = self.job(name, len(hosts), parallel)
        if parallel == "auto":
            cpu = ",".join(f"{self.cpu[host]:g}" for host in hosts)
            profile = profiled(self.tessera, self.folder / f"{name}-profile.json", job, self.arguments.seconds, self.environment,
                               {"hosts": len(hosts), "gbit": f"{self.arguments.gbit:g}", "cpu": cpu})
            print(f"hosts of {cpu}: speeds {json.loads(profile.read_text()).get('speeds', 'alike')}", file=sys.stderr)
        paths = planned(self.tessera, self.folder, name, job, self.environment, profile)
        print(f"{way}: {said(json.loads(paths[1].read_text()))}", file=sys.stderr)
        return paths

    def train(self, paths, hosts):
        """Seconds of the steps."""
        with self.netlab.Lab(len(self.cpu), [self.arguments.gbit], self.cpu) as lab:
            return train_on_hosts(lab, self.tessera, *paths, self.folder / "run", self.arguments.steps, self.environment, hosts=hosts)


def measured(bench, arguments):
    everyone = bench.fast + bench.slow
    plans = {FAST: bench.plan(FAST, bench.fast), SLOW: bench.plan(SLOW, bench.slow), PLANNED: bench.plan(PLANNED, everyone),
             EVEN: bench.plan(EVEN, everyone, {"dp": len(everyone), "tp": 1, "pp": 1, "zero": 0, "micro_batches": 1})}
    where = {FAST: bench.fast, SLOW: bench.slow, PLANNED: everyone, EVEN: everyone}
    seconds = {way: [] for way in plans}
    for turn in range(arguments.rounds):
        for way in plans:
            seconds[way] += bench.train(plans[way], where[way])[SKIPPED_STEPS:]
            print(f"round {turn + 1} of {arguments.rounds}, {way}: {arguments.batch / statistics.median(seconds[way]):.0f} samples/s", file=sys.stderr)
    steps = {way: statistics.median(of) for way, of in seconds.items()}
    predicted = {way: json.loads(paths[1].read_text())["predicted"]["step_seconds"] for way, paths in plans.items() if way != EVEN}
    best = min(steps[FAST], steps[SLOW])
    return {"rates": {way: arguments.batch / step for way, step in steps.items()}, "over_best_homogeneous": {way: best / step for way, step in steps.items()},
            "predicted_over_measured": {way: step / steps[way] for way, step in predicted.items()},
            "speeds": json.loads((bench.folder / f"{PLANNED}-profile.json").read_text()).get("speeds"),
            "plans": {way: said(json.loads(paths[1].read_text())) for way, paths in plans.items()}}


def main():
    parser = argparse.ArgumentParser(prog="./dev bench mixed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--fast", type=numbers, default=[0.8], help="cores of each fast host")
    parser.add_argument("--slow", type=numbers, default=[0.4, 0.4], help="cores of each slow host")
    parser.add_argument("--gbit", type=float, default=10)
    parser.add_argument("--batch", type=int, default=3072, help="which the number of hosts divides")
    parser.add_argument("--hidden", type=whole_numbers, default=[1024, 512, 256], help="widths of the dense maps")
    parser.add_argument("--consistency", choices=["synchronous", "asynchronous"], default="synchronous", help="of the tables")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--seconds", type=int, default=30, help="of measuring the hosts of each of the three placements, about")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the log, the runs, and the profiles, which are used again")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    netlab = netlab_or_exit()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.keep or pathlib.Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        result = {"machine": processor(), "fast": arguments.fast, "slow": arguments.slow, "gbit": arguments.gbit, "hidden": arguments.hidden, "batch": arguments.batch,
                  "consistency": arguments.consistency, **measured(Bench(arguments, folder, netlab), arguments)}
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['machine']}; fast hosts of {', '.join(map(str, arguments.fast))} cores, slow ones of {', '.join(map(str, arguments.slow))}, {arguments.gbit:g} Gbit/s; "
          f"DeepFM with maps of {', '.join(map(str, arguments.hidden))}, batch {arguments.batch}, {arguments.consistency} tables; samples/s")
    for way, rate in result["rates"].items():
        predicted = result["predicted_over_measured"].get(way)
        words = f"   (predicted {predicted:.2f} x the measured step)" if predicted else ""
        print(f"{way:<14}{rate:8.0f}{result['over_best_homogeneous'][way]:7.2f} x the best homogeneous placement{words}")
    print(f"speeds that the profile found: {result['speeds'] or 'alike'}")
    for way, words in result["plans"].items():
        print(f"{way}: {words}")


if __name__ == "__main__":
    main()
