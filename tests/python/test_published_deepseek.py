"""DeepSeek-V3 as it is published: matrices in FP8 with a scale for each block of 128 x 128, the rest in bf16, and a layer more that predicts a further token. Imported it is, bit for
bit, what transformers computes with once the scales are multiplied in."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config

from conftest import SHAKESPEARE
from test_families import FAMILIES, VOCAB, SEQ, exported, model_of, one_step_of, worst_logit

# Matrices of several blocks, most of which the edges cut.
CONFIG = DeepseekV3Config(vocab_size=VOCAB, hidden_size=160, intermediate_size=288, moe_intermediate_size=136, num_hidden_layers=2, num_attention_heads=10,
                          num_key_value_heads=10, q_lora_rank=132, kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=20, first_k_dense_replace=1,
                          n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, n_group=2, topk_group=1, max_position_embeddings=SEQ, bos_token_id=None, eos_token_id=0)
FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
FURTHER = "model.layers.2."


def every_block(scales, shape):
    return scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:shape[0], :shape[1]]


def quantized(weight):
    """(values in FP8, their scales): the largest of each block becomes the largest of the format."""
    rows, columns = weight.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 128) * 128)
    padded[:rows, :columns] = weight
    scales = padded.view(padded.shape[0] // 128, 128, padded.shape[1] // 128, 128).abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
    return (weight / every_block(scales, weight.shape)).to(torch.float8_e4m3fn), scales


def published_form(weights, scale_dtype):
    """(the tensors of a folder in FP8, the f32 weights that they stand for)."""
    tensors, expected = {}, {}
    for name, weight in weights.items():
        if "_proj" in name:
            values, scales = quantized(weight)
            tensors |= {name: values, name + "_scale_inv": scales.to(scale_dtype)}
            expected[name] = values.float() * every_block(tensors[name + "_scale_inv"].float(), weight.shape)
        else:
            tensors[name] = weight if name.endswith("correction_bias") else weight.bfloat16()
            expected[name] = tensors[name].float()
    return tensors, expected


class Published:
    """The folder `theirs`, and `model`, transformers' with the weights that it stands for."""

    def __init__(self, folder):
        self.folder = folder / "theirs"
        plain = folder / "plain"
        model_of(CONFIG).save_pretrained(plain)
        self.tensors, self.expected = published_form(load_file(plain / "model.safetensors"), torch.float32)
        save_file(self.expected, plain / "model.safetensors", {"format": "pt"})
        self.model = AutoModelForCausalLM.from_pretrained(plain, attn_implementation="eager", dtype=torch.float32).eval()
        last = {name.replace("model.layers.1.", FURTHER): tensor for name, tensor in self.tensors.items() if name.startswith("model.layers.1.")}
        more = {"embed_tokens.weight": (VOCAB, 160), "enorm.weight": (160,), "hnorm.weight": (160,), "eh_proj.weight": (160, 320), "shared_head.norm.weight": (160,),
                "shared_head.head.weight": (VOCAB, 160)}
        self.tensors |= {name: tensor.clone() for name, tensor in last.items()} | {FURTHER + name: torch.zeros(shape).bfloat16() for name, shape in more.items()}
        self.config = json.loads((plain / "config.json").read_text()) | {"num_nextn_predict_layers": 1, "quantization_config": FP8}

    def write(self, tensors=None, config=None):
        self.folder.mkdir(exist_ok=True)
        save_file(tensors or self.tensors, self.folder / "model.safetensors", {"format": "pt"})
        (self.folder / "config.json").write_text(json.dumps(config or self.config, indent=1))


@pytest.fixture(scope="module")
def published(shared_tessera):
    return Published(shared_tessera.folder)


def test_the_published_files_are_imported_as_transformers_computes_them(shared_tessera, published):
    assert any(tensor.dtype == torch.float8_e4m3fn and min(published.tensors[name + "_scale_inv"].shape) > 1 for name, tensor in published.tensors.items())
    published.write()
    result = shared_tessera("import", "theirs", "--name", "fp8")
    assert "left out what predicts further tokens than the next (num_nextn_predict_layers: 1)" in result.stderr, result.stderr
    assert "model.layers.2 and on" in result.stderr
    worst = worst_logit(shared_tessera, "fp8", published.model)
    print(f"largest difference of a logit {worst:.1e}")
    assert worst < 1e-4
    weights = load_file(exported(shared_tessera, "fp8") / "model.safetensors")
    assert weights.keys() == published.expected.keys()
    for name, weight in published.expected.items():
        assert torch.equal(weights[name], weight), name


def test_a_conversion_to_bf16_is_imported_without_its_further_layers(shared_tessera, published):
    tensors = {name: published.expected.get(name, tensor).bfloat16() for name, tensor in published.tensors.items() if not name.endswith("_scale_inv")}
    published.write(tensors, {key: value for key, value in published.config.items() if key != "quantization_config"})
    assert "left out" in shared_tessera("import", "theirs", "--name", "bf16").stderr
    weights = load_file(exported(shared_tessera, "bf16") / "model.safetensors")
    assert not any(name.startswith(FURTHER) for name in weights)
    for name in published.expected:
        assert torch.equal(weights[name], tensors[name].float()), name


def test_a_run_that_starts_from_the_published_files_has_pytorchs_loss(shared_tessera, published):
    published.write()
    yaml = shared_tessera.write("start.yaml", f"""
name: start
model: {{hf: theirs, seq: {SEQ}}}
data: {{source: {SHAKESPEARE}, tokenizer: {{kind: bpe, vocab: {VOCAB}}}}}
train:
  steps: 1
  global_batch: 8
  precision: fp32
  init: theirs
  optimizer: {{kind: sgd, lr: 0.1, weight_decay: 0, clip: 0}}
  schedule: {{kind: constant}}
  eval: {{sequences: 8}}
cluster: {{local: {{devices: 2, threads: 1}}}}
parallel: {{dp: 1, pp: 1, tp: 2}}
""")
    shared_tessera("train", yaml, "--no-measure")
    (line,) = shared_tessera.metrics("start")
    loss = one_step_of(shared_tessera, yaml, AutoModelForCausalLM.from_pretrained(shared_tessera.folder / "plain", attn_implementation="eager", dtype=torch.float32))
    assert abs(line["loss"] - loss) < 1e-5 * loss


def test_another_decoder_with_scales_in_bf16_is_imported_bit_for_bit(shared_tessera):
    folder = shared_tessera.folder / "qwen3"
    model_of(FAMILIES["qwen3"][0]).save_pretrained(folder)
    tensors, expected = published_form(load_file(folder / "model.safetensors"), torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {**FP8, "modules_to_not_convert": ["lm_head"]}}))
    assert "left out" not in shared_tessera("import", "qwen3").stderr
    weights = load_file(exported(shared_tessera, "qwen3") / "model.safetensors")
    assert weights.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(weights[name], weight), name


MATRIX = "model.layers.0.self_attn.o_proj.weight"
SCALES = MATRIX + "_scale_inv"
# Changes of tensors (None: without it), of quantization_config and of config.json, and what is said of them.
REFUSED = {
    "no scales": ({SCALES: None}, {}, {}, [f"tensor '{MATRIX}' is of type F8_E4M3, but has no scales", f"a tensor '{SCALES}'"]),
    "scales of other blocks": ({SCALES: torch.ones(3, 4)}, {}, {}, [f"tensor '{SCALES}' has the shape [3, 4]", "[2, 2], a scale for each block of 128"]),
    "one scale": ({SCALES: torch.ones(())}, {}, {}, [f"tensor '{SCALES}' has the shape []", "[2, 2], a scale for each block of 128"]),
    "scales without a matrix in FP8": ({MATRIX: torch.zeros(160, 200)}, {}, {}, [f"it has a tensor '{SCALES}'"]),
    "scales of integers": ({SCALES: torch.ones(2, 2, dtype=torch.int64)}, {}, {}, [f"tensor '{SCALES}' is of type I64"]),
    "a vector in FP8": ({"model.norm.weight": torch.ones(160).to(torch.float8_e4m3fn)}, {}, {}, ["tensor 'model.norm.weight' is of type F8_E4M3, but no matrix"]),
    "another method": ({}, {"quant_method": "gptq"}, {}, ["quantization_config.quant_method: its weights are quantized in another way", "quant_method: fp8", "config.json:"]),
    "no method": ({}, {"quant_method": None}, {}, ["its weights are quantized in another way", "config.json:"]),
    "another format": ({}, {"fmt": "e5m2"}, {}, ["quantization_config.fmt: its weights are in another format", "fmt: e4m3"]),
    "stored scales of activations": ({}, {"activation_scheme": "static"}, {}, ["activation_scheme: its activations are quantized", "activation_scheme: dynamic"]),
    "no blocks": ({}, {"weight_block_size": None}, {}, ["its weights do not have a scale for each block", "weight_block_size: [128, 128]"]),
    "other blocks": ({}, {"weight_block_size": [64, 128]}, {}, ["its scales are of blocks of another size", "weight_block_size: [128, 128]"]),
    "FP8 that the config does not name": ({}, {}, {"quantization_config": None}, ["is of type F8_E4M3, but config.json says nothing of it"]),
    "layers that the config does not name": ({}, {}, {"num_nextn_predict_layers": 0}, [f"it has a tensor '{FURTHER}"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_as_deepseek_publishes_it_is_refused(shared_tessera, published, case):
    tensors, quantization, config, words = REFUSED[case]
    published.write({name: tensor for name, tensor in (published.tensors | tensors).items() if tensor is not None},
                    published.config | {"quantization_config": FP8 | quantization} | config)
    result = shared_tessera("import", "theirs", "--name", "refused", check=False)
    assert result.returncode in (2, 3), result.stderr
    for word in words:
        assert word in result.stderr, result.stderr
    assert not (shared_tessera.folder / "runs/refused").exists()
