"""The largest Llama that trains in four workers of 2 GiB each: found by Tessera's planner, beside PyTorch's FSDP2 under the same limit.

    python bench/memory-peers/run.py [--bin build/release/bin] [--gib 2] [--gbit 10] [--rounds 2] [--steps 3] [--least 1024] [--most 2560] [--json]

Models differ in width alone, by 64. Tessera's is the widest that the planner finds a plan for and that then trains, and FSDP2's the widest that trains, with a shard for each layer,
weights made in shards, fused AdamW and memory given back to the kernel; a control group ends workers that need more. Then both train FSDP2's widest in turn, and Tessera its own:
tokens/s of the median step without the first. Needs root (tools/netlab).
"""
import argparse
import importlib.metadata
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from lab import PORT, netlab_or_exit  # noqa: E402
from machine import processor  # noqa: E402
HOSTS = 4
CPU = 0.5
WIDTH_STEP = 64
LAYERS, SEQ, VOCAB, BATCH = 8, 128, 4096, 4
SKIPPED_STEPS = 1
PATIENCE = 900  # seconds
# glibc keeps what FSDP2 gives back of gathered weights: with these a worker needs a quarter less, as far as was tried.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


def model_of(width):
    return {"hidden": width, "layers": LAYERS, "heads": width // 64, "kv_heads": width // 64, "ffn": round(width * 8 / 3 / 64) * 64, "seq": SEQ, "vocab": VOCAB}


def parameters_of(width):
    shape = model_of(width)
    return LAYERS * (4 * width**2 + 3 * width * shape["ffn"] + 2 * width) + 2 * VOCAB * width + width


class Bench:
    def __init__(self, arguments, netlab, folder):
        self.arguments, self.netlab, self.folder, self.tessera = arguments, netlab, folder, os.path.join(arguments.bin, "tessera")
        self.environment = dict(os.environ, TESSERA_CACHE=str(folder / "cache"), OMP_NUM_THREADS="1")
        link = {"name": "lab", "bandwidth": f"{arguments.gbit} Gbit/s", "latency": "100 us", "shared": True}
        device = {"name": "host", "vendor": "cpu", "peak": {"fp32": f"{100 * CPU} GFLOP/s"}, "memory": f"{arguments.gib} GiB", "memory_bandwidth": f"{20 * CPU} GB/s", "cores": 1}
        (folder / "cluster.yaml").write_text(json.dumps({"name": "hosts", "between": link, "groups": [
            {"name": "hosts", "nodes": HOSTS, "inside": "shm", "network": link, "device": device}]}))

    def plan(self, width):
        """The files of a job and of the planner's plan, or None where nothing fits."""
        job, plan = self.folder / f"{width}.yaml", self.folder / f"{width}.json"
        job.write_text(json.dumps({"name": "job", "model": {"arch": "llama", **model_of(width)}, "data": {"source": "synthetic"}, "cluster": "cluster.yaml", "parallel": "auto",
                                   "train": {"steps": 1000, "global_batch": BATCH, "precision": "fp32", "optimizer": {"kind": "adamw", "lr": 3e-4}, "eval": {"sequences": 1}}}))
        done = subprocess.run([self.tessera, "plan", job, "-o", plan], capture_output=True, text=True, env=self.environment)
        return (job, plan) if done.returncode == 0 else None

    def ranks(self, words, done, environment=None):
        """Runs a rank on each host until `done` says so: what it returns then, or None when a rank has ended otherwise."""
        with self.netlab.Lab(HOSTS, [self.arguments.gbit], [CPU] * HOSTS, memory=[self.arguments.gib]) as lab, open(self.folder / "log", "w") as log:
            extra = {**self.environment, **(environment or {}), "WORLD_SIZE": str(HOSTS), "MASTER_ADDR": lab.address(0), "MASTER_PORT": str(PORT)}
            started = [lab.popen(rank, [word.format(rank=rank, place=f"{lab.address(0)}:{PORT}") for word in words], {**extra, "RANK": str(rank)}, stdout=log, stderr=log) for rank in range(HOSTS)]
            give_up = time.monotonic() + PATIENCE
            while time.monotonic() < give_up:
                result = done()
                if result is not None or any(rank.poll() is not None for rank in started):
                    return result
                time.sleep(0.2)
        return None

    def ours(self, width):
        """Seconds of the steps, or None. The run is ended before it saves what it has trained."""
        files, run, steps = self.plan(width), self.folder / "run", self.arguments.steps
        if files is None:
            return None
        shutil.rmtree(run, ignore_errors=True)

        def done():
            lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
            return [json.loads(line)["seconds"] for line in lines[:steps]] if len(lines) > steps else None

        return self.ranks([self.tessera, "worker", str(files[0]), "--plan", str(files[1]), "--run", str(run), "--world", str(HOSTS), "--rendezvous", "{place}", "--rank", "{rank}"], done)

    def theirs(self, width):
        batches, spec = self.folder / "batches.jsonl", self.folder / "spec.json"
        rows = [[(7 * i + 13 * j) % VOCAB for j in range(SEQ)] for i in range(BATCH)]
        batches.write_text("\n".join(json.dumps({"tokens": rows, "targets": rows}) for _ in range(self.arguments.steps)))
        spec.write_text(json.dumps({"way": "zero-3 from birth", "model": model_of(width), "batches": str(batches)}))

        def done():
            lines = [line for line in (self.folder / "log").read_text().splitlines() if line.startswith('{"seconds"')]
            return json.loads(lines[0])["seconds"] if lines else None

        return self.ranks([sys.executable, str(ROOT / "bench" / "parallel" / "peer.py"), str(spec)], done, MALLOC)

    def widest(self, fits):
        """The widest model that `fits`, by bisection: narrower ones fit as well."""
        low, high = self.arguments.least // WIDTH_STEP, self.arguments.most // WIDTH_STEP + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle * WIDTH_STEP) else (low, middle)
        return low * WIDTH_STEP

    def tried(self, side, train):
        def fits(width):
            trains = train(width) is not None
            print(f"{side}: width {width}, {parameters_of(width) / 1e6:.0f} million parameters {'train' if trains else 'do not train'}", file=sys.stderr)
            return trains
        return fits

    def measure(self):
        promised = self.widest(lambda width: self.plan(width) is not None)
        print(f"the planner has a plan up to width {promised}", file=sys.stderr)
        ours = promised
        while not self.tried("tessera", self.ours)(ours):
            ours -= WIDTH_STEP
        theirs = self.widest(self.tried("pytorch", self.theirs))
        both, alone = {"tessera": [], "pytorch": []}, []
        for _ in range(self.arguments.rounds):
            for side, train in (("tessera", self.ours), ("pytorch", self.theirs)):
                seconds = train(theirs)
                if seconds is None:
                    sys.exit(f"{side} trains width {theirs} no more: {(self.folder / 'log').read_text()[-2000:]}")
                both[side] += seconds[SKIPPED_STEPS:]
            alone += (self.ours(ours) or [])[SKIPPED_STEPS:]
        rate = {side: BATCH * SEQ / statistics.median(seconds) for side, seconds in both.items()}
        return {"promised": promised, "tessera": ours, "pytorch": theirs, "parameters": {side: parameters_of(width) for side, width in (("tessera", ours), ("pytorch", theirs))},
                "tokens_per_s": rate, "ratio": rate["tessera"] / rate["pytorch"], "tessera_alone": BATCH * SEQ / statistics.median(alone) if alone else None,
                "plan": json.loads((self.folder / f"{theirs}.json").read_text())["stages"]}


def main():
    parser = argparse.ArgumentParser(prog="./dev bench memory-peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--gib", type=float, default=2, help="memory of each worker")
    parser.add_argument("--gbit", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--least", type=int, default=1024, help="a width that trains")
    parser.add_argument("--most", type=int, default=2560)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    netlab = netlab_or_exit()
    with tempfile.TemporaryDirectory() as folder:
        result = {"machine": processor(), "torch": importlib.metadata.version("torch"), "gib": arguments.gib, "gbit": arguments.gbit, **Bench(arguments, netlab, pathlib.Path(folder)).measure()}
    if arguments.json:
        print(json.dumps(result))
        return
    rate, parameters = result["tokens_per_s"], {side: f"{count / 1e6:.0f} million parameters" for side, count in result["parameters"].items()}
    print(f"{result['machine']}, torch {result['torch']}, {HOSTS} workers of {result['gib']:g} GiB and {CPU} cores, {result['gbit']:g} Gbit/s")
    print(f"largest of Tessera: width {result['tessera']}, {parameters['tessera']} (planned up to width {result['promised']}); of FSDP2: width {result['pytorch']}, {parameters['pytorch']}")
    alone = f"; Tessera's own largest {result['tessera_alone']:.1f} tokens/s" if result["tessera_alone"] else ""
    print(f"FSDP2's largest: Tessera {rate['tessera']:.1f} tokens/s, FSDP2 {rate['pytorch']:.1f}, {result['ratio']:.2f} x{alone}")


if __name__ == "__main__":
    main()
