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


def train_yaml(name, parallel, precision="fp32"):
    return {
        "name": name,
        "model": {"arch": "llama", **MODEL},
        "data": {"source": str(SHAKESPEARE), "tokenizer": {"kind": "bpe", "vocab": MODEL["vocab"]}, "split": {"train": 0.95}},
        "train": {
            "steps": STEPS, "global_batch": 8, "precision": precision, "seed": 3, "init": "runs/start",
            "optimizer": {"kind": "adamw", "lr": 1.0e-3, "weight_decay": 0.1, "clip": 1.0},
            "schedule": {"kind": "cosine", "warmup": 5},
            "eval": {"sequences": 8},
        },
        "cluster": {"local": {"devices": parallel.get("dp", 1) * parallel.get("pp", 1) * parallel.get("tp", 1), "threads": 1}},
        "parallel": parallel,
    }


@pytest.fixture(scope="module")
def reference(shared_tessera):
    """The plain PyTorch loop's losses, over the batches that Tessera says it uses."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    config = LlamaConfig(
        vocab_size=MODEL["vocab"], hidden_size=MODEL["hidden"], intermediate_size=MODEL["ffn"], num_hidden_layers=MODEL["layers"],
        num_attention_heads=MODEL["heads"], num_key_value_heads=MODEL["kv_heads"], max_position_embeddings=MODEL["seq"],
        rms_norm_eps=1e-5, tie_word_embeddings=False, attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).float()
    model.save_pretrained(shared_tessera.folder / "start-hf")
    shared_tessera("import", "start-hf", "--name", "start")
    yaml = shared_tessera.write("reference.yaml", train_yaml("reference", {"dp": 1, "pp": 1, "tp": 1}))
    shared_tessera("train", yaml, "--no-measure")
    rates = [line["lr"] for line in shared_tessera.metrics("reference")]
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    lines = shared_tessera("data", "batch", yaml, "--count", STEPS, "--json").stdout.splitlines()
    for step, batch in enumerate(map(json.loads, lines)):
        tokens, targets = torch.tensor(batch["tokens"]), torch.tensor(batch["targets"])
        for group in optimizer.param_groups:
            group["lr"] = rates[step]
        logits = model(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, MODEL["vocab"]), targets.view(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


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
