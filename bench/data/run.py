"""Training and using tokenizers on the example's text, beside the `tokenizers` and `sentencepiece` packages.

    python bench/data/run.py [--binary build/release/bin/tessera_bench_data] [--rounds 5] [--json]

One thread each; both sides take turns in one run, figures are medians. The token counts of both sides must be equal.
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

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from machine import processor  # noqa: E402

TEXT = ROOT / "examples" / "shakespeare" / "shakespeare.txt"
VOCAB = 8192
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def trained(text, pre_tokenizer):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<|endoftext|>"], show_progress=False,
                                                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def sentence_model(text, path, kind):
    lines = [line for line in text.splitlines() if line][:40000]
    with open(path, "wb") as out:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, model_type=kind, vocab_size=VOCAB, byte_fallback=True,
                                                 normalization_rule_name="identity", minloglevel=2)


def make_tokenizers(text, folder):
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    llama3 = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    sides = {}
    for name, pre_tokenizer in (("byte-level BPE (GPT-2)", gpt2), ("byte-level BPE (Llama-3)", llama3)):
        path = f"{folder}/{len(sides)}.json"
        trained(text, pre_tokenizer).save(path)
        loaded = Tokenizer.from_file(path)
        sides[name] = (path, lambda loaded=loaded: len(loaded.encode(text, add_special_tokens=False).ids))
    for kind in ("unigram", "bpe"):
        path = f"{folder}/{kind}.model"
        sentence_model(text, path, kind)
        processor = sentencepiece.SentencePieceProcessor(model_file=path)
        sides[f"SentencePiece {kind}"] = (path, lambda processor=processor: len(processor.encode(text)))
    return sides


def timed(work):
    begin = time.perf_counter()
    count = work()
    return {"seconds": time.perf_counter() - begin, "count": count}


def main():
    parser = argparse.ArgumentParser(prog="./dev bench data", description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "build" / "release" / "bin" / "tessera_bench_data")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    text = TEXT.read_text(encoding="utf-8")
    megabytes = TEXT.stat().st_size / 1e6
    ours = subprocess.Popen([arguments.binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(line):
        ours.stdin.write(line + "\n")
        ours.stdin.flush()
        return json.loads(ours.stdout.readline())

    rows = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            work = {f"train BPE, {VOCAB} tokens": (f"train {VOCAB} {TEXT}", lambda: trained(text, pre_tokenizers.ByteLevel(add_prefix_space=False)).get_vocab_size())}
            for name, (path, theirs) in make_tokenizers(text, folder).items():
                work[f"encode, {name}"] = (f"encode {path} {TEXT}", theirs)
            for name, (line, theirs) in work.items():
                pairs = [(ask(line), timed(theirs)) for _ in range(arguments.rounds)]
                mine, other = (statistics.median(pair[side]["seconds"] for pair in pairs) for side in (0, 1))
                equal = all(pair[0]["count"] == pair[1]["count"] for pair in pairs)
                rows.append({"what": name, "tessera_s": mine, "reference_s": other, "tessera_mb_s": megabytes / mine, "reference_mb_s": megabytes / other,
                             "ratio": other / mine, "tokens": pairs[0][0]["count"], "same_tokens": equal})
    finally:
        ours.stdin.close()
        ours.wait(timeout=20)
    if arguments.json:
        print(json.dumps({"machine": processor(), "tokenizers": tokenizers.__version__, "sentencepiece": sentencepiece.__version__, "megabytes": megabytes,
                          "rounds": arguments.rounds, "rows": rows}, indent=2))
    else:
        print(f"{processor()}, one thread, {megabytes:.2f} MB of text, medians of {arguments.rounds} rounds in turns")
        print(f"tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}")
        print(f"{'':<34}{'tessera':>10}{'reference':>11}{'ratio':>7}")
        for row in rows:
            print(f"{row['what']:<34}{row['tessera_mb_s']:>5.1f} MB/s{row['reference_mb_s']:>6.1f} MB/s{row['ratio']:>6.1f}x{'' if row['same_tokens'] else '  DIFFERENT TOKENS'}")
    sys.exit(0 if all(row["same_tokens"] for row in rows) else 1)


if __name__ == "__main__":
    main()
