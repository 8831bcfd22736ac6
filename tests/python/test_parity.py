"""Loss parity with PyTorch: same weights, same batches, 30 steps; every plan follows the plain training loop."""

import json
import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from conftest import SHAKESPEARE

STEPS = 30
MODEL = dict(hidden=128, layers=4, heads=4, kv_heads=2, ffn=256, seq=64, vocab=512)
TOLERANCE = 1e-4


def train_yaml(name, parallel, model=MODEL, start="start"):
    return {
        "name": name,
        "model": {"arch": "llama", **model},
        "data": {"source": str(SHAKESPEARE), "tokenizer": {"kind": "bpe", "vocab": model["vocab"]}, "split": {"train": 0.95}},
        "train": {
            "steps": STEPS, "global_batch": 8, "seed": 3, "init": f"runs/{start}",
            "optimizer": {"kind": "adamw", "lr": 1.0e-3, "weight_decay": 0.1, "clip": 1.0},
            "schedule": {"kind": "cosine", "warmup": 5},
            "eval": {"sequences": 8},
        },
        "cluster": {"local": {"devices": parallel.get("dp", 1) * parallel.get("pp", 1) * parallel.get("tp", 1) * parallel.get("cp", 1), "threads": 1}},
        "parallel": parallel,
    }


def losses_of_pytorch(tessera, model, start, stale=False):
    """The plain PyTorch loop's losses, over the batches that Tessera says it uses; its initial weights become the run `start`. `stale`: without clipping, and each
    gradient is used a step late."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    config = LlamaConfig(
        vocab_size=model["vocab"], hidden_size=model["hidden"], intermediate_size=model["ffn"], num_hidden_layers=model["layers"],
        num_attention_heads=model["heads"], num_key_value_heads=model["kv_heads"], max_position_embeddings=model["seq"],
        rms_norm_eps=1e-5, tie_word_embeddings=model.get("tied", False), attn_implementation="sdpa",
    )
    plain = LlamaForCausalLM(config).float()
    plain.save_pretrained(tessera.folder / f"{start}-hf")
    tessera("import", f"{start}-hf", "--name", start)
    yaml = tessera.write(f"{start}-one.yaml", train_yaml(f"{start}-one", {"dp": 1, "pp": 1, "tp": 1}, model, start))
    tessera("train", yaml, "--no-measure")
    rates = [line["lr"] for line in tessera.metrics(f"{start}-one")]
    decayed = [p for p in plain.parameters() if p.dim() > 1]
    norms = [p for p in plain.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}], lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    losses, kept = [], None
    lines = tessera("data", "batch", yaml, "--count", STEPS, "--json").stdout.splitlines()
    for step, batch in enumerate(map(json.loads, lines)):
        tokens, targets = torch.tensor(batch["tokens"]), torch.tensor(batch["targets"])
        for group in optimizer.param_groups:
            group["lr"] = rates[max(0, step - 1)] if stale else rates[step]
        logits = plain(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, model["vocab"]), targets.view(-1))
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if stale:
            fresh = [p.grad.clone() for p in plain.parameters()]
            for parameter, gradient in zip(plain.parameters(), kept or []):
                parameter.grad = gradient
            if kept is not None:
                optimizer.step()
            kept = fresh
            continue
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
    return losses


@pytest.fixture(scope="module")
def reference(shared_tessera):
    return losses_of_pytorch(shared_tessera, MODEL, "start")


def random_plans(count, ranks=4):
    draw = random.Random(20)
    plans = []
    while len(plans) < count:
        dp, pp = draw.choice([1, 2, 4]), draw.choice([1, 2, 4])
        if ranks % (dp * pp):
            continue
        tp = ranks // (dp * pp)
        if MODEL["kv_heads"] % tp:
            continue
        plans.append({"dp": dp, "pp": pp, "tp": tp, "zero": draw.choice([0, 1]), "micro_batches": draw.choice([1, 2]),
                      "schedule": draw.choice(["1f1b", "gpipe"]), "recompute": draw.choice(["none", "full"])})
    return plans


NAMED = [
    {"dp": 1, "pp": 1, "tp": 1}, {"dp": 2, "pp": 1, "tp": 1}, {"dp": 1, "pp": 2, "tp": 1, "micro_batches": 4}, {"dp": 1, "pp": 1, "tp": 2},
    {"dp": 2, "pp": 2, "tp": 1, "micro_batches": 2}, {"dp": 1, "pp": 2, "tp": 2, "micro_batches": 2}, {"dp": 2, "pp": 1, "tp": 1, "zero": 1},
    {"dp": 1, "pp": 1, "tp": 1, "recompute": "full", "micro_batches": 2},
    {"dp": 1, "pp": 1, "tp": 1, "cp": 2, "context": "ring"}, {"dp": 1, "pp": 2, "tp": 1, "cp": 2, "context": "ulysses", "zero": 1, "micro_batches": 2},
]


@pytest.mark.parametrize("index,parallel", list(enumerate(NAMED + random_plans(10))))
def test_every_step_of_every_plan_has_pytorchs_loss(shared_tessera, reference, index, parallel):
    yaml = shared_tessera.write(f"plan{index}.yaml", train_yaml(f"plan{index}", parallel))
    shared_tessera("train", yaml, "--no-measure")
    losses = [line["loss"] for line in shared_tessera.metrics(f"plan{index}")]
    assert len(losses) == STEPS
    worst = max(abs(ours - theirs) / theirs for ours, theirs in zip(losses, reference))
    print(f"{parallel}: worst relative difference {worst:.2e} over {STEPS} steps")
    assert worst < TOLERANCE


@pytest.mark.parametrize("index,parallel", list(enumerate([{"dp": 1, "pp": 1, "tp": 1}, {"dp": 2, "pp": 2, "tp": 1, "zero": 1, "micro_batches": 2}])))
def test_stale_gradients_are_those_of_the_step_before(shared_tessera, index, parallel):
    expected = losses_of_pytorch(shared_tessera, MODEL, f"late{index}", stale=True)
    job = train_yaml(f"stale{index}", {**parallel, "staleness": 1}, start=f"late{index}")
    job["train"]["optimizer"]["clip"] = 0
    shared_tessera("train", shared_tessera.write(f"stale{index}.yaml", job), "--no-measure")
    losses = [line["loss"] for line in shared_tessera.metrics(f"stale{index}")]
    worst = max(abs(ours - theirs) / theirs for ours, theirs in zip(losses, expected, strict=True))
    print(f"{parallel}, staleness 1: worst relative difference {worst:.2e} over {STEPS} steps")
    assert worst < TOLERANCE


# Neither 2 nor 3 divides the vocabulary or the feed-forward width.
ODD = dict(hidden=96, layers=2, heads=6, kv_heads=6, ffn=251, seq=64, vocab=259)
PADDED = [{"dp": 1, "pp": 1, "tp": 2}, {"dp": 1, "pp": 1, "tp": 3}, {"dp": 1, "pp": 2, "tp": 3, "micro_batches": 2}, {"dp": 2, "pp": 1, "tp": 3, "zero": 1}]


@pytest.mark.parametrize("tied", [False, True])
def test_padded_plans_have_the_loss_of_pytorchs_unpadded_model(shared_tessera, tied):
    model, start = dict(ODD, tied=tied), f"odd-{tied}".lower()
    expected = losses_of_pytorch(shared_tessera, model, start)
    for index, parallel in enumerate(PADDED):
        yaml = shared_tessera.write(f"{start}{index}.yaml", train_yaml(f"{start}{index}", parallel, model, start))
        shared_tessera("train", yaml, "--no-measure")
        losses = [line["loss"] for line in shared_tessera.metrics(f"{start}{index}")]
        assert len(losses) == STEPS
        worst = max(abs(ours - theirs) / theirs for ours, theirs in zip(losses, expected))
        print(f"{parallel}, tied {tied}: worst relative difference {worst:.2e} over {STEPS} steps")
        assert worst < 1e-6
