"""Compares a training step of Tessera with PyTorch's, interleaved in one run: one process, THREADS threads, the same model.

    python bench/step/run.py [--binary build/release/bin/tessera_bench_step] [--rounds 7] [--steps 3] [--threads 2] [--precision fp32,bf16] [--json]

All programs stay loaded and take turns, a few steps each, so that other load on the machine meets all of them; a program's
figure is the median over all its steps. Prints a table of tokens/s and ratios, or JSON. Where the CPU has no bf16
instructions, PyTorch takes minutes for the steps in bf16: --precision fp32 leaves them out.
Tessera's programs run in the environment that `tessera train` gives its ranks.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from machine import processor  # noqa: E402
from served import Program  # noqa: E402

PEER = ROOT / "bench" / "step" / "peer.py"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "release" / "bin" / "tessera_bench_step"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precision", type=lambda words: words.split(","), default=["fp32", "bf16"], help="fp32, bf16 or both")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not pathlib.Path(options.binary).exists():
        raise SystemExit(f"{options.binary} does not exist: build it with ./dev build, or name it with --binary")

    common = ["--threads", str(options.threads), "--batch", str(options.batch), "--steps", str(options.steps), "--warmup", "2", "--serve"]
    peer = [sys.executable, str(PEER), *common]
    commands = {
        "tessera fp32": [options.binary, *common, "--precision", "fp32"],
        "tessera autograd fp32": [options.binary, *common, "--precision", "fp32", "--gradients", "autograd"],
        "torch fp32": [*peer, "--precision", "fp32"],
        "torch fp32 compiled": [*peer, "--precision", "fp32", "--compile"],
        "tessera bf16": [options.binary, *common, "--precision", "bf16"],
        "torch bf16 autocast compiled": [*peer, "--precision", "bf16-autocast", "--compile"],
        "torch bf16 weights compiled": [*peer, "--precision", "bf16-master", "--compile"],
        "torch bf16 weights": [*peer, "--precision", "bf16-master"],
    }
    if not set(options.precision) <= {"fp32", "bf16"}:
        raise SystemExit(f"--precision {','.join(options.precision)}: fp32, bf16 or both were expected")
    commands = {name: command for name, command in commands.items() if set(name.split()) & set(options.precision)}
    programs = []
    try:
        for name, command in commands.items():  # one after the other: they warm up, and compile, alone
            print(f"{name}: warming up", file=sys.stderr)
            programs.append(Program(name, command, dict(os.environ, GOMP_SPINCOUNT="1000") if name.startswith("tessera") else None))
            programs[-1].wait_until_ready()
        for turn in range(options.rounds):
            for program in programs:
                program.turn()
            print(f"round {turn + 1} of {options.rounds}", file=sys.stderr)
    finally:
        for program in programs:
            program.close()

    tokens = options.batch * 256
    rate = {p.name: tokens / statistics.median(p.seconds) for p in programs}
    best = {p.name: tokens / min(p.seconds) for p in programs}
    ratios = {}

    def compare(own, *peers):
        if all(name in rate for name in (own, *peers)):
            ratios[f"{own} / {' or '.join(peers)}"] = rate[own] / max(rate[name] for name in peers)

    compare("tessera fp32", "torch fp32")
    compare("tessera fp32", "torch fp32 compiled")
    compare("tessera autograd fp32", "torch fp32")
    compare("tessera bf16", "torch fp32", "torch fp32 compiled")
    compare("tessera bf16", "torch bf16 autocast compiled", "torch bf16 weights compiled")
    import torch
    machine = {"cpu": processor(), "threads": options.threads, "torch": torch.__version__, "python": platform.python_version()}
    if options.json:
        print(json.dumps({"machine": machine, "tokens_per_s": rate, "tokens_per_s_best_step": best, "ratios": ratios,
                          "steps_each": options.rounds * options.steps}))
        return
    print(f"{machine['cpu']}, {options.threads} threads, torch {machine['torch']}; 6 layers, hidden 384, 6/2 heads, FFN 1024, "
          f"vocabulary 8192, seq 256, batch {options.batch}, AdamW; median of {options.rounds * options.steps} steps each")
    print(f"{'':32}{'tokens/s':>10}{'best step':>11}")
    for program in programs:
        print(f"{program.name:32}{rate[program.name]:>10.0f}{best[program.name]:>11.0f}")
    for name, ratio in ratios.items():
        print(f"{name:76}{ratio:>6.2f}")


if __name__ == "__main__":
    main()
