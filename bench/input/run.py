"""Makes training images from files in one thread, and trains on them with all cores: images/s of both.

    python bench/input/run.py [--bin build/release/bin] [--rounds 3] [--steps 6] [--seconds 3] [--only WORDS] [--json]

MNIST is the example's; the others are made: CIFAR's format, and JPEGs of 500 x 375 that compress about as photographs do, in a folder for each class and in tar
shards. Both sides take turns; medians over the rounds, of training without each run's first two steps. How many threads make images a job says (`data.workers`).
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from lab import checked, planned, trained  # noqa: E402
from machine import processor  # noqa: E402

SKIPPED_STEPS = 2
CORES = len(os.sched_getaffinity(0))
JPEGS, WIDTH, HEIGHT, A_SHARD = 400, 500, 375, 200
PHOTOGRAPHS = {"crop": "random_resized", "flip": True, "normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}
JITTER = {"jitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}}


def model(arch, image, channels=3, **more):
    return {"arch": arch, "image": image, "channels": channels, "classes": 10, **more}


# data, model, images, batch
ROWS = {
    "MNIST, random crop": ("mnist", model("resnet18", 32, 1), {"crop": "random", "padding": 2, "normalize": {"mean": 0.13, "std": 0.31}}, 64),
    "MNIST, random crop, VGG-11": ("mnist", model("vgg11", 32, 1, norm=True), {"crop": "random", "padding": 2, "normalize": {"mean": 0.13, "std": 0.31}}, 64),
    "CIFAR, random crop, flip": ("cifar", model("resnet18", 32), {"crop": "random", "padding": 4, "flip": True}, 64),
    "JPEGs to 64, crop, flip": ("folders", model("resnet18", 64), PHOTOGRAPHS, 32),
    "JPEGs to 64, crop, flip, jitter, mixup": ("folders", model("resnet50", 64), {**PHOTOGRAPHS, **JITTER, "mixup": 0.2}, 32),
    "JPEGs to 224, crop, flip": ("folders", model("resnet18", 224), PHOTOGRAPHS, 16),
    "shards to 224, crop, flip, jitter": ("shards", model("resnet50", 224), {**PHOTOGRAPHS, **JITTER}, 16),
}


def make_cifar(folder):
    draw = random.Random(1)
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(b"".join(bytes([i % 10]) + draw.randbytes(3072) for i in range(4000)))
    (folder / "test_batch.bin").write_bytes(b"".join(bytes([i % 10]) + draw.randbytes(3072) for i in range(100)))


def make_shards(jpegs, folder):
    folder.mkdir()
    files = sorted(jpegs.rglob("*.jpg"))
    for begin in range(0, len(files), A_SHARD):
        with tarfile.open(folder / f"{begin // A_SHARD:05d}.tar", "w") as tar:
            for file in files[begin:begin + A_SHARD]:
                label = folder / f"{file.stem}.cls"
                label.write_text(file.parent.name)
                tar.add(file, file.name)
                tar.add(label, label.name)
                label.unlink()


class Bench:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.tessera, self.input = os.path.join(arguments.bin, "tessera"), os.path.join(arguments.bin, "tessera_bench_input")
        self.environment = dict(os.environ, TESSERA_CACHE=str(folder / "cache"))
        self.sources = {"mnist": ROOT / "examples" / "mnist" / "mnist", "cifar": folder / "cifar", "folders": folder / "folders", "shards": folder / "shards"}
        make_cifar(self.sources["cifar"])
        checked([self.input, "write", self.sources["folders"], JPEGS, WIDTH, HEIGHT], self.environment)
        make_shards(self.sources["folders"], self.sources["shards"])

    def job(self, name, source, spec, images, batch):
        job = {"name": "job", "model": spec, "data": {"source": str(self.sources[source]), "images": images},
               "train": {"steps": self.arguments.steps, "global_batch": batch, "precision": "fp32", "eval": {"sequences": 1}, "optimizer": {"kind": "sgd", "lr": 0.01}},
               "cluster": "auto", "parallel": {"dp": 1, "tp": 1, "pp": 1, "micro_batches": 1, "threads": CORES}, "checkpoint": {"every": 0}}
        return planned(self.tessera, self.folder, name, job, self.environment)

    def made(self, job):
        told = json.loads(checked([self.input, "read", job, self.arguments.seconds], self.environment))
        return told["images"] / told["seconds"]

    def trained(self, job, plan, batch):
        run = trained(self.tessera, job, plan, self.environment)
        seconds = [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        return batch / statistics.median(seconds[SKIPPED_STEPS:])

    def row(self, words, source, spec, images, batch):
        job, plan = self.job(words.replace(" ", "-"), source, spec, images, batch)
        made, trained = [], []
        for _ in range(self.arguments.rounds):
            made.append(self.made(job))
            trained.append(self.trained(job, plan, batch))
        one = {"data": words, "model": f"{spec['arch']}, {spec['image']} x {spec['image']}", "made": statistics.median(made), "trained": statistics.median(trained)}
        print(f"{words}: {one['made']:.0f} and {one['trained']:.1f} images/s", file=sys.stderr)
        return {**one, "ratio": one["made"] / one["trained"]}


def main():
    parser = argparse.ArgumentParser(prog="./dev bench input", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3, help="of making images, each time")
    parser.add_argument("--only", default="", help="rows that have these words")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, pathlib.Path(folder))
        rows = [bench.row(words, *of) for words, of in ROWS.items() if arguments.only in words]
    if arguments.json:
        print(json.dumps({"machine": processor(), "rows": rows}))
        return
    print(f"{processor()}; images/s, made by one thread and trained on by {CORES}")
    for row in rows:
        print(f"{row['data']:<42}{row['made']:>9.0f}   {row['model']:<22}{row['trained']:>8.1f}{row['ratio']:>8.1f} x")


if __name__ == "__main__":
    main()
