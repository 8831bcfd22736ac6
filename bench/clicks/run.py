"""Trains DeepFM on clicks of examples/clicks: Tessera with a parameter server, its tables synchronous, asynchronous and geo, beside a plain PyTorch loop of one process.

    python bench/clicks/run.py [--bin build/release/bin] [--lines 200000] [--epochs 1] [--batch 250] [--ranks 2] [--threads 1] [--table-lr 0.05] [--table-warmup 20] [--initial-moment 1e-4] [--seeds 3] [--keep FOLDER] [--json]

Both have the same architecture, AdaGrad on rows (PyTorch: nn.Embedding(sparse=True), over all ids of the file), AdamW without decay on the rest, the same batches' size and the
same split; initial values and the order of lines are their own; +- is the standard error of the mean over seeds, or of the difference of two such means. Tessera has so many ranks, which share each batch; PyTorch is
one process of as many threads as one of them. The best AUC is that of the hidden model that labels were drawn from. Samples/s are the median over the
steps, without reading the file; PyTorch's samples lie in memory as tensors. Peers take turns.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(pathlib.Path(__file__).resolve().parent)]
from machine import processor  # noqa: E402
from peer import train_peer  # noqa: E402

MODEL = {"arch": "deepfm", "tables": 26, "dim": 8, "dense": 13, "hidden": [128, 64]}
LR, TRAIN = 1e-3, 0.95
MODES = {"Tessera, synchronous": "synchronous", "Tessera, asynchronous": "asynchronous", "Tessera, geo": "geo"}
PEER = "PyTorch"


def table_of(arguments):
    return {"kind": "adagrad", "lr": arguments.table_lr, "initial_moment": arguments.initial_moment, "schedule": {"warmup": arguments.table_warmup}}


def train_tessera(arguments, folder, file, steps, validation, seed, mode):
    job = {"name": f"clicks-{mode}-{seed}", "model": MODEL, "data": {"source": str(file), "format": "criteo", "split": {"train": TRAIN}},
           "train": {"steps": steps, "global_batch": arguments.batch, "seed": seed, "eval": {"sequences": validation}, "schedule": {"kind": "constant"},
                     "optimizer": {"kind": "adamw", "lr": LR, "betas": [0.9, 0.999], "weight_decay": 0, "clip": 0}},
           "parameter_servers": {"optimizer": table_of(arguments), "consistency": mode},
           "cluster": {"local": {"devices": arguments.ranks, "threads": arguments.threads}}, "parallel": {"dp": arguments.ranks, "pp": 1, "tp": 1}}
    yaml = folder / f"{job['name']}.yaml"
    yaml.write_text(json.dumps(job))
    begin = time.perf_counter()
    done = subprocess.run([os.path.join(arguments.bin, "tessera"), "train", yaml, "--no-measure", "--overwrite"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    run = folder / "runs" / job["name"]
    seconds = [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = json.loads((run / "evaluations.jsonl").read_text().splitlines()[-1])
    return {"auc": last["auc"], "loss": last["validation_loss"], "samples_per_s": arguments.batch / statistics.median(seconds), "wall": time.perf_counter() - begin}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--table-lr", type=float, default=0.05)
    parser.add_argument("--table-warmup", type=int, default=20, help="first steps, in which the tables' learning rate grows to --table-lr")
    parser.add_argument("--initial-moment", type=float, default=1e-4, help="what AdaGrad's sums of squares begin with")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--keep", type=pathlib.Path, help="the folder for the file and the runs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.keep or pathlib.Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "clicks.tsv"
        maker = ROOT / "examples" / "clicks" / "make_clicks.py"
        made = json.loads(subprocess.run([sys.executable, maker, file, "--lines", str(arguments.lines)], check=True, capture_output=True, text=True).stdout)
        steps = int((arguments.lines - made["validation_lines"]) * arguments.epochs) // arguments.batch
        rounds = []
        for seed in range(1, arguments.seeds + 1):
            rounds.append({name: train_tessera(arguments, folder, file, steps, made["validation_lines"], seed, mode) for name, mode in MODES.items()})
            rounds[-1][PEER] = train_peer(file, made["validation_lines"], MODEL, steps, arguments.batch, LR, table_of(arguments), seed, arguments.threads)
    sides = {side: {figure: statistics.mean(one[side][figure] for one in rounds) for figure in rounds[0][side]} for side in rounds[0]}
    spread = {side: statistics.stdev(one[side]["auc"] for one in rounds) / len(rounds) ** 0.5 if len(rounds) > 1 else float("nan") for side in sides}
    answer = {"machine": processor(), "lines": arguments.lines, "steps": steps, "best_auc": made["best_auc"], "sides": sides, "rounds": rounds}
    if arguments.json:
        print(json.dumps(answer))
        return
    print(f"{answer['machine']}, {arguments.ranks} ranks, {arguments.threads} threads each, {steps} steps of {arguments.batch} lines, means of {arguments.seeds} seeds; the best AUC is {made['best_auc']:.4f}")
    print(f"{'':24}{'AUC':>9}{'+-':>9}{'loss':>9}{'samples/s':>12}{'AUC, to PyTorch':>18}{'+-':>9}{'rate':>8}")
    for side, of in sides.items():
        print(f"{side:24}{of['auc']:9.4f}{spread[side]:9.4f}{of['loss']:9.4f}{of['samples_per_s']:12.0f}"
              f"{of['auc'] - sides[PEER]['auc']:+18.4f}{(spread[side] ** 2 + spread[PEER] ** 2) ** 0.5:9.4f}{of['samples_per_s'] / sides[PEER]['samples_per_s']:8.2f}")


if __name__ == "__main__":
    main()
