"""Compares predicted step time and memory with what the trainer takes, over plans of 1, 2 and 4 emulated hosts and two link rates.

    python bench/here/run.py [--bin build/release/bin] [--rounds 4] [--steps 7] [--gbit 1,0.25] [--keep FOLDER] [--json]

A round goes through one cluster (number of hosts and link rate) after the other: a `tessera profile`, and then its plans, predicted from it and trained. A
machine's speed drifts over minutes, so that both figures of a plan are means over the rounds: of the predictions, and of the medians over the steps without each
run's first two. Memory is the largest peak resident size of the plan's workers. How far the first round's measurements are from the last's shows the machine's own
noise. Needs root (tools/netlab); priority over other programs helps.
"""
import argparse
import itertools
import json
import os
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from lab import checked, netlab_or_exit, profiled, train_on_hosts  # noqa: E402
from machine import processor  # noqa: E402
MODEL = {"arch": "llama", "hidden": 256, "layers": 8, "heads": 4, "kv_heads": 4, "ffn": 768, "seq": 128, "vocab": 4096}
# Four hosts leave two cores time for what the network takes and what a hypervisor takes away. With 0.4, the same block took 5 to 12 % longer on one host than on
# another.
CPU = 0.3
SKIPPED_STEPS = 2
PROFILE_SECONDS = 60
ONE = ["", "micro_batches: 4", "micro_batches: 2, recompute: full"]
SEVERAL = {2: ["dp: 2", "dp: 2, zero: 1, micro_batches: 2", "tp: 2", "pp: 2, micro_batches: 4", "pp: 2, micro_batches: 2, schedule: gpipe"],
           4: ["dp: 4", "dp: 4, zero: 1", "tp: 4", "pp: 4, micro_batches: 8", "pp: 4, micro_batches: 4, schedule: gpipe, recompute: full",
               "dp: 2, pp: 2, micro_batches: 4", "dp: 2, tp: 2, zero: 1", "tp: 2, pp: 2, micro_batches: 4"]}


class Plan:
    def __init__(self, ranks, gbit, degrees):
        self.ranks, self.gbit = ranks, gbit
        self.degrees = {"dp": 1, "pp": 1, "tp": 1, "zero": 0, "micro_batches": 1, "schedule": "1f1b", "recompute": "none"}
        for word in filter(None, degrees.split(", ")):
            key, value = word.split(": ")
            self.degrees[key] = int(value) if value.isdigit() else value
        self.label = degrees.replace(": ", " ") or "one worker"
        self.predicted, self.measured, self.memory, self.steps = [], [], [], []  # of each round

    def job(self):
        return {"name": "job", "model": MODEL, "data": {"source": "synthetic"},
                "train": {"steps": 1, "global_batch": 8, "precision": "fp32", "optimizer": {"kind": "adamw", "lr": 3e-4}, "eval": {"sequences": 1}},
                "cluster": {"lab": {"hosts": self.ranks, "gbit": self.gbit, "cpu": CPU}}, "parallel": self.degrees}


class Bench:
    def __init__(self, arguments, folder, environment):
        self.tessera = os.path.join(arguments.bin, "tessera")
        self.steps, self.folder, self.environment = arguments.steps, folder, environment
        rates = arguments.gbit
        self.clusters = [[Plan(1, rates[0], degrees) for degrees in ONE]]
        self.clusters += [[Plan(ranks, gbit, degrees) for degrees in SEVERAL[ranks]] for gbit in rates for ranks in SEVERAL]
        self.plans = [plan for plans in self.clusters for plan in plans]

    def profile(self, hosts, gbit, turn):
        path = self.folder / f"profile-{hosts}-{gbit}-{turn}.json"
        return profiled(self.tessera, path, Plan(hosts, gbit, "").job(), PROFILE_SECONDS, self.environment)

    def predict(self, plan, profile):
        yaml, out = self.folder / "job.yaml", self.folder / "plan.json"
        yaml.write_text(json.dumps(plan.job()))
        checked([self.tessera, "plan", yaml, "--profile", profile, "-o", out], self.environment)
        plan.predicted.append(json.loads(out.read_text())["predicted"])
        return out

    def train(self, plan, lab, profile):
        plan_file, run = self.predict(plan, profile), self.folder / "run"
        seconds = train_on_hosts(lab, self.tessera, self.folder / "job.yaml", plan_file, run, self.steps, self.environment)[SKIPPED_STEPS:]
        plan.steps.append(seconds)
        plan.measured.append(statistics.median(seconds))
        plan.memory.append(max(json.loads((run / "memory" / f"rank-{rank}.json").read_text())["peak_resident"] for rank in range(plan.ranks)))

    def run(self, rounds):
        netlab = netlab_or_exit()
        for turn, plans in itertools.product(range(rounds), self.clusters):
            profile = self.profile(plans[0].ranks, plans[0].gbit, turn + 1)
            for plan in plans:
                with netlab.Lab(plan.ranks, [plan.gbit], [CPU]) as lab:
                    self.train(plan, lab, profile)
                print(f"round {turn + 1} of {rounds}, {plan.ranks} hosts, {plan.gbit} Gbit/s: {plan.label}, predicted "
                      f"{plan.predicted[-1]['step_seconds']:.3f} s, measured {plan.measured[-1]:.3f} s", file=sys.stderr)


def kendall(pairs):
    """Tau-b without ties: of all pairs of plans, those in the same order by both less those that are not."""
    agree = [(a[0] - b[0]) * (a[1] - b[1]) > 0 for i, a in enumerate(pairs) for b in pairs[:i]]
    return (2 * sum(agree) - len(agree)) / len(agree)


def row_of(plan):
    predictions = [predicted["step_seconds"] for predicted in plan.predicted]
    predicted, measured, memory = statistics.mean(predictions), statistics.mean(plan.measured), statistics.median(plan.memory)
    bytes_ = max(plan.predicted[0]["memory_bytes"])
    return {"ranks": plan.ranks, "gbit": plan.gbit if plan.ranks > 1 else None, "plan": plan.label, "predicted_s": predicted, "measured_s": measured,
            "error": predicted / measured - 1, "predicted_bytes": bytes_, "measured_bytes": memory, "memory_error": bytes_ / memory - 1,
            "rounds": {"predicted_s": predictions, "measured_s": plan.measured, "steps_s": plan.steps}, "parts": plan.predicted[0]["parts"]}


def summary_of(rows):
    def errors_of(pairs):
        errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
        return {"mean": statistics.mean(errors), "worst": max(errors), "tau": kendall(pairs)}

    memory = [abs(row["memory_error"]) for row in rows]
    summary = {"plans": len(rows), **errors_of([(row["predicted_s"], row["measured_s"]) for row in rows]), "memory_mean": statistics.mean(memory),
               "memory_worst": max(memory)}
    if len(rows[0]["rounds"]["measured_s"]) > 1:
        for key in ("measured", "predicted"):
            summary[f"{key}_again"] = errors_of([(row["rounds"][f"{key}_s"][0], row["rounds"][f"{key}_s"][-1]) for row in rows])
    return summary


def show(rows, summary):
    print(f"{summary['machine']}, hosts of {CPU} cores, means of {len(rows[0]['rounds']['measured_s'])} rounds")
    print(f"{'ranks':>5}{'Gbit/s':>8}  {'plan':<52}{'predicted':>10}{'measured':>10}{'error':>8}{'memory':>10}{'measured':>10}{'error':>8}")
    for row in rows:
        print(f"{row['ranks']:>5}{row['gbit'] or '':>8}  {row['plan']:<52}{row['predicted_s']:>8.3f} s{row['measured_s']:>8.3f} s{row['error']:>8.1%}"
              f"{row['predicted_bytes'] / 2**20:>6.0f} MiB{row['measured_bytes'] / 2**20:>6.0f} MiB{row['memory_error']:>8.1%}")
    print(f"{summary['plans']} plans: step time {summary['mean']:.1%} off on average, {summary['worst']:.1%} at worst; peak memory {summary['memory_mean']:.1%} and "
          f"{summary['memory_worst']:.1%}; Kendall's tau of the order by step time {summary['tau']:.3f}")
    for key in ("measured", "predicted"):
        if again := summary.get(f"{key}_again"):
            print(f"the same between what the first round {key} and what the last did: {again['mean']:.1%}, {again['worst']:.1%}, tau {again['tau']:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--gbit", type=lambda words: [float(word) for word in words.split(",")], default=[1.0, 0.25], help="the link rates")
    parser.add_argument("--keep", type=pathlib.Path, help="leave profiles and runs in this folder, and use the profiles that lie there")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.keep or pathlib.Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(arguments, folder, dict(os.environ, TESSERA_CACHE=os.path.join(scratch, "cache")))
        bench.run(arguments.rounds)
        rows = [row_of(plan) for plan in bench.plans]
    summary = {"machine": processor(), **summary_of(rows)}
    if arguments.json:
        print(json.dumps({**summary, "rows": rows}))
    else:
        show(rows, summary)


if __name__ == "__main__":
    main()
