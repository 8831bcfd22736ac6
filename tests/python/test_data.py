"""Data as people have it: compressed files, Parquet, mixed folders, broken lines, several sources, prompts and answers, documents kept apart, masks and spans."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from conftest import SHAKESPEARE

MODEL = {"arch": "llama", "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128, "seq": 32, "vocab": 512}
ONE = {"dp": 1, "pp": 1, "tp": 1}
DOCUMENTS = [part.strip() for part in SHAKESPEARE.read_text()[:200_000].split("\n\n") if part.strip()]


def job(name, data, parallel=ONE, **train):
    return {
        "name": name, "model": MODEL, "data": {"tokenizer": {"kind": "bytes"}, **data},
        "train": {"steps": 4, "global_batch": 8, "optimizer": {"kind": "adamw", "lr": 1.0e-3}, "eval": {"sequences": 8}, **train},
        "cluster": {"local": {"devices": parallel["dp"] * parallel["pp"] * parallel["tp"], "threads": 1}},
        "parallel": parallel,
    }


def lines_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_bytes(tessera, name, content, compression=None):
    path = Path(tessera.folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.output_stream(str(path), compression=compression) as out:
        out.write(content)
    return path


def batches(tessera, yaml, count):
    return [json.loads(line) for line in tessera("data", "batch", yaml, "--count", count, "--json").stdout.splitlines()]


def test_the_same_documents_give_the_same_tokens_in_every_format(tessera):
    rows = [{"id": i, "text": text} for i, text in enumerate(DOCUMENTS)]
    content = lines_of(rows).encode()
    write_bytes(tessera, "plain.jsonl", content)
    write_bytes(tessera, "gzip.jsonl.gz", content, "gzip")
    write_bytes(tessera, "zstd.jsonl.zst", content, "zstd")
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tessera.folder / "rows.parquet", row_group_size=100)
    large = table.set_column(1, "text", table["text"].cast(pyarrow.large_string()))
    pyarrow.parquet.write_table(large, tessera.folder / "large.parquet", compression="zstd")
    coded = table.set_column(1, "text", table["text"].dictionary_encode())
    pyarrow.parquet.write_table(coded, tessera.folder / "coded.parquet")
    for i, text in enumerate(DOCUMENTS):
        compression = [None, "gzip", "zstd"][i % 3]
        write_bytes(tessera, f"folder/{i:05}.txt" + {None: "", "gzip": ".gz", "zstd": ".zst"}[compression], text.encode(), compression)
    seen = {}
    for source in ["plain.jsonl", "gzip.jsonl.gz", "zstd.jsonl.zst", "rows.parquet", "large.parquet", "coded.parquet", "folder"]:
        yaml = tessera.write("job.yaml", job("job", {"source": source, "tokenizer": {"kind": "bpe", "vocab": 512}}))
        packed = json.loads(tessera("data", "pack", yaml, "--json").stdout)
        seen[source] = packed["documents"], packed["tokens"], batches(tessera, yaml, 3)
    assert seen["plain.jsonl"][0] == len(DOCUMENTS)
    for source, tokens in seen.items():
        assert tokens == seen["plain.jsonl"], source
    tessera("train", yaml, "--no-measure", "--set", "data.source=rows.parquet")
    assert len(tessera.metrics("job")) == 4


def test_a_column_that_is_not_there_or_no_parquet_at_all_is_answered(tessera):
    pyarrow.parquet.write_table(pyarrow.table({"body": ["a"], "number": [1]}), tessera.folder / "a.parquet")
    result = tessera("data", "inspect", "a.parquet", check=False)
    assert result.returncode == 2 and 'no column "text"' in result.stderr and "body, number" in result.stderr, result.stderr
    result = tessera("data", "inspect", "a.parquet", "--field", "number", check=False)
    assert result.returncode == 2 and 'column "number" holds int64' in result.stderr, result.stderr
    (tessera.folder / "b.parquet").write_bytes((tessera.folder / "a.parquet").read_bytes()[:-10])
    result = tessera("data", "inspect", "b.parquet", check=False)
    assert result.returncode == 3 and "b.parquet" in result.stderr and "cannot be read" in result.stderr, result.stderr


def test_a_cut_off_file_is_refused_and_leaves_no_cache(tessera, tmp_path):
    whole = write_bytes(tessera, "whole.jsonl.gz", lines_of({"text": text} for text in DOCUMENTS).encode(), "gzip").read_bytes()
    (tessera.folder / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    tessera.environment["TESSERA_CACHE"] = str(tmp_path / "own-cache")
    yaml = tessera.write("job.yaml", job("job", {"source": "cut.jsonl.gz"}))
    result = tessera("train", yaml, "--no-measure", check=False)
    assert result.returncode == 3 and "cut.jsonl.gz" in result.stderr and "cut off" in result.stderr, result.stderr
    assert not list((tmp_path / "own-cache").glob("*.bin*"))
    assert not (tessera.folder / "runs").exists()


def test_a_mixed_folder_says_what_it_leaves_out_and_why(tessera):
    write_bytes(tessera, "texts/a.txt", "\n\n".join(DOCUMENTS).encode())
    write_bytes(tessera, "texts/b.md", b"# no")
    write_bytes(tessera, "texts/deep/c.txt", b"")
    write_bytes(tessera, "texts/README", b"no")
    yaml = tessera.write("job.yaml", job("job", {"source": "texts"}))
    message = tessera("train", yaml, "--no-measure").stderr
    assert message.count("left out of ") == 1, message
    for words in ["README (has no ending)", "b.md (ends in .md)", "deep/c.txt (is empty)"]:
        assert words in message, message
    assert "left out of " in (tessera.folder / "runs" / "job" / "log.txt").read_text()
    inspected = json.loads(tessera("data", "inspect", "texts", "--json").stdout)
    assert inspected["files"] == 1 and inspected["left_out"] == ["texts/README has no ending", "texts/b.md ends in .md", "texts/deep/c.txt is empty"]
    write_bytes(tessera, "none/b.md", b"# no")
    result = tessera("data", "inspect", "none", check=False)
    assert result.returncode == 2 and "holds no text" in result.stderr and "b.md (ends in .md)" in result.stderr, result.stderr


def test_broken_lines_are_skipped_on_request_and_counted_each_time(tessera):
    content = lines_of({"text": text} for text in DOCUMENTS).splitlines()
    content[3:3] = ["{nonsense", '{"body": "no text"}', '{"text": 5}']
    tessera.write("a.jsonl", "\n".join(content))
    yaml = tessera.write("job.yaml", job("job", {"source": "a.jsonl"}))
    result = tessera("train", yaml, "--no-measure", check=False)
    assert result.returncode == 2 and "a.jsonl:4" in result.stderr and "on_error: skip" in result.stderr, result.stderr
    assert not (tessera.folder / "runs").exists()
    yaml = tessera.write("job.yaml", job("job", {"source": "a.jsonl", "on_error": "skip"}))
    for _ in range(2):  # read, and from the cache
        message = tessera("train", yaml, "--no-measure", "--overwrite").stderr
        assert message.count("3 records of") == 1 and "were skipped" in message, message
    packed = json.loads(tessera("data", "pack", yaml, "--json").stdout)
    assert packed["skipped"] == 3 and packed["documents"] == len(DOCUMENTS)


def test_sources_are_mixed_by_their_weights_whatever_the_plan(tessera):
    tessera.write("first.txt", "a" * 40_000)
    tessera.write("second.txt", "b" * 10_000)
    data = {"sources": [{"path": "first.txt", "weight": 0.75}, {"path": "second.txt", "weight": 0.25}]}
    yaml = tessera.write("job.yaml", job("job", data, steps=40))
    split = json.loads(tessera("data", "split", yaml, "--json").stdout)
    assert [round(source["share"], 2) for source in split["sources"]] == [0.75, 0.25]
    drawn = [token for batch in batches(tessera, yaml, 40) for token in (row[0] for row in batch["tokens"])]
    share = drawn.count(ord("b")) / len(drawn)
    assert 0.15 < share < 0.35, share
    samples = [batch["samples"] for batch in batches(tessera, yaml, 40)]
    for parallel in [{"dp": 2, "pp": 1, "tp": 1}, {"dp": 1, "pp": 2, "tp": 1, "micro_batches": 2}]:
        other = tessera.write("other.yaml", job("other", data, parallel, steps=40))
        assert [batch["samples"] for batch in batches(tessera, other, 40)] == samples
    shown = " ".join(tessera("data", "split", yaml).stdout.split())
    assert "75.0 % from " in shown and "25.0 % from " in shown, shown
    refused = tessera("train", yaml, "--no-measure", "--set", "data.sources=[{path: first.txt, weight: 1}, second.txt]", check=False)
    assert refused.returncode == 2 and "1 of 2 sources have a weight" in refused.stderr, refused.stderr


def losses_of_pytorch(tessera, yaml, start, rates, steps):
    """A plain PyTorch loop over the batches that Tessera shows: documents kept apart by a mask and by their positions, -1 not counted."""
    model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32, attn_implementation="sdpa")
    decayed = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}], lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step, batch in enumerate(batches(tessera, yaml, steps)):
        tokens, targets = torch.tensor(batch["tokens"]), torch.tensor(batch["targets"])
        options = {}
        if "positions" in batch:
            positions = torch.tensor(batch["positions"])
            document = (positions == 0).cumsum(1)
            seen = (document[:, :, None] == document[:, None, :]) & torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
            options = {"position_ids": positions, "attention_mask": torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None]}
        for group in optimizer.param_groups:
            group["lr"] = rates[step]
        logits = model(tokens, **options).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def questions():
    """Of very unequal lengths, so that replicas and micro-batches have very unequal numbers of answer tokens."""
    words = " ".join(DOCUMENTS).split()
    rows = []
    for i in range(600):
        rows.append({"question": " ".join(words[i * 7 : i * 7 + 1 + i % 5]), "reply": " " + " ".join(words[i * 3 : i * 3 + 1 + (i * i) % 9])})
    return rows


DATA = {
    "answers": {"source": "questions.jsonl", "prompt": "question", "answer": "reply"},
    "answers-together": {"source": "questions.jsonl", "prompt": "question", "answer": "reply", "separate_documents": False},
    "apart": {"source": "documents.jsonl", "separate_documents": True},
}
PLANS = [
    ONE, {"dp": 2, "pp": 1, "tp": 1}, {"dp": 1, "pp": 1, "tp": 1, "micro_batches": 4}, {"dp": 1, "pp": 2, "tp": 1, "micro_batches": 4},
    {"dp": 1, "pp": 1, "tp": 2}, {"dp": 2, "pp": 2, "tp": 1, "zero": 1, "micro_batches": 2, "recompute": "full"},
]


@pytest.mark.parametrize("kind", DATA)
def test_every_plan_has_pytorchs_losses(tessera, kind):
    steps = 12
    tessera.write("questions.jsonl", lines_of(questions()))
    tessera.write("documents.jsonl", lines_of({"text": text[: 5 + 11 * i % 90]} for i, text in enumerate(DOCUMENTS)))
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=MODEL["vocab"], hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=False)
    LlamaForCausalLM(config).float().save_pretrained(tessera.folder / "hf")
    tessera("import", "hf", "--name", "start")
    expected = None
    for index, parallel in enumerate(PLANS):
        yaml = tessera.write("job.yaml", job(f"plan{index}", DATA[kind], parallel, steps=steps, init="runs/start"))
        tessera("train", yaml, "--no-measure")
        metrics = tessera.metrics(f"plan{index}")
        if expected is None:
            expected = losses_of_pytorch(tessera, yaml, tessera.folder / "hf", [line["lr"] for line in metrics], steps)
            validation = tessera.evaluations("plan0")[-1]["validation_loss"]
        worst = max(abs(line["loss"] - loss) / loss for line, loss in zip(metrics, expected, strict=True))
        print(f"{kind}, {parallel}: worst relative difference {worst:.1e}")
        assert worst < 1e-5
        assert abs(tessera.evaluations(f"plan{index}")[-1]["validation_loss"] - validation) < 1e-5


def test_answers_that_are_cut_or_left_out_are_told(tessera):
    rows = questions() + [{"question": "q" * 100, "reply": "r"}, {"question": "q", "reply": "r" * 100}]
    tessera.write("questions.jsonl", lines_of(rows))
    yaml = tessera.write("job.yaml", job("job", DATA["answers"]))
    message = tessera("train", yaml, "--no-measure").stderr
    assert "are longer than model.seq 32 with their prompts" in message and "are left out: their prompts alone" in message, message
    shown = json.loads(tessera("data", "inspect", "questions.jsonl", "--prompt", "question", "--answer", "reply", "--json").stdout)
    assert shown["samples"][0] == {"prompt": rows[0]["question"], "answer": rows[0]["reply"]}


def test_inspect_knows_a_tokenizer_by_its_content(tessera):
    tessera("data", "tokenizer", SHAKESPEARE, "--vocab", 300, "-o", "words.json")
    shown = json.loads(tessera("data", "inspect", "words.json", "--json").stdout)
    assert shown["kind"] == "tokenizer" and shown["vocab"] == 300
    tessera.write("lines.json", '{"text": "a document"}\n{"text": "another"}\n')
    assert json.loads(tessera("data", "inspect", "lines.json", "--json").stdout)["kind"] == "text"


def test_paths_in_a_train_yaml_begin_at_its_folder(tessera):
    tessera.write("text.txt", "the wrong one")
    write_bytes(tessera, "deep/er/text.txt", SHAKESPEARE.read_bytes()[:100_000])
    yaml = tessera.write("deep/er/job.yaml", job("job", {"source": "text.txt"}))
    tessera("train", yaml.relative_to(tessera.folder), "--no-measure")
    kept = (tessera.folder / "runs" / "job" / "train.yaml").read_text()
    assert str(tessera.folder / "deep/er/text.txt") in kept, kept
    missing = tessera("train", yaml, "--no-measure", "--set", "name=other", "--set", "data.source=nowhere.txt", check=False)
    assert missing.returncode == 3 and "nowhere.txt does not exist" in missing.stderr, missing.stderr
    yaml = tessera.write("deep/other.yaml", job("other", {"source": "texts.txt"}))
    missing = tessera("train", yaml, "--no-measure", check=False)
    assert missing.returncode == 3 and "deep/texts.txt does not exist" in missing.stderr, missing.stderr


@pytest.fixture
def imported(tessera):
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=64)
    LlamaForCausalLM(config).float().save_pretrained(tessera.folder / "hf")
    tessera("data", "tokenizer", SHAKESPEARE, "--vocab", 512, "-o", "hf/tokenizer.json")
    (tessera.folder / "text.txt").write_bytes(SHAKESPEARE.read_bytes()[:100_000])
    return tessera


def test_an_imported_run_without_a_text_is_not_evaluated_or_trained(imported):
    imported("import", "hf", "--name", "bare")
    for command in [("eval", "bare"), ("train", "runs/bare/train.yaml", "--resume", "--no-measure"), ("data", "split", "runs/bare/train.yaml")]:
        result = imported(*command, check=False)
        assert result.returncode == 2, result.stderr
        assert "data.source is not set" in result.stderr and "runs/bare/train.yaml" in result.stderr and not result.stdout, result.stderr
    assert json.loads(imported("generate", "bare", "--prompt", "To be", "--max-tokens", 3, "--json").stdout)["prompt"] == "To be"
    imported("export", "bare", "--to", "hf", "again")
    assert AutoTokenizer.from_pretrained(imported.folder / "again").encode("To be", add_special_tokens=False)


def test_import_takes_a_text_to_evaluate_and_train_on(imported):
    imported("import", "hf", "--name", "ready", "--source", "text.txt")
    assert f'"{imported.folder / "text.txt"}"' in (imported.folder / "runs" / "ready" / "train.yaml").read_text()
    evaluated = json.loads(imported("eval", "ready", "--sequences", 8, "--json").stdout)
    assert evaluated["tokens"] == 8 * 64 and evaluated["unigram_entropy"] > 1
    imported("train", "runs/ready/train.yaml", "--resume", "--no-measure", "--set", "train.steps=2")
    assert len(imported.metrics("ready")) == 2
    result = imported("import", "hf", "--name", "other", "--source", "texts.txt", check=False)
    assert result.returncode == 3 and "did you mean text.txt" in result.stderr, result.stderr
    assert not (imported.folder / "runs" / "other").exists()


def test_an_imported_model_is_not_read_with_another_tokenizer(imported):
    (imported.folder / "hf" / "tokenizer.json").unlink()
    imported("import", "hf", "--name", "mute", "--source", "text.txt")
    result = imported("eval", "mute", check=False)
    assert result.returncode == 3 and "runs/mute/tokenizer.json does not exist" in result.stderr, result.stderr


def test_bert_sees_the_same_text_with_masks_where_its_targets_are(tessera):
    write_bytes(tessera, "documents.jsonl", lines_of({"text": text} for text in DOCUMENTS).encode())
    plain = job("job", {"source": "documents.jsonl"})
    masked = {**plain, "model": {"arch": "bert", "hidden": 64, "layers": 2, "heads": 4, "seq": 32, "vocab": 258}}
    plain_yaml, masked_yaml = tessera.write("plain.yaml", plain), tessera.write("masked.yaml", masked)
    chosen = 0
    for expected, seen in zip(batches(tessera, plain_yaml, 4), batches(tessera, masked_yaml, 4)):
        assert seen["samples"] == expected["samples"]
        for tokens, targets, original in zip(seen["tokens"], seen["targets"], expected["tokens"]):
            assert [token if target < 0 else target for token, target in zip(tokens, targets)] == original
            ordinary = sum(token != 256 for token in original)
            assert sum(target >= 0 for target in targets) == int(0.15 * ordinary + 0.5)
            chosen += tokens.count(257)
    assert chosen > 32
    assert "[MASK]" in tessera("data", "batch", masked_yaml).stdout and "[MASK]" in tessera("data", "inspect", masked_yaml).stdout
    result = tessera("data", "batch", masked_yaml, "--set", "model.vocab=257", check=False)
    assert result.returncode == 2 and "set model.vocab to 258" in result.stderr, result.stderr
    result = tessera("data", "batch", plain_yaml, "--set", "data.mask.share=0.2", check=False)
    assert result.returncode == 2 and "llama predicts the next token" in result.stderr, result.stderr


def test_t5_reads_the_text_without_the_spans_that_its_decoder_writes(tessera):
    write_bytes(tessera, "documents.jsonl", lines_of({"text": text} for text in DOCUMENTS).encode())
    yaml = tessera.write("t5.yaml", {
        **job("job", {"source": "documents.jsonl", "mask": {"share": 0.2}}),
        "model": {"arch": "t5", "hidden": 64, "layers": 2, "heads": 4, "ffn": 128, "seq": 32, "decoder_seq": 16, "vocab": 264},
    })
    [seen] = batches(tessera, yaml, 1)
    text = b"\n\n".join(text.encode() for text in DOCUMENTS)
    for tokens, decoder_tokens, targets in zip(seen["tokens"], seen["decoder_tokens"], seen["targets"]):
        assert len(tokens) == 32 and len(targets) == 16 and decoder_tokens == [0, *(max(target, 0) for target in targets[:-1])]
        written = [target for target in targets if target >= 0]
        for token in [token for token in tokens if token > 256]:
            begin, end = written.index(token), written.index(token - 1)
            place = tokens.index(token)
            tokens[place : place + 1] = written[begin + 1 : end]
        assert bytes(token if token < 256 else 0 for token in tokens).replace(b"\0", b"\n\n") in text
    assert "<extra_id_0>" in tessera("data", "inspect", yaml).stdout
    result = tessera("data", "batch", yaml, "--set", "model.decoder_seq=8", check=False)
    assert result.returncode == 2 and "model.decoder_seq of at least" in result.stderr, result.stderr
