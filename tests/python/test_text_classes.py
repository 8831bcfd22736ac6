"""BERT that tells a text's class: the losses, logits and weights of transformers' BertForSequenceClassification, under any plan, from its files and back."""

import json
import math
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, BertForSequenceClassification

import test_bert
from conftest import SHAKESPEARE

VOCAB, SEQ, CLASSES, STEPS, RATE = 512, 32, 3, 5, 0.05
CONFIG = BertConfig(vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=SEQ,
                    hidden_dropout_prob=0, attention_probs_dropout_prob=0, pad_token_id=None, num_labels=CLASSES)
MODEL = {"arch": "bert", "hidden": 48, "ffn": 96, "layers": 2, "heads": 4, "vocab": VOCAB, "seq": SEQ, "max_positions": SEQ, "dropout": 0,
         "head": "classification", "classes": CLASSES}


def model_of(kind=BertForSequenceClassification):
    return test_bert.model_of(kind, CONFIG)


def ends_in(line):
    return {"?": "question", "!": "call"}.get(line[-1], "statement")


def job(name, parallel, steps=STEPS, **train):
    ranks = math.prod(parallel.get(degree, 1) for degree in ("dp", "pp", "tp", "cp")) if isinstance(parallel, dict) else 2
    return {
        "name": name,
        "model": MODEL,
        "data": {"source": "lines.jsonl", "field": "line", "label": "kind", "split": {"train": 0.9}, "tokenizer": {"kind": "bpe", "vocab": VOCAB}},
        "train": {"steps": steps, "global_batch": 8, "optimizer": {"kind": "sgd", "lr": RATE, "momentum": 0, "weight_decay": 0, "clip": 0},
                  "schedule": {"kind": "constant"}, "eval": {"sequences": 64}, **train},
        "cluster": {"local": {"devices": ranks, "threads": 1}},
        "parallel": parallel,
    }


@pytest.fixture(scope="module")
def work(shared_tessera):
    """Lines of Shakespeare, of each how it ends, and that without its last character; the run `theirs` is transformers' model."""
    lines = [line.strip() for line in SHAKESPEARE.read_text().splitlines()]
    lines = [line for line in lines if len(line) > 12 and re.match(r".*[a-z][.?!]$", line)]
    shared_tessera.write("lines.jsonl", "".join(json.dumps({"line": line[:-1], "kind": ends_in(line)}) + "\n" for line in lines))
    model_of().save_pretrained(shared_tessera.folder / "theirs-hf")
    shared_tessera("import", "theirs-hf", "--name", "theirs")
    return shared_tessera


def batches(work, yaml, count):
    return [json.loads(line) for line in work("data", "batch", yaml, "--count", count, "--json").stdout.splitlines()]


def lengths_of(batch):
    """Positions begin anew where padding follows."""
    return [next((i for i, position in enumerate(row) if i > 0 and position == 0), SEQ) for row in batch["positions"]]


def logits_of(model, batch):
    mask = torch.tensor([[1 if i < length else 0 for i in range(SEQ)] for length in lengths_of(batch)])
    return model(torch.tensor(batch["tokens"]), attention_mask=mask).logits


def test_a_sample_is_a_text_between_markers_with_its_class(work):
    yaml = work.write("batch.yaml", job("batch", {"dp": 1, "pp": 1}))
    (batch,) = batches(work, yaml, 1)
    for tokens, length in zip(batch["tokens"], lengths_of(batch)):
        assert tokens[0] == tokens[length - 1] == 0 and set(tokens[length:]) <= {0} and 0 not in tokens[1:length - 1]
    said = json.loads(work("data", "inspect", yaml, "--json").stdout)
    assert re.match(r"\d+ texts of 3 classes: call \(\d+\), question \(\d+\), statement \(\d+\)", said["notes"][0]), said


@pytest.fixture(scope="module")
def stepped(work):
    """transformers' losses of five steps, and its weights before and after them."""
    model = model_of()
    before = {name: values.clone() for name, values in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    yaml = work.write("stepped.yaml", job("stepped", {"dp": 1, "pp": 1}, init="theirs-hf"))
    for batch in batches(work, yaml, STEPS):
        loss = torch.nn.functional.cross_entropy(logits_of(model, batch), torch.tensor(batch["labels"]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, before, dict(model.named_parameters())


PLANS = [{"dp": 1, "pp": 1}, {"dp": 2, "zero": 1, "micro_batches": 2}, {"dp": 2, "zero": 3, "recompute": "full"}, {"pp": 2, "micro_batches": 4, "schedule": "zb-h1"},
         {"dp": 2, "pp": 2, "micro_batches": 2}, {"pp": 2, "micro_batches": 4, "split": True}, {"tp": 2, "micro_batches": 2},
         {"tp": 2, "pp": 2, "micro_batches": 2, "recompute": "full"}]


@pytest.mark.parametrize("parallel", PLANS)
def test_losses_and_weights_are_those_of_transformers_under_every_plan(work, stepped, parallel):
    losses, before, after = stepped
    name = "-".join(f"{key}{value}" for key, value in parallel.items())
    plan = {key: value for key, value in parallel.items() if key != "split"}
    split = ["--set", "model.split_layers=true"] if "split" in parallel else []
    work("train", work.write(f"{name}.yaml", job(name, plan, init="theirs-hf")), "--no-measure", *split)
    ours = [line["loss"] for line in work.metrics(name)]
    assert ours == pytest.approx(losses, rel=1e-4)
    work("export", name, "--to", "hf", f"{name}-hf")
    weights = load_file(work.folder / f"{name}-hf" / "model.safetensors")
    assert set(weights) == set(after)
    worst = 0
    for parameter, values in after.items():
        moved, off = (values - before[parameter]).norm().item(), (weights[parameter] - values).norm().item()
        assert off < 1e-3 * moved + 1e-5, parameter
        # Biases of keys change no share of attention, and do not move.
        worst = max(worst, off / moved) if moved > 1e-4 else worst
    print(f"{name}: losses {max(abs(one / other - 1) for one, other in zip(ours, losses)):.1e} off at most, weights {worst:.1e} of what they moved")


def test_logits_are_transformers_and_an_export_is_loaded(work):
    tokens = [0, 17, 300, 44, 9, 0]
    ours = torch.tensor([float(word) for word in work("logits", "theirs", "--tokens", ",".join(map(str, tokens)), program="tessera-worker").stdout.split()])
    work("export", "theirs", "--to", "hf", "again-hf")
    again, report = BertForSequenceClassification.from_pretrained(work.folder / "again-hf", output_loading_info=True, dtype=torch.float32)
    assert not report["missing_keys"] and not report["unexpected_keys"] and again.config.num_labels == CLASSES
    with torch.no_grad():
        for model in (model_of(), again.eval()):
            assert torch.allclose(ours, model(torch.tensor([tokens])).logits[0], atol=1e-5)


def test_a_masked_language_model_is_fitted_and_its_accuracy_is_told(work):
    pretrained = model_of(BertForMaskedLM)
    pretrained.save_pretrained(work.folder / "mlm-hf")
    # As the first files of BERT call the norms' parameters.
    weights = {re.sub("LayerNorm.bias$", "LayerNorm.beta", re.sub("LayerNorm.weight$", "LayerNorm.gamma", name)): values
               for name, values in load_file(work.folder / "mlm-hf" / "model.safetensors").items()}
    save_file(weights, work.folder / "mlm-hf" / "model.safetensors", metadata={"format": "pt"})
    fitted = job("fitted", {"dp": 2}, 60, init="mlm-hf", optimizer={"kind": "adamw", "lr": 1e-3})
    said = work("train", work.write("fitted.yaml", fitted), "--no-measure")
    assert "bert.pooler.dense.weight, bert.pooler.dense.bias, classifier.weight, classifier.bias begin with initial weights" in said.stdout + said.stderr
    result = json.loads(work("eval", "fitted", "--json").stdout)
    counts = [json.loads(line)["kind"] for line in (work.folder / "lines.jsonl").read_text().splitlines()]
    assert result["samples"] > 100 and 0.3 < result["accuracy"] <= 1
    losses = [line["loss"] for line in work.metrics("fitted")]
    assert sum(losses[-10:]) < sum(losses[:10]) and counts.count("statement") > 100
    assert " %, over " in work("eval", "fitted").stdout
    refused = work("eval", "fitted", "--text", "lines.jsonl", check=False)
    assert refused.returncode == 2 and "tells the classes that its own texts have" in refused.stderr, refused.stderr
    texts = {line["line"]: line["kind"] for line in map(json.loads, (work.folder / "lines.jsonl").read_text().splitlines())}
    (batch,) = batches(work, work.folder / "fitted.yaml", 1)
    for tokens, length, label in zip(batch["tokens"], lengths_of(batch), batch["labels"]):
        ids = " ".join(map(str, tokens[1:length - 1]))
        found = json.loads(work("data", "decode", "runs/fitted/tokenizer.json", "--json", text=ids + "\n").stdout)["text"]
        assert any(line.startswith(found) and kind == ["call", "question", "statement"][label] for line, kind in texts.items()), found
    # With the model's texts and tokenizer it goes on.
    work("train", work.folder / "fitted.yaml", "--no-measure", "--resume", "--set", "train.steps=62")
    assert len(work.metrics("fitted")) == 62


def test_a_folder_as_bert_is_published_is_fitted_with_its_own_tokenizer(work):
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer, pieces.pre_tokenizer, pieces.decoder = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces.train_from_iterator([SHAKESPEARE.read_text()[:100_000]], trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=special, show_progress=False))
    model_of(BertForPreTraining).save_pretrained(work.folder / "published")
    pieces.save(str(work.folder / "published" / "tokenizer.json"))
    published = job("published-run", {"dp": 1}, 2, init="published")
    published["model"] = {"hf": "published", "seq": SEQ, "head": "classification", "classes": CLASSES}
    published["data"]["tokenizer"] = {"kind": "hf", "file": "published/tokenizer.json"}
    yaml = work.write("published.yaml", published)
    said = work("train", yaml, "--no-measure").stderr
    # What it knows of pairs of sentences begins with its pooler.
    assert "classifier.weight, classifier.bias begin with initial weights" in said and "pooler" not in said, said
    (batch,) = batches(work, yaml, 1)
    for tokens, length in zip(batch["tokens"], lengths_of(batch)):
        assert tokens[0] == 2 and tokens[length - 1] == 3 and set(tokens[length:]) <= {0} and not {0, 2, 3} & set(tokens[1:length - 1])


def test_a_plan_is_measured_and_chosen(work):
    yaml = work.write("auto.yaml", {**job("auto", "auto"), "cluster": "auto"})
    work("profile", yaml, "--seconds", 0.2)
    work("train", yaml)
    assert len(work.metrics("auto")) == STEPS


def test_labels_may_be_numbers(work):
    work.write("numbered.jsonl", "".join(json.dumps({"line": f"number {i} of many", "kind": i % 3 if i % 3 else False}) + "\n" for i in range(60)))
    numbered = job("numbered", {"dp": 1, "pp": 1})
    numbered["data"]["source"] = "numbered.jsonl"
    notes = json.loads(work("data", "inspect", work.write("numbered.yaml", numbered), "--json").stdout)["notes"]
    assert notes[0] == "60 texts of 3 classes: 0 (20), 1 (20), 2 (20)"


@pytest.mark.parametrize("changes, words", [
    ({"data.label": "sort"}, ['has no field "sort"', 'set data.label to']), ({"data.label": "null"}, []),
    ({"model.classes": 2}, ["the texts have 3 classes, and model.classes is 2: call (", "set model.classes to 3"]),
    ({"model.head": "mlm"}, ["head: mlm tells no classes"]), ({"data.mask": "{share: 0.2}"}, ["mask is not said of texts whose class the model tells"]),
    ({"data.source": str(SHAKESPEARE)}, ["is text, which has no labels", "JSONL or Parquet"]), ({"parallel": "{cp: 2}", "cluster.local.devices": 2}, ["cp 2 cuts sequences"]), ({"model.seq": 2}, ["a text stands between two tokens that mark its ends"])])
def test_what_cannot_be_is_refused(work, changes, words):
    if changes.get("data.label") == "null":
        changes, words = {"data": "{source: lines.jsonl, field: line, tokenizer: {kind: bpe, vocab: 512}}"}, ["the data names none", "label: KEY"]
    yaml = work.write("refused.yaml", job("refused", {"dp": 1, "pp": 1}))
    refused = work("train", yaml, "--no-measure", *[word for key, value in changes.items() for word in ("--set", f"{key}={value}")], check=False)
    assert refused.returncode == 2 and all(word in refused.stderr for word in words), refused.stderr
    assert not (work.folder / "runs" / "refused").exists()
