"""transformers loads what we export and computes the same logits, and the other way round."""

import json
import random

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from conftest import SHAKESPEARE

VOCAB = 512


def logits_of(tessera, run, tokens):
    out = tessera("logits", run, "--tokens", ",".join(map(str, tokens)), program="tessera-worker").stdout
    return torch.tensor([[float(number) for number in line.split()] for line in out.splitlines()])


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_the_export_with_the_same_logits(tessera, tied):
    yaml = tessera.write("train.yaml", {
        "name": "small",
        "model": {"arch": "llama", "hidden": 96, "layers": 3, "heads": 6, "kv_heads": 2, "ffn": 256, "seq": 64, "vocab": VOCAB, "tied": tied,
                  "rope_theta": 50000.0},
        "data": {"source": str(SHAKESPEARE), "tokenizer": {"kind": "bpe", "vocab": VOCAB}},
        "train": {"steps": 10, "global_batch": 8, "optimizer": {"kind": "adamw", "lr": 3.0e-3}, "eval": {"sequences": 8}},
        "parallel": {"dp": 1, "pp": 2, "tp": 1, "micro_batches": 2},
    })
    tessera("train", yaml, "--no-measure")
    tessera("export", "small", "--to", "hf", "exported")
    model, report = LlamaForCausalLM.from_pretrained(tessera.folder / "exported", output_loading_info=True, dtype=torch.float32)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(tessera.folder / "exported")
    tokens = tokenizer.encode("To be, or not to be, that is the question:", add_special_tokens=False)
    with torch.no_grad():
        theirs = model(torch.tensor([tokens])).logits[0]
    worst = (logits_of(tessera, "small", tokens) - theirs).abs().max().item()
    print(f"tied {tied}: largest difference of a logit {worst:.1e}")
    assert worst < 1e-4
    greedy = model.generate(torch.tensor([tokens]), max_new_tokens=12, do_sample=False)[0, len(tokens):]
    ours = json.loads(tessera("generate", "small", "--prompt", "To be, or not to be, that is the question:", "--max-tokens", 12, "--temperature", 0, "--json").stdout)
    assert ours["text"] == tokenizer.decode(greedy)


@pytest.mark.parametrize("tied", [False, True])
def test_we_import_what_transformers_saved_with_the_same_logits(tessera, tied):
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
                         max_position_embeddings=64, tie_word_embeddings=tied, rms_norm_eps=1e-6)
    model = LlamaForCausalLM(config).float().eval()
    model.save_pretrained(tessera.folder / "theirs")
    tessera("import", "theirs")
    tokens = [random.Random(4).randrange(VOCAB) for _ in range(48)]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    worst = (logits_of(tessera, "theirs", tokens) - expected).abs().max().item()
    print(f"tied {tied}: largest difference of a logit {worst:.1e}")
    assert worst < 1e-4
