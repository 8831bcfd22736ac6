"""BERT: from transformers and back, with the logits, the losses and a step's weights of its BertForMaskedLM, under any plan."""

import json
import math
import random

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

from conftest import SHAKESPEARE

VOCAB, SEQ = 512, 64
RATE = 0.1
# Row 0 of the table is a token like the others.
CONFIG = BertConfig(vocab_size=VOCAB, hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=6, max_position_embeddings=SEQ,
                    hidden_dropout_prob=0, attention_probs_dropout_prob=0, pad_token_id=None)
MODEL = {"arch": "bert", "hidden": 96, "ffn": 160, "layers": 3, "heads": 6, "vocab": VOCAB, "seq": SEQ, "max_positions": SEQ, "dropout": 0}


def model_of(kind=BertForMaskedLM, config=CONFIG):
    """A model all of whose parameters matter: biases are not zero, norms are not one."""
    torch.manual_seed(3)
    model = kind(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.1)
    return model


def worst_logit(tessera, run, model):
    tokens = [random.Random(4).randrange(VOCAB) for _ in range(SEQ)]
    out = tessera("logits", run, "--tokens", ",".join(map(str, tokens)), program="tessera-worker").stdout
    ours = torch.tensor([[float(number) for number in line.split()] for line in out.splitlines()])
    with torch.no_grad():
        return (ours - model(torch.tensor([tokens])).logits[0]).abs().max().item()


def job(name, parallel, steps=1, **train):
    ranks = math.prod(parallel.get(degree, 1) for degree in ("dp", "pp", "tp", "cp"))
    return {
        "name": name,
        "model": MODEL,
        "data": {"source": str(SHAKESPEARE), "tokenizer": {"kind": "bpe", "vocab": VOCAB - 1}},
        "train": {"steps": steps, "global_batch": 8, "optimizer": {"kind": "sgd", "lr": RATE, "momentum": 0, "weight_decay": 0, "clip": 0},
                  "schedule": {"kind": "constant"}, "eval": {"sequences": 8}, **train},
        "cluster": {"local": {"devices": ranks, "threads": 1}},
        "parallel": parallel,
    }


def exported(tessera, run):
    tessera("export", run, "--to", "hf", f"{run}-hf")
    return tessera.folder / f"{run}-hf"


@pytest.fixture(scope="module")
def imported(shared_tessera):
    """The run `theirs` is transformers' model."""
    model_of().save_pretrained(shared_tessera.folder / "theirs")
    shared_tessera("import", shared_tessera.folder / "theirs")
    return shared_tessera


@pytest.fixture(scope="module")
def stepped(imported):
    """(transformers' loss of the first batch, weights before its step, after it)."""
    model = model_of()
    before = {name: values.clone() for name, values in model.named_parameters()}
    yaml = imported.write("batch.yaml", job("batch", {"dp": 1, "pp": 1}, init="runs/theirs"))
    batch = json.loads(imported("data", "batch", yaml, "--count", 1, "--json").stdout.splitlines()[0])
    logits = model(torch.tensor(batch["tokens"])).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(batch["targets"]).flatten(), ignore_index=-1)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=RATE).step()
    return loss.item(), before, dict(model.named_parameters())


def test_an_imported_model_has_transformers_logits(imported):
    assert worst_logit(imported, "theirs", model_of()) < 1e-4


PLANS = [
    {"dp": 1, "pp": 1}, {"dp": 2, "zero": 1}, {"dp": 2, "zero": 3, "micro_batches": 2, "recompute": "full"}, {"pp": 2, "micro_batches": 4, "schedule": "zb-h1"},
    {"tp": 2, "recompute": "selective"}, {"tp": 3}, {"tp": 2, "sequence_parallel": True, "micro_batches": 2}, {"cp": 2, "context": "ring"},
    {"cp": 2, "context": "ulysses", "recompute": "full"}, {"cp": 2, "tp": 2, "context": "ring", "sequence_parallel": True}]


@pytest.mark.parametrize("parallel", PLANS)
def test_a_step_has_pytorchs_loss_and_weights_under_every_plan(imported, stepped, parallel):
    loss, before, after = stepped
    name = "-".join(f"{key}{value}" for key, value in parallel.items())
    imported("train", imported.write(f"{name}.yaml", job(name, parallel, init="runs/theirs")), "--no-measure")
    (line,) = imported.metrics(name)
    assert line["loss"] == pytest.approx(loss, rel=1e-5)
    weights = load_file(exported(imported, name) / "model.safetensors")
    assert set(weights) == set(after)
    for parameter, values in after.items():
        # Biases of keys change no share of attention, and do not move.
        moved = (values - before[parameter]).norm().item()
        assert moved > 1e-4 or parameter.endswith("key.bias"), parameter
        assert (weights[parameter] - values).norm().item() < 1e-4 * moved + 1e-6, parameter


@pytest.mark.parametrize("parallel", [{"dp": 2, "pp": 2, "micro_batches": 2}, {"tp": 2, "sequence_parallel": True}, {"cp": 2, "context": "ring"}])
def test_what_is_dropped_does_not_depend_on_the_plan(imported, parallel):
    curves = []
    for name, plan in [("alone", {"dp": 1, "pp": 1}), ("dropping-" + "-".join(parallel), parallel)]:
        imported("train", imported.write(f"{name}.yaml", job(name, plan, 3)), "--no-measure", "--overwrite", "--set", "model.dropout=0.2")
        curves.append([line["loss"] for line in imported.metrics(name)])
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)


def test_transformers_loads_an_export_with_the_same_logits(imported):
    again, report = BertForMaskedLM.from_pretrained(exported(imported, "theirs"), output_loading_info=True, dtype=torch.float32)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert worst_logit(imported, "theirs", again.eval()) < 1e-4


def test_weights_of_the_second_task_of_pretraining_are_left_out(tessera):
    model = model_of(BertForPreTraining)
    model.save_pretrained(tessera.folder / "both")
    tessera("import", "both")
    model_mlm = model_of()
    model_mlm.load_state_dict(model.state_dict(), strict=False)
    model_mlm.tie_weights()
    assert worst_logit(tessera, "both", model_mlm) < 1e-4


@pytest.mark.parametrize("changes, words", [
    ({"hidden_act": "gelu_new"}, "hidden_act is gelu_new"), ({"is_decoder": True}, "its attention is causal"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type is relative_key"),
    ({"tie_word_embeddings": False}, "its projection to the vocabulary is not the table of its embedding")])
def test_what_would_be_computed_otherwise_is_refused_by_name(tessera, changes, words):
    tessera.write("other/config.json", {**CONFIG.to_dict(), **changes})
    refused = tessera("import", "other", check=False)
    assert refused.returncode == 2 and "config.json:" in refused.stderr and words in refused.stderr, refused.stderr
