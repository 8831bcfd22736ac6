"""Measured against simulated steps of plans of every kind on emulated hosts: their length, exposed communication, and what is sent.

    python bench/steps/run.py [--bin build/release/bin] [--rounds 2] [--steps 11] [--hosts 4] [--cpu 0.4] [--gbit 1] [--plans WORDS] [--seconds 60] [--keep FOLDER] [--json]

A round profiles each model and then predicts and trains all plans. Steps and exposed communication (of a step: a rank does not compute, and something that it takes
part in is transferred) are medians over a run's last seven steps, then means over the rounds, of simulated and measured traces alike. What ranks send is
counted in `comm` and must equal what the programs say to the byte, in each dimension; a difference fails the run. A host that is held to a part of a core computes faster for a while when it
has waited: on such hosts a profile finds exchanges shorter and computing longer than a trace does, so that exposed communication is best compared with --hosts 2 --cpu 0.9.
Needs root (tools/netlab).
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "timeline"), str(pathlib.Path(__file__).resolve().parent)]
from compare import figures_of, median_of, steps_of  # noqa: E402
from lab import netlab_or_exit, planned, profiled, simulated, train_on_hosts  # noqa: E402
from machine import processor  # noqa: E402
from plans import plans_on  # noqa: E402
FIGURES = ("step", "exposed")  # seconds


class Bench:
    def __init__(self, arguments, folder):
        self.arguments, self.folder, self.tessera = arguments, folder, os.path.join(arguments.bin, "tessera")
        self.environment = dict(os.environ, TESSERA_CACHE=str(folder / "cache"))

    def job(self, plan):
        return {"name": "job", "model": plan["model"], "data": {"source": "synthetic"}, "parallel": plan["parallel"],
                "train": {"steps": 1, "global_batch": 8, "precision": "fp32", "eval": {"sequences": 1},
                          "optimizer": {"kind": "adamw", "lr": 3e-4, "clip": 0 if "delayed_exchange" in plan["parallel"] else 1.0}},
                "cluster": {"lab": {"hosts": self.arguments.hosts, "gbit": self.arguments.gbit, "cpu": self.arguments.cpu}}}

    def once(self, netlab, plan, turn):
        """{"simulated", "measured": figures, "traffic"} of one plan."""
        job = self.job(plan)
        profile = profiled(self.tessera, self.folder / f"profile-{plan['model']['arch']}-{self.arguments.hosts}-{turn}.json", job, self.arguments.seconds, self.environment)
        yaml, path = planned(self.tessera, self.folder, "job", job, self.environment, profile)
        if plan["change"]:
            changed = json.loads(path.read_text())
            plan["change"](changed)
            changed.pop("predicted")
            path.write_text(json.dumps(changed))
        expected = figures_of(steps_of(simulated(self.tessera, yaml, path, profile, self.environment))[0])
        run = self.folder / "run"
        with netlab.Lab(self.arguments.hosts, [self.arguments.gbit], [self.arguments.cpu]) as lab:
            train_on_hosts(lab, self.tessera, yaml, path, run, self.arguments.steps, self.environment)
        steps = [ranks for _, ranks in sorted(steps_of(json.loads((run / "trace.json").read_text())).items())]
        measured = median_of([figures_of(ranks) for ranks in steps[1:]])
        return {"simulated": expected, "measured": measured, "traffic": json.loads((run / "traffic.json").read_text())}


def row_of(plan, rounds):
    row = {"plan": plan["label"], "arch": plan["model"]["arch"], "traffic": rounds[-1]["traffic"]}
    for side in ("simulated", "measured"):
        row[side] = {figure: statistics.mean(one[side][figure] for one in rounds) for figure in FIGURES}
        row[side]["exposed_share"] = row[side]["exposed"] / row[side]["step"]
    row["error"] = row["simulated"]["step"] / row["measured"]["step"] - 1
    row["exposed_error"] = row["simulated"]["exposed_share"] - row["measured"]["exposed_share"]
    row["differs"] = [name for name, sent in row["traffic"]["dimensions"].items() if any(sent[key] != value for key, value in sent["planned"].items())]
    return row


def summary_of(rows):
    errors, exposed = [abs(row["error"]) for row in rows], [abs(row["exposed_error"]) for row in rows]
    return {"plans": len(rows), "mean": statistics.mean(errors), "worst": max(errors), "exposed_mean": statistics.mean(exposed), "exposed_worst": max(exposed),
            "traffic_differs": [row["plan"] for row in rows if row["differs"]]}


def words_of(traffic):
    return "; ".join(f"{name} {sent['bytes'] / traffic['steps'] / 2**20:.2f} MiB in {(sent['messages'] + sent['collectives']) / traffic['steps']:g}"
                     for name, sent in traffic["dimensions"].items())


def show(result):
    print(f"{result['machine']}, {result['hosts']} hosts of {result['cpu']} cores, {result['gbit']:g} Gbit/s, {result['rounds']} rounds; exposed: share of the step; sent: by all ranks in a step")
    print(f"{'plan':<58}{'simulated':>10}{'measured':>10}{'error':>8}{'exposed':>9}{'measured':>9}  sent")
    for row in result["rows"]:
        expected, measured = row["simulated"], row["measured"]
        print(f"{row['plan']:<58}{expected['step']:>8.3f} s{measured['step']:>8.3f} s{row['error']:>8.1%}{expected['exposed_share']:>9.1%}{measured['exposed_share']:>9.1%}"
              f"  {words_of(row['traffic'])}{' DIFFERS: ' + ', '.join(row['differs']) if row['differs'] else ''}")
    print(f"{result['plans']} plans: step {result['mean']:.1%} off on average, {result['worst']:.1%} at worst; exposed communication {result['exposed_mean']:.1%} and "
          f"{result['exposed_worst']:.1%} of the step off; what was sent is what the programs say in {result['plans'] - len(result['traffic_differs'])} of {result['plans']}")


def main():
    parser = argparse.ArgumentParser(prog="./dev bench steps", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=11, help="of which the trace has the last eight")
    parser.add_argument("--hosts", type=int, choices=(2, 4), default=4)
    parser.add_argument("--cpu", type=float, default=0.4, help="cores of each host")
    parser.add_argument("--gbit", type=float, default=1)
    parser.add_argument("--plans", default="", help="only those whose label has these words")
    parser.add_argument("--seconds", type=float, default=60, help="of each profile")
    parser.add_argument("--keep", type=pathlib.Path, help="leave profiles and runs in this folder, and use the profiles that lie there")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    netlab = netlab_or_exit()
    plans = [plan for plan in plans_on(arguments.hosts) if arguments.plans in plan["label"]]
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.keep or pathlib.Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        bench, rounds = Bench(arguments, folder), [[] for _ in plans]
        for turn in range(arguments.rounds):
            for plan, done in zip(plans, rounds):
                done.append(bench.once(netlab, plan, turn + 1))
                print(f"round {turn + 1} of {arguments.rounds}, {plan['label']}: simulated {done[-1]['simulated']['step']:.3f} s, measured {done[-1]['measured']['step']:.3f} s", file=sys.stderr)
    rows = [row_of(plan, done) for plan, done in zip(plans, rounds)]
    result = {"machine": processor(), "hosts": arguments.hosts, "cpu": arguments.cpu, "gbit": arguments.gbit, "rounds": arguments.rounds, **summary_of(rows), "rows": rows}
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result)
    if result["traffic_differs"]:
        sys.exit("what was sent is not what the programs say")


if __name__ == "__main__":
    main()
