"""GPT-2: the same losses and logits as transformers' model, under any plan."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from conftest import SHAKESPEARE

MODEL = dict(hidden=64, layers=4, heads=4, seq=32, vocab=512, dropout=0)
STEPS = 6
START = 2
TOLERANCE = 1e-4


def job(name, parallel, **train):
    ranks = math.prod(parallel.get(degree, 1) for degree in ("dp", "pp", "tp", "cp"))
    return {
        "name": name,
        "model": {"arch": "gpt", **MODEL},
        "data": {"source": str(SHAKESPEARE), "tokenizer": {"kind": "bpe", "vocab": MODEL["vocab"]}},
        "train": {"steps": STEPS, "global_batch": 8, "seed": 3, "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0, "weight_decay": 0, "clip": 1.0},
                  "schedule": {"kind": "constant"}, "eval": {"sequences": 8}, **train},
        "checkpoint": {"every": START, "keep": 9},
        "cluster": {"local": {"devices": ranks, "threads": 1}},
        "parallel": parallel,
    }


def weights_of(run, step):
    """Of a run on one device: each tensor is one piece of one file."""
    folder = run / "checkpoints" / f"step-{step:06d}"
    manifest = json.loads((folder / "manifest.json").read_text())
    content = (folder / "rank-00000.safetensors").read_bytes()
    out = {}
    for name, tensor in manifest["tensors"].items():
        raw = b"".join(content[piece["offset"]:piece["offset"] + piece["bytes"]] for piece in tensor["pieces"])
        out[name] = torch.frombuffer(bytearray(raw), dtype=torch.float32).view(tensor["shape"])
    return out


def gpt2(weights):
    config = GPT2Config(vocab_size=MODEL["vocab"], n_positions=MODEL["seq"], n_embd=MODEL["hidden"], n_layer=MODEL["layers"],
                        n_head=MODEL["heads"], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="sdpa")
    plain = GPT2LMHeadModel(config).float()
    # Checkpoints have queries, keys and values in a dimension of their own.
    shapes = {name: value.shape for name, value in plain.state_dict().items()}
    missing, unexpected = plain.load_state_dict({name: value.view(shapes[name]) for name, value in weights.items()}, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    plain.tie_weights()
    return plain


@pytest.fixture(scope="module")
def one(shared_tessera):
    yaml = shared_tessera.write("one.yaml", job("one", {"dp": 1, "pp": 1}))
    shared_tessera("train", yaml, "--no-measure")
    shared_tessera.yaml = yaml
    shared_tessera.run = Path(shared_tessera.folder) / "runs" / "one"
    return shared_tessera


def test_the_losses_are_those_of_transformers(one):
    plain = gpt2(weights_of(one.run, START))
    lines = one("data", "batch", one.yaml, "--step", START, "--count", STEPS - START, "--json").stdout.splitlines()
    for metrics, batch in zip(one.metrics("one")[START:], map(json.loads, lines)):
        tokens, targets = torch.tensor(batch["tokens"]), torch.tensor(batch["targets"])
        loss = torch.nn.functional.cross_entropy(plain(tokens).logits.view(-1, MODEL["vocab"]), targets.view(-1))
        plain.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter -= metrics["lr"] * parameter.grad
        assert metrics["loss"] == pytest.approx(loss.item(), rel=TOLERANCE)
        assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=TOLERANCE)


def test_the_logits_and_the_text_are_those_of_transformers(one):
    plain = gpt2(weights_of(one.run, STEPS))
    tokens = [7, 300, 12, 44, 505, 9]
    rows = one("logits", "one", "--tokens", ",".join(map(str, tokens)), program="tessera-worker").stdout.splitlines()
    ours = torch.tensor([[float(word) for word in row.split()] for row in rows])
    with torch.no_grad():
        assert torch.allclose(ours, plain(torch.tensor([tokens])).logits[0], atol=TOLERANCE)
    # With a cache of keys and values, token by token.
    prompt = "First Citizen:"
    written = json.loads(one("generate", "one", "--prompt", prompt, "--temperature", 0, "--max-tokens", 12, "--json").stdout)["text"]
    encode = lambda text: json.loads(one("data", "encode", "runs/one/tokenizer.json", "--json", text=text).stdout)["ids"]  # noqa: E731
    ids = encode(prompt)
    with torch.no_grad():
        for _ in range(12):
            ids.append(int(plain(torch.tensor([ids])).logits[0, -1].argmax()))
    decoded = json.loads(one("data", "decode", "runs/one/tokenizer.json", "--json", text=" ".join(map(str, ids)) + "\n").stdout)["text"]
    assert decoded == prompt + written


PLANS = [
    {"dp": 2}, {"pp": 2, "micro_batches": 4}, {"dp": 2, "pp": 2, "zero": 1, "micro_batches": 2}, {"dp": 2, "zero": 3, "micro_batches": 2},
    {"pp": 2, "micro_batches": 4, "schedule": "zb-h1", "recompute": "full"}, {"pp": 2, "micro_batches": 4, "schedule": "interleaved", "chunks": 2},
    {"tp": 2, "recompute": "selective"}, {"tp": 2, "sequence_parallel": True, "micro_batches": 2}, {"cp": 2, "context": "ring"},
    {"cp": 2, "tp": 2, "context": "ulysses", "recompute": "full"}]


def expect_the_same(tessera, name, reference):
    for ours, theirs in zip(tessera.metrics(name), tessera.metrics(reference), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=TOLERANCE)


@pytest.mark.parametrize("parallel", PLANS)
def test_every_plan_follows_one_device(one, parallel):
    name = "-".join(f"{key}{value}" for key, value in parallel.items())
    one("train", one.write(f"{name}.yaml", job(name, parallel)), "--no-measure")
    expect_the_same(one, name, "one")


@pytest.fixture(scope="module")
def dropping(one):
    one("train", one.yaml, "--no-measure", "--set", "model.dropout=0.2", "--set", "name=dropping")
    return one


@pytest.mark.parametrize("parallel", PLANS)
def test_what_is_dropped_does_not_depend_on_the_plan(dropping, parallel):
    name = "dropping-" + "-".join(f"{key}{value}" for key, value in parallel.items())
    dropping("train", dropping.write(f"{name}.yaml", job(name, parallel)), "--no-measure", "--set", "model.dropout=0.2")
    expect_the_same(dropping, name, "dropping")


def test_something_is_dropped_in_training_and_nothing_in_evaluation(one):
    trained, validated = [], []
    for name, dropout in [("keeping", 0), ("losing", 0.2)]:
        one("train", one.yaml, "--no-measure", "--set", "train.optimizer.lr=0", "--set", "train.steps=1", "--set", f"model.dropout={dropout}",
            "--set", f"name={name}")
        trained.append(one.metrics(name)[0]["loss"])
        validated.append(json.loads(one("eval", name, "--sequences", 8, "--json").stdout)["loss"])
    assert validated[0] == validated[1]
    assert abs(trained[0] - trained[1]) > 1e-4


def test_documents_apart_and_bf16_train(one):
    yaml = one.write("apart.yaml", job("apart", {"dp": 2}))
    one("train", yaml, "--no-measure", "--set", "data.separate_documents=true", "--set", "train.precision=bf16")
    losses = [line["loss"] for line in one.metrics("apart")]
    assert losses[-1] < losses[0]


def test_a_plan_is_measured_and_chosen(one):
    yaml = one.write("auto.yaml", {**job("auto", {}), "cluster": "auto", "parallel": "auto"})
    one("profile", yaml, "--seconds", 0.2)
    one("train", yaml)
    assert len(one.metrics("auto")) == STEPS
    one("train", yaml, "--set", "parallel={tp: 2, recompute: selective}", "--overwrite")
    assert len(one.metrics("auto")) == STEPS
    refused = one("train", yaml, "--overwrite", "--set", "model.positions=alibi", check=False)
    assert refused.returncode == 2 and "learned or rotary positions, or none" in refused.stderr, refused.stderr
    # So does a worker that is started by hand.
    one("plan", yaml, "-o", "hand.json", "--set", "model.positions=alibi")
    refused = one("worker", yaml, "--plan", "hand.json", "--rank", 0, "--world", 1, "--set", "model.positions=alibi", "--set", "name=hand", check=False)
    assert refused.returncode == 2 and "learned or rotary positions, or none" in refused.stderr and not (one.run.parent / "hand").exists(), refused.stderr


def test_transformers_loads_the_export_with_the_same_logits(one):
    one("export", "one", "--to", "hf", "one-hf")
    theirs = GPT2LMHeadModel.from_pretrained(one.folder / "one-hf").eval()
    assert theirs.config.activation_function == "gelu_new" and theirs.config.n_positions == MODEL["seq"]
    expect_the_same_logits(one, "one", theirs)
    refused = one("export", "one", "--to", "hf", "other-hf", "--set", "model.biases=false", check=False)
    assert refused.returncode == 2, refused.stderr


def expect_the_same_logits(tessera, run, theirs):
    tokens = [7, 300, 12, 44, 505, 9]
    rows = tessera("logits", run, "--tokens", ",".join(map(str, tokens)), program="tessera-worker").stdout.splitlines()
    ours = torch.tensor([[float(word) for word in row.split()] for row in rows])
    with torch.no_grad():
        assert torch.allclose(ours, theirs(torch.tensor([tokens])).logits[0], atol=TOLERANCE)


# GPT-2's own files are of the model without its head.
@pytest.mark.parametrize("part", ["whole", "without its head"])
def test_what_transformers_saved_is_imported_with_the_same_logits(one, part):
    torch.manual_seed(5)
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=MODEL["vocab"], n_positions=48, n_embd=64, n_layer=2, n_head=4, n_inner=96)).float().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    name = part.replace(" ", "-")
    (theirs if part == "whole" else theirs.transformer).save_pretrained(one.folder / f"{name}-hf")
    one("import", f"{name}-hf", "--name", name)
    expect_the_same_logits(one, name, theirs)


@pytest.mark.parametrize("key, value, said", [
    ("activation_function", "relu", "activation_function is relu"), ("scale_attn_by_inverse_layer_idx", True, "each of its layers scales attention in its own way"),
    ("add_cross_attention", True, "its layers look at an encoder")])
def test_what_would_be_computed_otherwise_is_refused(one, key, value, said):
    folder = one.folder / f"refused-{key}"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**GPT2Config().to_dict(), "model_type": "gpt2", key: value}))
    refused = one("import", folder.name, "--name", "refused", check=False)
    assert refused.returncode == 2 and said in refused.stderr and not (one.run.parent / "refused").exists(), refused.stderr
