"""Pipeline schedules on emulated hosts: the idle share that was measured, beside the simulator's and the closed form.

    python bench/bubble/run.py [--bin build/release/bin] [--rounds 3] [--steps 11] [--micro-batches 8] [--hosts 4] [--cpu 0.4] [--gbit 1] [--seconds 60] [--json]

The schedules take turns. Idle is what the rank that takes longest from its first to its last pass does not compute in between, of a simulated and of measured steps alike;
a median over the last eight steps of all rounds. A host that is held to a part of a core computes faster for a while when it has waited, and so is idle for longer:
"at one speed" counts its passes as long as the profile says. With --hosts 2 --cpu 0.9 there is little of that. The closed form is that of stages of equal length, of passes whose halves are all as long as a forward pass, and of
messages that are free. Needs root (tools/netlab).
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "timeline")]
from closed_forms import bubble_of  # noqa: E402
from compare import computes, length, steps_of, without  # noqa: E402
from lab import netlab_or_exit, planned, profiled, simulated, train_on_hosts  # noqa: E402
from machine import processor  # noqa: E402
MODEL = {"arch": "llama", "hidden": 256, "layers": 16, "heads": 4, "kv_heads": 4, "ffn": 768, "seq": 128, "vocab": 1024}
SCHEDULES = {"1f1b": 1, "interleaved": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2}  # stages on a rank


def row_of(ranks):
    """Of one step: how long the longest row of passes of a rank takes, how much of it that rank computes, and how long the step."""
    rows = []
    for step in ranks.values():
        passes = [(begin, end) for args, begin, end in step.instructions.values() if computes(args) and args["op"] != "optimizer_step"]
        whole = max(end for _, end in passes) - min(begin for begin, _ in passes)
        rows.append((whole, length(without(passes, [span for spans in step.exchanges.values() for span in spans]))))
    whole, computing = max(rows)
    return whole, computing, max(step.end for step in ranks.values()) - min(step.begin for step in ranks.values())


def main():
    parser = argparse.ArgumentParser(prog="./dev bench bubble", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--cpu", type=float, default=0.4, help="cores of each host")
    parser.add_argument("--gbit", type=float, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="of the profile")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    netlab, tessera = netlab_or_exit(), os.path.join(arguments.bin, "tessera")
    measured, expected = {schedule: [] for schedule in SCHEDULES}, {}
    with tempfile.TemporaryDirectory() as scratch:
        folder, environment = pathlib.Path(scratch), dict(os.environ, TESSERA_CACHE=os.path.join(scratch, "cache"))
        job = {"name": "job", "model": MODEL, "data": {"source": "synthetic"}, "cluster": {"lab": {"hosts": arguments.hosts, "gbit": arguments.gbit, "cpu": arguments.cpu}},
               "train": {"steps": 1, "global_batch": arguments.micro_batches, "precision": "fp32", "eval": {"sequences": 1}}}
        profile = profiled(tessera, folder / "profile.json", job, arguments.seconds, environment)
        plans = {}
        for schedule, chunks in SCHEDULES.items():
            job["parallel"] = {"pp": arguments.hosts, "dp": 1, "tp": 1, "micro_batches": arguments.micro_batches, "schedule": schedule, "recompute": "none"}
            if schedule == "interleaved":
                job["parallel"]["chunks"] = chunks
            plans[schedule] = planned(tessera, folder, schedule, job, environment, profile)
            expected[schedule] = row_of(steps_of(simulated(tessera, *plans[schedule], profile, environment))[0])
        for turn in range(arguments.rounds):
            for schedule, files in plans.items():
                with netlab.Lab(arguments.hosts, [arguments.gbit], [arguments.cpu]) as lab:
                    train_on_hosts(lab, tessera, *files, folder / "run", arguments.steps, environment)
                measured[schedule] += [row_of(ranks) for ranks in steps_of(json.loads((folder / "run" / "trace.json").read_text())).values()]
                print(f"round {turn + 1} of {arguments.rounds}, {schedule}: {measured[schedule][-1][2]:.3f} s", file=sys.stderr)
    rows = []
    for schedule, chunks in SCHEDULES.items():
        whole, computing, step = (statistics.median(one[i] for one in measured[schedule]) for i in range(3))
        rows.append({"schedule": schedule, "measured": 1 - computing / whole, "at_one_speed": 1 - expected[schedule][1] / whole,
                     "simulated": 1 - expected[schedule][1] / expected[schedule][0],
                     "closed_form": bubble_of(schedule, arguments.hosts, arguments.micro_batches, chunks), "step_s": step, "simulated_s": expected[schedule][2]})
    for row in rows:
        row["against_1f1b"] = rows[0]["step_s"] / row["step_s"]
    if arguments.json:
        print(json.dumps({"machine": processor(), "hosts": arguments.hosts, "cpu": arguments.cpu, "micro_batches": arguments.micro_batches, "gbit": arguments.gbit, "rows": rows}))
        return
    print(f"{processor()}, {arguments.hosts} hosts of {arguments.cpu} cores, {arguments.gbit:g} Gbit/s, {arguments.micro_batches} micro-batches")
    print(f"{'schedule':<13}{'idle':>8}{'at one speed':>14}{'simulated':>11}{'closed form':>13}{'step':>10}{'simulated':>11}{'against 1F1B':>14}")
    for row in rows:
        print(f"{row['schedule']:<13}{row['measured']:>8.1%}{row['at_one_speed']:>14.1%}{row['simulated']:>11.1%}{row['closed_form']:>13.1%}{row['step_s']:>8.3f} s{row['simulated_s']:>9.3f} s{row['against_1f1b']:>12.2f} x")


if __name__ == "__main__":
    main()
