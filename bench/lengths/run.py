"""Trains on batches of very different lengths, on four emulated hosts, with context-parallel groups that fit each batch and with one fixed degree.

    python bench/lengths/run.py [--bin build/release/bin] [--rounds 2] [--steps 6] [--gbit 1] [--cpu 0.45] [--tokens 1024] [--lengths WORDS] [--keep FOLDER] [--json]

A rank holds --tokens at once, so that the longest samples (4096) need several ranks; fixed degrees are all that hold them. Both exchange by ring and by Ulysses, pack samples alike and train on
the same batches in turns. Passes are priced from a profile of the same hosts. The ratio is that of the faster of each, medians over all rounds' steps without each run's first three. Losses of the first step must agree within 1e-4.
"auto" is what `parallel: auto` plans with all of the hosts' memory. The error of its prediction is that of each step's own batch, as the median of these steps.
Needs root (tools/netlab).
"""
import argparse
import json
import math
import os
import pathlib
import random
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from lab import checked, netlab_or_exit, planned, profiled, train_on_hosts  # noqa: E402
from machine import processor  # noqa: E402
HOSTS, LONGEST = 4, 4096
MODEL = {"arch": "llama", "hidden": 256, "layers": 4, "heads": 4, "kv_heads": 4, "ffn": 768, "seq": LONGEST, "vocab": 1024}
# With samples of a batch, and whether the geometric mean counts them: of uniform lengths three quarters of the tokens need all ranks, however they are dealt.
SHORT_AND_LONG = "1 to 1024, one in 50 of 4096"
LENGTHS = {"lognormal, median 128": (32, True, {"source": "synthetic", "lengths": {"kind": "lognormal", "median": 128}}),
           "Pareto, median 128": (32, True, {"source": "synthetic", "lengths": {"kind": "pareto", "median": 128}}),
           SHORT_AND_LONG: (32, True, {"source": "texts.jsonl", "tokenizer": {"kind": "bytes"}, "lengths": "documents", "split": {"train": 1.0}}),
           "uniform to 4096": (8, False, {"source": "synthetic", "lengths": {"kind": "uniform"}})}
SKIPPED_STEPS = 3  # in which memory grows to what the largest passes need
# What of an `auto` plan's prediction does not depend on the samples.
ONCE_PER_STEP = "gradients, optimizer"


AUTO = ("auto",)


def words(way):
    return "auto" if way == AUTO else f"{way[0]}, cp {way[1]}, {way[2]}"


def write_texts(path):
    """Documents of SHORT_AND_LONG, a token for each letter."""
    drawn = random.Random(1)
    lengths = [LONGEST if drawn.random() < 1 / 50 else drawn.randint(1, 1024) for _ in range(2000)]
    path.write_text("".join(json.dumps({"text": "".join(drawn.choices("abcdefgh ", k=length))}) + "\n" for length in lengths))


class Bench:
    def __init__(self, arguments, folder):
        self.arguments, self.folder, self.tessera = arguments, folder, os.path.join(arguments.bin, "tessera")
        self.environment = dict(os.environ, TESSERA_CACHE=str(folder / "cache"))
        degrees = [("flexible", HOSTS)] + [("fixed", cp) for cp in (2, 4) if cp * arguments.tokens >= LONGEST]
        self.ways = [(groups, cp, context) for groups, cp in degrees for context in ("ring", "ulysses")]

    def job(self, lengths, groups, cp=1, context=None):
        # Micro-batches of as many samples of the full length as a rank has room for.
        samples = self.arguments.tokens * cp // LONGEST
        batch, _, data = LENGTHS[lengths]
        parallel = "auto" if groups == "auto" else {"dp": HOSTS // cp, "pp": 1, "tp": 1, "cp": cp, "context": context, "zero": 0, "recompute": "none",
                    "micro_batches": batch // (HOSTS // cp) // samples, "context_groups": groups}
        return {"name": "lengths", "model": MODEL, "data": data, "parallel": parallel,
                "train": {"steps": 1, "global_batch": batch, "precision": "fp32", "eval": {"sequences": 1}},
                "cluster": {"lab": {"hosts": HOSTS, "gbit": self.arguments.gbit, "cpu": self.arguments.cpu}}}

    def plan(self, lengths, way):
        job = self.job(lengths, *way)
        # Passes over samples of different lengths are priced by those of one sample.
        single = {**job, "train": {**job["train"], "global_batch": HOSTS}}
        profile = profiled(self.tessera, self.folder / "profile.json", single, self.arguments.seconds, self.environment)
        return planned(self.tessera, self.folder, "-".join(map(str, (lengths.split(" ")[0].strip(","), *way))), job, self.environment, profile)

    def row(self, netlab, lengths):
        ways = [*self.ways, AUTO]
        plans = {way: self.plan(lengths, way) for way in ways}
        seconds, losses = {way: [] for way in ways}, {}
        for turn in range(self.arguments.rounds):
            for way in ways:
                run = self.folder / "run"
                with netlab.Lab(HOSTS, [self.arguments.gbit], [self.arguments.cpu] * HOSTS) as lab:
                    seconds[way] += train_on_hosts(lab, self.tessera, *plans[way], run, self.arguments.steps, self.environment)[SKIPPED_STEPS:]
                losses[way] = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["loss"]
                print(f"round {turn + 1} of {self.arguments.rounds}, {lengths}, {words(way)}: {statistics.median(seconds[way]):.3f} s", file=sys.stderr)
        medians = {way: statistics.median(values) for way, values in seconds.items()}
        flexible, fixed = (min((way for way in self.ways if (way[0] == "fixed") == is_fixed), key=medians.get) for is_fixed in (False, True))
        chosen = json.loads(plans[AUTO][1].read_text())
        dealt, own = (json.loads(checked([os.path.join(self.arguments.bin, "tessera_bench_lengths"), *plans[way]], self.environment)) for way in (flexible, AUTO))
        once = sum(part["seconds"] for part in chosen["predicted"]["parts"] if part["name"] == ONCE_PER_STEP)
        predicted = [seconds + once for seconds in own[0]["seconds"][SKIPPED_STEPS:self.arguments.steps]]
        error = statistics.median(one / seconds[AUTO][i] - 1 for i, one in enumerate(predicted * self.arguments.rounds))
        return {"lengths": lengths, "error": error, "seconds": {words(way): medians[way] for way in ways},
                "auto": f"cp {chosen['stages'][0]['blocks'][0].get('cp', 1)}, {chosen['micro_batches']} micro-batches", "flexible": words(flexible), "fixed": words(fixed), "ratio": medians[fixed] / medians[flexible],
                "loss_difference": max(abs(losses[way] / losses[flexible] - 1) for way in self.ways), "dealt": dealt}


def geometric_mean(ratios):
    return math.exp(statistics.mean(map(math.log, ratios))) if ratios else None


def show(result):
    print(f"{result['machine']}, {HOSTS} hosts of {result['cpu']} cores, {result['gbit']:g} Gbit/s, {result['tokens']} tokens a rank at once; seconds of a step")
    print(f"{'lengths':<30}{'flexible':>10}{'fixed':>10}{'ratio':>8}{'losses differ':>15}{'dealing':>10}{'over bound':>12}{'512 on 64':>12}{'auto':>10}{'error':>9}   fastest")
    for row in result["rows"]:
        own, many = row["dealt"]
        print(f"{row['lengths']:<30}{row['seconds'][row['flexible']]:10.3f}{row['seconds'][row['fixed']]:10.3f}{row['ratio']:8.2f}{row['loss_difference']:15.1e}{own['milliseconds']:>7.2f} ms{own['over_bound']:12.3f}{many['milliseconds']:>9.2f} ms{row['seconds']['auto']:10.3f}{row['error']:9.1%}   {row['flexible']}; {row['fixed']}; auto: {row['auto']}")
    if result["geometric_mean"]:
        print(f"geometric mean of the ratios without uniform lengths: {result['geometric_mean']:.2f}, of all: {result['of_all']:.2f}")


def main():
    parser = argparse.ArgumentParser(prog="./dev bench lengths", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--gbit", type=float, default=1)
    parser.add_argument("--cpu", type=float, default=0.45, help="cores of each host")
    parser.add_argument("--tokens", type=int, choices=(1024, 2048), default=1024, help="that a rank holds at once")
    parser.add_argument("--lengths", default="", help="only the distributions whose names have these words")
    parser.add_argument("--seconds", type=int, default=60, help="that the profile of `auto` takes, or as long as each pass twice")
    parser.add_argument("--keep", type=pathlib.Path, help="leave the plans and the last run in this folder")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    netlab = netlab_or_exit()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.keep or pathlib.Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        write_texts(folder / "texts.jsonl")
        bench = Bench(arguments, folder)
        rows = [bench.row(netlab, lengths) for lengths in LENGTHS if arguments.lengths in lengths]
    result = {"machine": processor(), "cpu": arguments.cpu, "gbit": arguments.gbit, "tokens": arguments.tokens, "rows": rows,
              "geometric_mean": geometric_mean([row["ratio"] for row in rows if LENGTHS[row["lengths"]][1]]), "of_all": geometric_mean([row["ratio"] for row in rows])}
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result)
    if any(row["loss_difference"] > 1e-4 for row in rows):
        sys.exit("the losses of the first steps differ by more than 1e-4")


if __name__ == "__main__":
    main()
