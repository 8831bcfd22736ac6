"""Trains one Llama by each strategy on four emulated hosts, Tessera beside PyTorch's own: tokens/s, their ratio, and whether the losses agree.

    python bench/parallel/run.py [--bin build/release/bin] [--rows ddp,zero-3] [--gbit 1,10] [--rounds 3] [--steps 8] [--json]

Both start from the same weights (a Hugging Face folder) and see the same batches, in fp32, with AdamW and gradients clipped at a norm of 1; pipelines have the same
stages. The two take turns, the one that begins changing with each round; medians over the steps of all rounds, without each run's first two. A difference
of a loss above 1e-4 fails the run. PyTorch's context_parallel() finds no attention for CPUs; its ring attention is given that kernel here, and its programs Tessera's
allocator, jemalloc. Needs root (tools/netlab).
"""
import argparse
import importlib.metadata
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "bench"), str(HERE)]
from lab import netlab_or_exit, planned, python_on_hosts, train_on_hosts  # noqa: E402
from llama import save  # noqa: E402
from machine import processor  # noqa: E402
from rows import HOSTS, ROWS  # noqa: E402
CPU = 0.5
SKIPPED_STEPS = 2
TOLERANCE = 1e-4
DEGREES = {"dp": 1, "tp": 1, "pp": 1, "cp": 1}
TEXT = ROOT / "examples" / "shakespeare" / "shakespeare.txt"


class Side:
    """What both sides of a row have measured."""

    def __init__(self):
        self.seconds, self.losses = [], []

    def add(self, seconds, losses):
        self.seconds += seconds[SKIPPED_STEPS:]
        self.losses = losses


class Bench:
    def __init__(self, arguments, folder):
        self.tessera, self.steps, self.folder = os.path.join(arguments.bin, "tessera"), arguments.steps, folder
        self.environment = dict(os.environ, TESSERA_CACHE=str(folder / "cache"))

    def prepare(self, row, gbit):
        """The job and the plan of Tessera, and what the peer reads."""
        weights = self.folder / f"llama-{row.seq}"
        if not weights.exists():
            save(row.model, weights)
        name = f"{row.way}-{gbit:g}"
        job = {"name": name, "model": {"hf": str(weights), "seq": row.seq}, "data": {"source": str(TEXT), "tokenizer": {"kind": "bytes"}},
               "train": {"init": str(weights), "steps": self.steps, "global_batch": row.batch, "precision": "fp32", "seed": 3, "eval": {"sequences": 1},
                         "optimizer": {"kind": "adamw", "lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1, "clip": 1.0}, "schedule": {"kind": "constant"}},
               "cluster": {"lab": {"hosts": HOSTS, "gbit": gbit, "cpu": CPU}}, "parallel": {**DEGREES, **row.parallel}}
        job, plan = planned(self.tessera, self.folder, name, job, self.environment)
        batches = self.folder / f"{name}.jsonl"
        done = subprocess.run([self.tessera, "data", "batch", job, "--count", str(self.steps), "--json"], capture_output=True, text=True, env=self.environment)
        if done.returncode:
            sys.exit(done.stderr)
        batches.write_text(done.stdout)
        stages = json.loads(plan.read_text())["stages"]
        cuts = [stage["blocks"][0]["first"] for stage in stages] + [stages[-1]["blocks"][-1]["last"]]
        spec = self.folder / f"{name}-peer.json"
        spec.write_text(json.dumps({"way": row.way, "model": row.model, "weights": str(weights / "model.safetensors"), "batches": str(batches),
                                    "micro_batches": row.parallel["micro_batches"], "cuts": cuts}))
        return job, plan, spec

    def ours(self, lab, job, plan):
        run = self.folder / "run"
        seconds = train_on_hosts(lab, self.tessera, job, plan, run, self.steps, self.environment)
        return seconds, [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]

    def theirs(self, lab, spec):
        out = json.loads(python_on_hosts(lab, [HERE / "peer.py", spec], self.folder / "peer.log"))
        return out["seconds"], out["losses"]

    def measure(self, netlab, row, gbit, rounds):
        job, plan, spec = self.prepare(row, gbit)
        sides = {"tessera": Side(), "pytorch": Side()}
        for turn in range(rounds):
            for name in list(sides)[::1 if turn % 2 == 0 else -1]:
                with netlab.Lab(HOSTS, [gbit], [CPU] * HOSTS) as lab:
                    sides[name].add(*(self.ours(lab, job, plan) if name == "tessera" else self.theirs(lab, spec)))
                print(f"round {turn + 1} of {rounds}, {gbit:g} Gbit/s, {row.way}, {name}: {statistics.median(sides[name].seconds):.3f} s", file=sys.stderr)
        difference = max(abs(a / b - 1) for a, b in zip(sides["tessera"].losses, sides["pytorch"].losses, strict=True))
        rates = {name: row.batch * row.seq / statistics.median(side.seconds) for name, side in sides.items()}
        return {"gbit": gbit, "row": row.way, "ours": row.ours, "theirs": row.theirs, "tessera": rates["tessera"], "pytorch": rates["pytorch"],
                "ratio": rates["tessera"] / rates["pytorch"], "loss_difference": difference, "seconds": {name: side.seconds for name, side in sides.items()}}


def versions(tessera):
    first = subprocess.run([tessera, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    return {"tessera": first, "torch": importlib.metadata.version("torch"), "python": sys.version.split()[0]}


def show(result):
    print(f"{result['machine']}; {HOSTS} hosts of {CPU} cores; " + ", ".join(f"{name} {version}" for name, version in result["versions"].items()))
    print(f"{'Gbit/s':>6}  {'Tessera':<30}{'tokens/s':>9}  {'PyTorch':<56}{'tokens/s':>9}{'ratio':>7}{'losses':>10}")
    for row in result["rows"]:
        print(f"{row['gbit']:>6g}  {row['ours']:<30}{row['tessera']:>9.0f}  {row['theirs']:<56}{row['pytorch']:>9.0f}{row['ratio']:>7.2f}{row['loss_difference']:>10.1e}")
    print(f"geometric mean of the ratios {result['geometric_mean']:.3f}, least {min(row['ratio'] for row in result['rows']):.3f}")


def main():
    parser = argparse.ArgumentParser(prog="./dev bench parallel", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--rows", type=lambda words: words.split(","), default=[row.way for row in ROWS], help=", ".join(row.way for row in ROWS))
    parser.add_argument("--gbit", type=lambda words: [float(word) for word in words.split(",")], default=[1.0, 10.0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if unknown := set(arguments.rows) - {row.way for row in ROWS}:
        parser.error(f"no row is called {', '.join(unknown)}: {', '.join(row.way for row in ROWS)}")
    netlab = netlab_or_exit()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, pathlib.Path(folder))
        rows = [bench.measure(netlab, row, gbit, arguments.rounds) for gbit in arguments.gbit for row in ROWS if row.way in arguments.rows]
        result = {"machine": processor(), "versions": versions(bench.tessera), "geometric_mean": statistics.geometric_mean(row["ratio"] for row in rows), "rows": rows}
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result)
    if bad := [row["row"] for row in rows if not row["loss_difference"] <= TOLERANCE]:
        sys.exit(f"the losses of both sides differ: {', '.join(bad)}")


if __name__ == "__main__":
    main()
