"""Compares training steps of Llama's 1B and 8B shapes on one GPU with PyTorch's, eager and compiled: tokens/s, MFU, memory, in bf16.

    ./dev bench gpu [--shapes 1b,8b] [--batch 4] [--seq 2048] [--only WORDS] [--rounds 3] [--steps 5] [--json]

One program at a time has the GPU. A model that does not fit with its optimizer is cut to fewer layers, and the table says to how many.
MFU counts six FLOPs per parameter and token, but for the embedding, and the causal half of attention, over the device's dense bf16 peak.
Where there is no GPU it says so and exits with 3.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from machine import gpu_or_exit  # noqa: E402
from served import Program  # noqa: E402

BIN = ROOT / "build" / "release" / "bin"
PEER = ROOT / "bench" / "step" / "peer.py"
# layers, hidden, heads, kv_heads, ffn, vocabulary: of Llama 3.2 1B (with a head of its own) and Llama 3.1 8B.
SHAPES = {"1b": (16, 2048, 32, 8, 8192, 128256), "8b": (32, 4096, 32, 8, 14336, 128256)}
BYTES_PER_PARAMETER = 18  # bf16 weights; f32 master, gradient and two moments
FILL = 0.8  # of the memory; the rest is for what the allocator cannot use and for temporaries


def layer_parameters(shape):
    _, hidden, heads, kv_heads, ffn, _ = shape
    return hidden * (2 * hidden + 2 * kv_heads * hidden // heads + 3 * ffn + 2)


def layers_that_fit(shape, tokens, memory):
    layers, hidden, _, _, ffn, vocab = shape
    fixed = 2 * vocab * hidden * BYTES_PER_PARAMETER + tokens * vocab * 10  # logits, their softmax and their gradient
    each = layer_parameters(shape) * BYTES_PER_PARAMETER + tokens * 2 * (8 * hidden + 4 * ffn)
    return max(1, min(layers, int((FILL * memory - fixed) / each)))


def flops_per_token(shape, layers, seq):
    _, hidden, _, _, _, vocab = shape
    return 6 * (layers * layer_parameters(shape) + vocab * hidden) + 6 * layers * seq * hidden


def peak_flops():
    """The device's dense bf16 rate, or None where it is not among the known ones."""
    done = subprocess.run([BIN / "tessera", "cluster", "discover", "--json"], capture_output=True, text=True)
    groups = json.loads(done.stdout)["groups"] if done.returncode == 0 else []
    return next((group["device"]["peak_flops"].get("bf16") for group in groups if group["device"]["vendor"] == "nvidia"), None)


def commands(common):
    peer = [sys.executable, str(PEER), *common]
    return {"tessera bf16": [str(BIN / "tessera_bench_step"), *common, "--precision", "bf16"],
            "torch bf16 weights": [*peer, "--precision", "bf16-master"],
            "torch bf16 weights compiled": [*peer, "--precision", "bf16-master", "--compile"],
            "torch bf16 autocast": [*peer, "--precision", "bf16-autocast"],
            "torch bf16 autocast compiled": [*peer, "--precision", "bf16-autocast", "--compile"]}


def measure(name, command, rounds):
    print(f"{name}: warming up", file=sys.stderr)
    program = Program(name, command)
    try:
        program.wait_until_ready()
        for _ in range(rounds):
            program.turn()
        return {"seconds": statistics.median(program.seconds), "peak_bytes": program.peak_bytes}
    except SystemExit as failure:  # out of memory, above all: the others are still worth knowing
        return {"failed": str(failure)}
    finally:
        program.close()


def measure_shape(name, options, gpu, peak):
    shape = SHAPES[name]
    tokens = options.batch * options.seq
    layers = layers_that_fit(shape, tokens, gpu["memory"])
    words = ",".join(map(str, (layers, *shape[1:], options.seq)))
    common = ["--shape", words, "--device", "cuda:0", "--batch", str(options.batch), "--steps", str(options.steps), "--warmup", "3",
              "--threads", str(os.cpu_count()), "--serve"]
    rows = {side: measure(side, command, options.rounds) for side, command in commands(common).items() if any(word in side for word in options.only)}
    for row in rows.values():
        if "seconds" in row:
            row["tokens_per_s"] = tokens / row["seconds"]
            row["mfu"] = row["tokens_per_s"] * flops_per_token(shape, layers, options.seq) / peak if peak else None
    return {"shape": name, "layers": layers, "of_layers": shape[0], "rows": rows}


def show(result):
    print(f"{result['gpu']['name']}, {result['gpu']['memory'] / 2**30:.0f} GiB, torch {result['gpu']['torch']}; batch {result['batch']}, "
          f"seq {result['seq']}, AdamW, bf16 with f32 master weights; medians of {result['steps']} steps")
    for part in result["shapes"]:
        cut = "" if part["layers"] == part["of_layers"] else f" of {part['of_layers']}, which do not fit"
        print(f"\nLlama {part['shape']}, {part['layers']} layers{cut}")
        print(f"{'':32}{'tokens/s':>10}{'MFU':>8}{'peak GiB':>10}{'tessera is':>12}")
        ours = part["rows"].get("tessera bf16", {}).get("tokens_per_s")
        for name, row in part["rows"].items():
            if "failed" in row:
                print(f"{name:32}  {row['failed']}")
                continue
            mfu = f"{row['mfu']:.3f}" if row["mfu"] else "-"
            ratio = f"{ours / row['tokens_per_s']:.2f}x" if ours else "-"
            print(f"{name:32}{row['tokens_per_s']:>10.0f}{mfu:>8}{row['peak_bytes'] / 2**30:>10.1f}{ratio:>12}")


def main():
    parser = argparse.ArgumentParser(prog="./dev bench gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda words: words.split(","), default=list(SHAPES), help=", ".join(SHAPES))
    parser.add_argument("--only", type=lambda words: words.split(","), default=[""], metavar="WORDS", help="only programs whose names have one of these: tessera,compiled")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.shapes) - set(SHAPES):
        parser.error(f"no shape is called {', '.join(unknown)}: {', '.join(SHAPES)}")
    if unknown := [word for word in options.only if not any(word in side for side in commands([]))]:
        parser.error(f"no program is called {', '.join(unknown)}: {', '.join(commands([]))}")
    gpu = gpu_or_exit()
    peak = peak_flops()
    result = {"gpu": gpu, "peak_bf16": peak, "batch": options.batch, "seq": options.seq, "steps": options.rounds * options.steps,
              "shapes": [measure_shape(name, options, gpu, peak) for name in options.shapes]}
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
