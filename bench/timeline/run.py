"""Holds the simulated timeline of a step against the measured one, instruction by instruction, over plans that the trainer runs.

    python bench/timeline/run.py [--bin build/release/bin] [--rounds 3] [--seconds 20] [--plans WORDS] [--picture FILE.png] [--json]

Measures a profile, then trains every plan in turn in each round; a trace holds a run's last eight steps. Durations and starts are medians over the steps of all
rounds. Communication counts from when all who take part have come to it; an optimizer's step with the norm and the clearing of gradients, as in a profile.
The picture shows the plan whose label --show names, both timelines one above the other.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from compare import errors_of, figures_of, median_of, steps_of  # noqa: E402
from machine import processor  # noqa: E402
from picture import draw  # noqa: E402

MODEL = {"arch": "llama", "hidden": 256, "layers": 6, "heads": 4, "kv_heads": 4, "ffn": 768, "seq": 128, "vocab": 2048}
TEXT = ROOT / "examples" / "shakespeare" / "shakespeare.txt"
STEPS = 11  # of which the trace has the last eight
# Workers, threads of each, and what is not the default.
PLANS = {"one worker": (1, 2, {}), "recompute": (1, 2, {"micro_batches": 2, "recompute": "full"}), "dp 2": (2, 1, {"dp": 2}),
         "dp 2 zero 1": (2, 1, {"dp": 2, "zero": 1}), "tp 2": (2, 1, {"tp": 2}), "pp 2 1f1b": (2, 1, {"pp": 2, "micro_batches": 4}),
         "pp 2 gpipe": (2, 1, {"pp": 2, "micro_batches": 4, "schedule": "gpipe"}),
         "pp 2 zb-h1": (2, 1, {"pp": 2, "micro_batches": 4, "schedule": "zb-h1"}),
         "pp 2 zb-h2": (2, 1, {"pp": 2, "micro_batches": 4, "schedule": "zb-h2"}),
         "pp 2 recompute": (2, 1, {"pp": 2, "micro_batches": 4, "recompute": "full"}),
         "pp 2 dp 2": (4, 1, {"pp": 2, "dp": 2, "micro_batches": 4})}
DEFAULTS = {"dp": 1, "pp": 1, "tp": 1, "zero": 0, "micro_batches": 1, "schedule": "1f1b", "recompute": "none"}


def checked(words, environment, folder=None):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


class Bench:
    def __init__(self, arguments, folder):
        self.tessera = os.path.join(arguments.bin, "tessera")
        self.folder, self.seconds = folder, arguments.seconds
        self.environment = dict(os.environ, TESSERA_CACHE=str(folder / "cache"))
        self.profiles = {}

    def job(self, label):
        workers, threads, degrees = PLANS[label]
        path = self.folder / "job.yaml"
        path.write_text(json.dumps({
            "name": "job", "model": MODEL, "data": {"source": str(TEXT), "tokenizer": {"kind": "bpe", "vocab": MODEL["vocab"]}},
            "train": {"steps": STEPS, "global_batch": 8, "precision": "fp32", "optimizer": {"kind": "adamw", "lr": 3e-4}, "eval": {"sequences": 1}},
            "cluster": {"local": {"devices": workers, "threads": threads}}, "parallel": {**DEFAULTS, **degrees}}))
        return path

    def profile(self, label):
        workers = PLANS[label][:2]
        if workers not in self.profiles:
            self.profiles[workers] = self.folder / f"profile-{workers[0]}-{workers[1]}.json"
            checked([self.tessera, "profile", self.job(label), "--seconds", self.seconds, "-o", self.profiles[workers]], self.environment)
        return self.profiles[workers]

    def simulated(self, label):
        plan, trace = self.folder / "plan.json", self.folder / "simulated.json"
        profile = self.profile(label)
        checked([self.tessera, "plan", self.job(label), "--profile", profile, "-o", plan], self.environment)
        checked([self.tessera, "simulate", self.job(label), "--plan", plan, "--profile", profile, "--trace", trace], self.environment)
        return plan, json.loads(trace.read_text())

    def measured(self, label, plan):
        checked([self.tessera, "train", self.job(label), "--set", f"parallel={plan}", "--overwrite", "--json"], self.environment, self.folder)
        return json.loads((self.folder / "runs" / "job" / "trace.json").read_text())


def compared(arguments, folder):
    """{label: (simulated, measured, one trace of each)}, the two as compare.figures_of says."""
    bench = Bench(arguments, folder)
    labels = [label for label in PLANS if arguments.plans in label]
    plans, simulated, steps, traces = {}, {}, {label: [] for label in labels}, {}
    for label in labels:
        plan, trace = bench.simulated(label)
        plans[label] = plan.rename(folder / f"{label.replace(' ', '-')}.json")
        simulated[label], traces[label] = figures_of(steps_of(trace)[0]), [trace]
    for turn in range(arguments.rounds):
        for label in labels:
            trace = bench.measured(label, plans[label])
            steps[label] += [figures_of(ranks) for ranks in steps_of(trace).values()]
            traces[label] = [traces[label][0], trace]
            print(f"round {turn + 1} of {arguments.rounds}: {label}", file=sys.stderr)
    return {label: (simulated[label], median_of(steps[label]), traces[label]) for label in labels}


def typical(trace, figures):
    """The step of a trace whose length is nearest the median."""
    return min(steps_of(trace).values(), key=lambda ranks: abs(figures_of(ranks)["step"] - figures["step"]))


def row_of(label, simulated, measured):
    whole = {key: {"simulated_s": simulated[key], "measured_s": measured[key]} for key in ("step", "waits", "exposed")}
    return {"plan": label, **whole, "kinds": errors_of(simulated, measured)}


def show(rows):
    for row in rows:
        step = row["step"]
        print(f"\n{row['plan']}: step {step['simulated_s'] * 1e3:.0f} ms simulated, {step['measured_s'] * 1e3:.0f} ms measured "
              f"({step['simulated_s'] / step['measured_s'] - 1:+.1%})")
        for key, words in (("waits", "waiting without computing"), ("exposed", "of it, exposed communication")):
            a, b = row[key]["simulated_s"], row[key]["measured_s"]
            print(f"  {words:<30}{a * 1e3:>8.1f} ms ({a / step['simulated_s']:>5.1%}) simulated {b * 1e3:>8.1f} ms ({b / step['measured_s']:>5.1%}) measured")
        print(f"  {'':<20}{'count':>6}{'simulated':>12}{'measured':>12}{'median error':>14}{'weighted':>10}{'start off by':>14}")
        for kind, of in row["kinds"].items():
            median = "" if of["median"] is None else f"{of['median']:.1%}"
            print(f"  {kind:<20}{of['instructions']:>6}{of['simulated_s'] * 1e3:>9.1f} ms{of['measured_s'] * 1e3:>9.1f} ms{median:>14}{of['weighted']:>10.1%}"
                  f"{of['start']:>14.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="of each profile")
    parser.add_argument("--plans", default="", help="only those whose label has these words")
    parser.add_argument("--picture", type=pathlib.Path, help="draw a plan's two timelines into this PNG")
    parser.add_argument("--show", default="pp 2 1f1b", help="which plan")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = compared(arguments, pathlib.Path(folder))
    rows = [row_of(label, simulated, measured) for label, (simulated, measured, _) in results.items()]
    if arguments.json:
        print(json.dumps({"machine": processor(), "plans": rows}))
    else:
        print(f"{processor()}, {arguments.rounds} rounds, load {os.getloadavg()[0]:.1f} at the end")
        show(rows)
    if arguments.picture and arguments.show in results:
        simulated, measured, (predicted, ran) = results[arguments.show]
        draw(arguments.picture, arguments.show, steps_of(predicted)[0], typical(ran, measured))


if __name__ == "__main__":
    main()
