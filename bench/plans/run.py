"""Compares the plan that `parallel: auto` chooses with every hand-written plan of a sweep over dp, pp, tp and threads.

    python bench/plans/run.py [--bin build/release/bin] [--rounds 3] [--steps 8] [--precision fp32] [--json]

Each round trains every plan for a few steps, in turn, so that other load on the machine meets all of them; a plan's figure
is the median over the steps of all rounds, without each run's first two. Prints the step time that was predicted, too. The first run
measures the profile; all that follow find it in the cache.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = {"arch": "llama", "hidden": 384, "layers": 6, "heads": 6, "kv_heads": 2, "ffn": 1024, "seq": 256, "vocab": 8192}


def job(name, precision, steps, parallel):
    return {"name": name, "model": MODEL, "data": {"source": "synthetic"},
            "train": {"steps": steps, "global_batch": 8, "precision": precision, "optimizer": {"kind": "adamw", "lr": 3e-4}, "eval": {"sequences": 1}},
            "parallel": parallel if isinstance(parallel, str) else {"zero": 0, **parallel}}


def sweep(cores):
    plans = []
    for workers in sorted({1, cores}):
        for dp in (d for d in range(1, workers + 1) if workers % d == 0):
            for pp in (p for p in range(1, workers // dp + 1) if (workers // dp) % p == 0):
                tp = workers // dp // pp
                if any(MODEL[key] % tp for key in ("heads", "kv_heads", "ffn", "vocab")):
                    continue
                for micro_batches in ([1, 2] if pp == 1 else [4, 8]):
                    if 8 % (dp * micro_batches) == 0:
                        plans.append({"dp": dp, "pp": pp, "tp": tp, "micro_batches": micro_batches, "threads": cores // workers})
    plans.append({"dp": 1, "pp": 1, "tp": 1, "micro_batches": 1, "threads": 1})
    return plans


def label(parallel):
    return parallel if isinstance(parallel, str) else " ".join(f"{key}{value}" for key, value in parallel.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plans = ["auto"] + sweep(os.cpu_count())
    seconds = {label(plan): [] for plan in plans}
    predicted, chosen = {}, ""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, TESSERA_CACHE=os.path.join(folder, "cache"))
        for turn in range(arguments.rounds):
            for plan in plans:
                path = pathlib.Path(folder) / "job.yaml"
                path.write_text(json.dumps(job("job", arguments.precision, arguments.steps, plan)))
                command = [os.path.join(arguments.bin, "tessera"), "train", str(path), "--overwrite", "--json"]
                result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
                if result.returncode != 0:
                    sys.exit(f"{label(plan)}: {result.stderr}")
                steps = [json.loads(line) for line in result.stdout.splitlines()]
                seconds[label(plan)] += [step["seconds"] for step in steps if "seconds" in step][2:]
                written = json.loads((pathlib.Path(folder) / "runs" / "job" / "plan.json").read_text())
                predicted[label(plan)] = written["predicted"]["step_seconds"]
                if plan == "auto":
                    chosen = next(line for line in result.stderr.splitlines() if line.startswith("plan:"))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    best = min(value for name, value in medians.items() if name != "auto")
    out = {"precision": arguments.precision, "chosen": chosen, "auto_over_best": medians["auto"] / best,
           "plans": {name: {"median_s": medians[name], "predicted_s": predicted[name]} for name in medians}}
    if arguments.json:
        print(json.dumps(out))
        return
    print(f"{arguments.precision}, {os.cpu_count()} cores, {arguments.rounds} rounds of {arguments.steps} steps; auto chose {chosen}")
    print(f"{'plan':<44}{'median':>10}{'predicted':>11}{'tokens/s':>10}")
    for name, value in sorted(medians.items(), key=lambda item: item[1]):
        print(f"{name:<44}{value * 1e3:>7.0f} ms{predicted[name] * 1e3:>8.0f} ms{8 * MODEL['seq'] / value:>10.0f}")
    print(f"auto takes {out['auto_over_best']:.3f} x the best hand-written plan")


if __name__ == "__main__":
    main()
