"""Trains models on emulated hosts (four of half a core), Tessera with `parallel: auto` beside what people use: samples/s of each, and the ratio to the best of them.

    python bench/peers/run.py [--bin build/release/bin] [--models vgg16,resnet50] [--gbit 0.5,1,4] [--ways ddp,zero-1] [--rounds 2] [--steps 7] [--hosts 4] [--cpu 0.5] [--batch 64] [--stock-allocator] [--json]

VGG-16 and ResNet-50 read images of 64 x 64 in batches of 32; a BERT of 6 layers reads 128 tokens in batches of 16, of which 15 % are masked (PyTorch's pipelines and FSDP2 do not tie
its head to its embedding); its layers are split, as stages of six are made of halves more evenly (model.split_layers). fp32, SGD, one thread a process. PyTorch's ways: DDP; FSDP2; GPipe and 1F1B of torch.distributed.pipelining with stages balanced by
measured time; and two such pipelines (1F1B) with two replicas of each stage, whose gradients are averaged at the end. Pipelines run with 4 and with 8 micro-batches, and the
faster counts. DeepSpeed's ways are ZeRO-1 and ZeRO-2 over Gloo: on CPUs it neither communicates beside computing nor gains from summing gradients where they are kept
(use_multi_rank_bucket_allreduce), which Gloo does no faster. Before and after the first update its losses must be DDP's, as both train the same model on the same samples; later ones part by
rounding, in ResNet by per cents. It comes from the package index into .cache on first use (16 MB). "Best" is the fastest of all ways, "mean" that of PyTorch's. A way that
fails has no figure, and its last words stand below the table. All ways have the allocator that Tessera has, jemalloc that keeps what is freed and lies
in huge pages; with --stock-allocator PyTorch's and DeepSpeed's have the C library's, as who installs them has.

All take turns; medians over the steps of all rounds, without each run's first two. "Of alone": Tessera's samples/s as a share of what the hosts reach together when
each trains alone on its part of the batch and nothing is exchanged, just before and just after Tessera's turn. "Exposed": the share of a step, in Tessera's
traces, in which a rank waits for a transfer and does not compute, predicted and measured. Needs root (tools/netlab).

torchgpipe is not among the ways: it is one process, which runs all stages of a device in one thread, and to it all CPUs are one device.
"""
import argparse
import functools
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
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "timeline")]
from compare import figures_of, median_of, steps_of  # noqa: E402
from lab import netlab_or_exit, planned, profiled, python_on_hosts, simulated, train_alone_on_hosts, train_on_hosts  # noqa: E402
from machine import processor  # noqa: E402
from packages import beside_ours  # noqa: E402
from turns import differs, name_of, take_turns  # noqa: E402

SKIPPED_STEPS = 2
PROFILE_SECONDS = 60
# Of each way what its runs are called, and what peer.py reads.
PYTORCH = {"ddp": {"": {"way": "ddp"}}, "fsdp2": {"": {"way": "fsdp2"}},
           **{name: {f"{count} micro-batches": {"way": name, "schedule": schedule, "replicas": replicas, "micro_batches": count} for count in (4, 8)}
              for name, schedule, replicas in (("gpipe", "gpipe", 1), ("1f1b", "1f1b", 1), ("2x2", "1f1b", 2))}}
DEEPSPEED = {f"zero-{stage}": {"": {"way": f"zero-{stage}", "stage": stage}} for stage in (1, 2)}
DEEPSPEED_VERSION = "0.19.8"
WAYS = {**PYTORCH, **DEEPSPEED}
IMAGES = {"batch": 32, "classes": 1000, "shape": [3, 64, 64]}
MODELS = {"vgg16": IMAGES, "resnet50": IMAGES, "bert": {"batch": 16, "classes": 30522, "shape": [128]}}


@functools.cache
def deepspeed():
    """The folder with the package and what it imports besides, less what ./dev setup has brought in (NumPy, packaging, pydantic, torch, tqdm)."""
    return beside_ours(f"deepspeed-{DEEPSPEED_VERSION}", f"deepspeed=={DEEPSPEED_VERSION}", "einops", "hjson", "msgpack", "ninja", "psutil", "py-cpuinfo")


def section_of(model):
    """What train.yaml says of it."""
    of = MODELS[model]
    if model == "bert":
        return {"arch": "bert", "split_layers": True, "hidden": 768, "layers": 6, "heads": 12, "seq": of["shape"][0], "vocab": of["classes"], "dropout": 0.1}
    return {"arch": model, "image": of["shape"][1], "classes": of["classes"], **({"split_layers": True} if model == "resnet50" else {})}


class Bench:
    def __init__(self, arguments, folder, netlab):
        self.tessera, self.steps, self.folder, self.netlab = os.path.join(arguments.bin, "tessera"), arguments.steps, folder, netlab
        self.hosts, self.cpu = arguments.hosts, arguments.cpu
        self.samples = {model: arguments.batch or MODELS[model]["batch"] for model in MODELS}
        self.allocator = {"LD_PRELOAD": ""} if arguments.stock_allocator else {}
        self.environment = dict(os.environ, TESSERA_CACHE=str(folder / "cache"))

    def job(self, name, model, gbit, batch, hosts, parallel):
        return {"name": name, "model": section_of(model), "data": {"source": "synthetic"},
                "train": {"steps": self.steps, "global_batch": batch, "precision": "fp32", "optimizer": {"kind": "sgd", "lr": 0.01, "weight_decay": 0, "clip": 0},
                          "schedule": {"kind": "constant"}},
                "cluster": {"lab": {"hosts": hosts, "gbit": gbit, "cpu": self.cpu}}, "parallel": parallel}

    def plan(self, model, gbit):
        """Paths of the job, its plan and the profile."""
        name = f"{model}-{gbit:g}"
        job = self.job(name, model, gbit, self.samples[model], self.hosts, "auto")
        profile = profiled(self.tessera, self.folder / f"{name}-profile.json", job, PROFILE_SECONDS, self.environment)
        return *planned(self.tessera, self.folder, name, job, self.environment, profile), profile

    def ours(self, job, plan, gbit, traces):
        with self.netlab.Lab(self.hosts, [gbit], [self.cpu] * self.hosts) as lab:
            seconds = train_on_hosts(lab, self.tessera, job, plan, self.folder / "run", self.steps, self.environment)
        steps = [ranks for _, ranks in sorted(steps_of(json.loads((self.folder / "run" / "trace.json").read_text())).items())]
        traces += [figures_of(ranks) for ranks in steps[-(self.steps - SKIPPED_STEPS):]]
        return {"seconds": seconds}

    def alone(self, model):
        """The hosts' samples/s together."""
        name, batch = f"{model}-alone", self.samples[model] // self.hosts
        job, plan = planned(self.tessera, self.folder, name, self.job(name, model, 1, batch, 1, {"dp": 1, "tp": 1, "pp": 1}), self.environment)
        with self.netlab.Lab(self.hosts, [0], [self.cpu] * self.hosts) as lab:
            seconds = train_alone_on_hosts(lab, self.tessera, job, plan, self.folder / "alone", self.steps, self.environment)
        return sum(batch / statistics.median(of[SKIPPED_STEPS:]) for of in seconds)

    def theirs(self, spec, model, gbit):
        path = self.folder / "peer.json"
        path.write_text(json.dumps({**spec, **MODELS[model], "batch": self.samples[model], "model": model, "steps": self.steps}))
        environment = {"PYTHONPATH": str(deepspeed()), "DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"} if spec["way"] in DEEPSPEED else {}
        with self.netlab.Lab(self.hosts, [gbit], [self.cpu] * self.hosts) as lab:
            # DeepSpeed logs to stdout, before the result.
            return json.loads(python_on_hosts(lab, [HERE / "peer.py", path], self.folder / "peer.log", {**environment, **self.allocator}).splitlines()[-1])

    def cell(self, model, gbit, ways, rounds):
        job, plan, profile = self.plan(model, gbit)
        traces, alone = [], []
        expected = figures_of(steps_of(simulated(self.tessera, job, plan, profile, self.environment))[0])

        def beside_alone():
            alone.append(self.alone(model))
            result = self.ours(job, plan, gbit, traces)
            alone.append(self.alone(model))
            print(f"{gbit:g} Gbit/s, {model}, every host alone: {alone[-2]:.2f} samples/s together before, {alone[-1]:.2f} after", file=sys.stderr)
            return result

        runs = {("tessera", ""): beside_alone}
        for way in ways:
            for run, spec in WAYS[way].items():
                runs[way, run] = lambda spec=spec: self.theirs(spec, model, gbit)

        def rate(results):
            return self.samples[model] / statistics.median(second for result in results for second in result["seconds"][SKIPPED_STEPS:])

        def end(turn, key, results):
            print(f"round {turn + 1} of {rounds}, {gbit:g} Gbit/s, {model}, {name_of(key)}: {rate(results):.2f} samples/s", file=sys.stderr)

        results, failed = take_turns(runs, rounds, end)
        losses = {key: of[0]["losses"] for key, of in results.items() if "losses" in of[0]}
        of_ddp = losses.get(("ddp", ""))
        for key in [key for key in losses if key[0] in DEEPSPEED and of_ddp and differs(losses[key], of_ddp)]:
            failed[key] = f"its losses are {losses[key]}, and DDP's {of_ddp}"
            del results[key]
        rates = {}
        for (way, _), of in results.items():
            rates[way] = max(rate(of), rates.get(way, 0))
        chosen = json.loads(plan.read_text())
        words = f"{len(chosen['stages'])} stages, {chosen['micro_batches']} micro-batches, {chosen['schedule']}" + (", own order" if "order" in chosen else "")
        measured = median_of(traces)
        peers, pytorchs = ([rates[way] for way in kind if way in rates] for kind in (WAYS, PYTORCH))
        return {"gbit": gbit, "model": model, "rates": rates, "losses": {way: of[-1] for (way, _), of in losses.items()},
                "failed": {name_of(key): why for key, why in failed.items()}, "plan": words,
                "ratio": rates["tessera"] / max(peers) if peers else None, "over_mean": rates["tessera"] / statistics.mean(pytorchs) if pytorchs else None,
                "alone": statistics.median(alone), "of_alone": rates["tessera"] / statistics.median(alone),
                "predicted_error": expected["step"] / measured["step"] - 1, "exposed": {"predicted": expected["exposed"] / expected["step"], "measured": measured["exposed"] / measured["step"]}}


def number(value):
    return f"{'-' if value is None else format(value, '.2f'):>9}"


def show(result, ways):
    print(f"{result['machine']}; {result['hosts']} hosts of {result['cpu']:g} cores; " + ", ".join(f"{name} {version}" for name, version in result["versions"].items()) + "; samples/s")
    print(f"{'Gbit/s':>6}  {'model':<10}{'Tessera':>9}" + "".join(f"{way:>9}" for way in ways) + (f"{'/ best':>9}{'/ mean':>9}" if ways else "")
          + f"{'alone':>9}{'of alone':>9}{'error':>8}{'exposed':>9}{'measured':>9}  plan")
    for cell in result["cells"]:
        print(f"{cell['gbit']:>6g}  {cell['model']:<10}" + "".join(number(cell["rates"].get(way)) for way in ("tessera", *ways))
              + (number(cell["ratio"]) + number(cell["over_mean"]) if ways else "") + f"{cell['alone']:>9.2f}{cell['of_alone']:>9.1%}{cell['predicted_error']:>8.1%}"
              + f"{cell['exposed']['predicted']:>9.1%}{cell['exposed']['measured']:>9.1%}  {cell['plan']}")
    for cell in result["cells"]:
        where = f"{cell['gbit']:g} Gbit/s, {cell['model']}"
        if cell["losses"]:
            print(f"{where}: losses of the last step " + ", ".join(f"{way} {loss:.5f}" for way, loss in cell["losses"].items()))
        for way, why in cell["failed"].items():
            print(f"{where}: {way} fails: {why}")
    if ratios := [cell["ratio"] for cell in result["cells"] if cell["ratio"]]:
        print(f"geometric mean of the ratios to the best {statistics.geometric_mean(ratios):.3f}")


def listed(kind):
    return lambda words: [kind(word) for word in words.split(",") if word]


def main():
    parser = argparse.ArgumentParser(prog="./dev bench peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--models", type=listed(str), default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--gbit", type=listed(float), default=[0.5, 1.0, 4.0])
    parser.add_argument("--ways", type=listed(str), default=list(WAYS), help=", ".join(WAYS) + " (the last two are DeepSpeed's); '' for Tessera by itself")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--cpu", type=float, default=0.5, help="of a core, that each host has")
    parser.add_argument("--batch", type=int, help="samples of a step, which the hosts divide; without it each model's own")
    parser.add_argument("--stock-allocator", action="store_true", help="the others allocate with the C library")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for names, known in ((arguments.models, MODELS), (arguments.ways, WAYS)):
        if unknown := set(names) - set(known):
            parser.error(f"not known: {', '.join(unknown)}; there are {', '.join(known)}")
    if odd := [model for model in arguments.models if (arguments.batch or MODELS[model]["batch"]) % arguments.hosts]:
        parser.error(f"{arguments.hosts} hosts do not divide the batch of {', '.join(odd)}")
    netlab = netlab_or_exit()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, pathlib.Path(folder), netlab)
        cells = [bench.cell(model, gbit, arguments.ways, arguments.rounds) for gbit in arguments.gbit for model in arguments.models]
        version = subprocess.run([bench.tessera, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    versions = {"tessera": version, "torch": importlib.metadata.version("torch"), **({"deepspeed": DEEPSPEED_VERSION} if set(arguments.ways) & set(DEEPSPEED) else {})}
    result = {"machine": processor(), "hosts": arguments.hosts, "cpu": arguments.cpu, "versions": versions, "cells": cells}
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result, arguments.ways)


if __name__ == "__main__":
    main()
