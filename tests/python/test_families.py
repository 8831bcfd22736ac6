"""Llama 3.1, Mistral, Qwen2, Qwen3, Mixtral, Qwen2 MoE, Qwen3 MoE, DeepSeek-V2 and V3 from transformers and back: the same logits and greedy text, the same step of training under every
kind of plan. What Tessera would compute otherwise is refused by name."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config, LlamaConfig, MistralConfig, MixtralConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2MoeConfig,
                          Qwen3Config, Qwen3MoeConfig)

from conftest import SHAKESPEARE

VOCAB, SEQ = 512, 64
PROMPT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer"
COMMON = dict(vocab_size=VOCAB, hidden_size=96, intermediate_size=160, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
              max_position_embeddings=SEQ, bos_token_id=None, eos_token_id=0)
SCALED = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
WIDTHS = "hidden: 96, layers: 2, heads: 6, kv_heads: 2, seq: 64, vocab: 512, norm_eps: 1e-6"
SHAPE = "arch: llama, ffn: 160, " + WIDTHS
LATENT = dict({**COMMON, "num_key_value_heads": 6}, kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=20, moe_intermediate_size=56,
              first_k_dense_replace=1, num_experts_per_tok=2)
LATENT_SHAPE = ("arch: deepseek, hidden: 96, layers: 2, heads: 6, seq: 64, vocab: 512, norm_eps: 1e-6, ffn: 160, kv_lora: 24, nope_dim: 16, rope_dim: 8, "
                "v_dim: 20, dense_layers: 1, expert_ffn: 56, experts_per_token: 2")
# transformers' config, and the same model as one writes it in train.yaml.
FAMILIES = {
    "llama": (LlamaConfig(**COMMON, rope_parameters=SCALED),
              SHAPE + ", rope_scaling: {rope_type: llama3, factor: 8, original_max_position_embeddings: 16}"),
    "mistral": (MistralConfig(**COMMON, sliding_window=20), SHAPE + ", window: 20"),
    "qwen2": (Qwen2Config(**COMMON, tie_word_embeddings=True), SHAPE + ", qkv_bias: true, tied: true"),
    "qwen2_window": (Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=11, max_window_layers=0), SHAPE + ", qkv_bias: true, window: 11"),
    "qwen2_yarn": (Qwen2Config(**COMMON, rope_parameters={**YARN, "beta_fast": 16.0, "truncate": False}),
                   SHAPE + ", qkv_bias: true, rope_scaling: {rope_type: yarn, factor: 4, original_max_position_embeddings: 16, beta_fast: 16, truncate: false}"),
    "qwen3": (Qwen3Config(**COMMON, head_dim=24), SHAPE + ", head_dim: 24, qk_norm: true"),
    "mixtral": (MixtralConfig(**COMMON, num_local_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-6, rope_theta=1e4),
                "arch: mixtral, ffn: 160, experts: 4, experts_per_token: 2, " + WIDTHS),
    "qwen2_moe": (Qwen2MoeConfig(**COMMON, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=56, shared_expert_intermediate_size=88),
                  "arch: qwen_moe, expert_ffn: 56, shared_ffn: 88, experts: 4, experts_per_token: 2, qkv_bias: true, norm_topk: false, " + WIDTHS),
    "qwen3_moe": (Qwen3MoeConfig(**COMMON, head_dim=24, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=56, norm_topk_prob=True,
                                 mlp_only_layers=[0]),
                  "arch: qwen_moe, ffn: 160, expert_ffn: 56, experts: 6, experts_per_token: 3, dense_layers: 1, head_dim: 24, qk_norm: true, " + WIDTHS),
    "deepseek_v2": (DeepseekV2Config(**LATENT, q_lora_rank=None, n_routed_experts=6, n_shared_experts=1, routed_scaling_factor=1.5),
                    LATENT_SHAPE + ", shared_ffn: 56, experts: 6, norm_topk: false, routed_scale: 1.5"),
    "deepseek_v2_yarn": (DeepseekV2Config(**LATENT, q_lora_rank=None, n_routed_experts=6, n_shared_experts=1,
                                          rope_parameters={**YARN, "mscale": 0.707, "mscale_all_dim": 1.4}),
                         LATENT_SHAPE + ", shared_ffn: 56, experts: 6, norm_topk: false, rope_scaling: {rope_type: yarn, factor: 4, "
                         "original_max_position_embeddings: 16, mscale: 0.707, mscale_all_dim: 1.4}"),
    "deepseek_v3": (DeepseekV3Config(**LATENT, q_lora_rank=32, n_routed_experts=8, n_shared_experts=2, n_group=4, topk_group=2, num_mtp_layers=0),
                    LATENT_SHAPE + ", q_lora: 32, shared_ffn: 112, experts: 8, scoring: sigmoid, score_bias: true, score_bias_rate: 0.05, expert_groups: 4, top_groups: 2, "
                    "routed_scale: 2.5"),
}


def model_of(config):
    """A model all of whose parameters matter: biases are not zero, norms are not one."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(0.0, 0.1)
    return model


@pytest.fixture(scope="module")
def tokenizer():
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator([SHAKESPEARE.read_text()[:200_000]], trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|endoftext|>")


@pytest.fixture(scope="module", params=FAMILIES)
def imported(request, shared_tessera, tokenizer):
    """(name, transformers' model): the run `name` was imported from it."""
    model = model_of(FAMILIES[request.param][0])
    folder = shared_tessera.folder / "theirs" / request.param
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shared_tessera("import", folder)
    return request.param, model


def logits_of(tessera, run, tokens):
    out = tessera("logits", run, "--tokens", ",".join(map(str, tokens)), program="tessera-worker").stdout
    return torch.tensor([[float(number) for number in line.split()] for line in out.splitlines()])


def worst_logit(tessera, run, model):
    tokens = [random.Random(4).randrange(VOCAB) for _ in range(SEQ)]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    return (logits_of(tessera, run, tokens) - expected).abs().max().item()


def test_an_imported_model_has_transformers_logits(shared_tessera, imported):
    name, model = imported
    assert worst_logit(shared_tessera, name, model) < 1e-4


def test_an_imported_model_goes_on_with_transformers_greedy_text(shared_tessera, imported, tokenizer):
    name, model = imported
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    count = SEQ - len(prompt)
    assert len(prompt) > 20 and count > 15, "both beyond the windows"
    tokens = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)[0, len(prompt):]
    ours = json.loads(shared_tessera("generate", name, "--prompt", PROMPT, "--max-tokens", count, "--temperature", 0, "--json").stdout)
    assert ours["text"] == tokenizer.decode(tokens, skip_special_tokens=True)


PLANS = {
    "one": {}, "tp": {"tp": 2}, "pp": {"pp": 2, "micro_batches": 2}, "zero": {"dp": 2, "zero": 1}, "recompute": {"recompute": "full", "micro_batches": 2},
    "halves": {"pp": 2, "micro_batches": 4, "schedule": "zb-h1"}, "mixed": {"dp": 2, "tp": 2, "zero": 1, "recompute": "full"},
}
SPREAD = {"spread": {"dp": 2, "ep": 2}, "spread-mixed": {"dp": 2, "tp": 2, "ep": 2, "zero": 3, "recompute": "selective"}}
RATE = 0.1


def train_yaml(tessera, family, name, parallel, precision="fp32"):
    parallel = {"dp": 1, "pp": 1, "tp": 1, **parallel}
    return tessera.write(f"{name}.yaml", f"""
name: {name}
model: {{{FAMILIES[family][1]}}}
data: {{source: {SHAKESPEARE}, tokenizer: {{kind: bpe, vocab: {VOCAB}}}}}
train:
  steps: 1
  global_batch: 8
  precision: {precision}
  init: runs/{family}
  optimizer: {{kind: sgd, lr: {RATE}, weight_decay: 0, clip: 0}}
  schedule: {{kind: constant}}
  eval: {{sequences: 8}}
cluster: {{local: {{devices: {parallel["dp"] * parallel["pp"] * parallel["tp"]}, threads: 1}}}}
parallel: {json.dumps(parallel)}
""")


BIAS_RATE = 0.05


def balance_when_stepped(model):
    """Calls that move the biases of scores as DeepSeek-V3's training does, once the model has computed."""
    gates = [module for module in model.modules() if hasattr(module, "e_score_correction_bias")]
    counts = {}
    for gate in gates:
        gate.register_forward_hook(lambda module, _, outputs: counts.update({module: torch.bincount(outputs[2].flatten(), minlength=module.num_experts).float()}))

    def balance():
        for gate in gates:
            gate.e_score_correction_bias += BIAS_RATE * (counts[gate].mean() - counts[gate]).sign()
    return balance


def one_step_of(tessera, yaml, model):
    """PyTorch's loss of the first batch; `model` has stepped by it."""
    balance = balance_when_stepped(model)
    batch = json.loads(tessera("data", "batch", yaml, "--count", 1, "--json").stdout.splitlines()[0])
    loss = torch.nn.functional.cross_entropy(model(torch.tensor(batch["tokens"])).logits.flatten(0, 1), torch.tensor(batch["targets"]).flatten())
    model.zero_grad()
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=RATE).step()
    balance()
    return loss.item()


def exported(tessera, run):
    tessera("export", run, "--to", "hf", f"{run}-hf")
    return tessera.folder / f"{run}-hf"


@pytest.fixture(scope="module")
def stepped(shared_tessera, imported):
    """(family, PyTorch's loss, weights before its step, its model after it)."""
    family, model = imported
    before = {name: values.clone() for name, values in model.state_dict().items()}
    after = model_of(FAMILIES[family][0])
    loss = one_step_of(shared_tessera, train_yaml(shared_tessera, family, f"{family}-batch", {}), after)
    return family, loss, before, after


def stored(weights, parameter):
    """A parameter of transformers' model as the exported files hold it: of experts each matrix by itself."""
    if parameter in weights:
        return weights[parameter]
    layer, _, kind = parameter.rpartition(".experts.")
    mixtral = layer.replace(".mlp", ".block_sparse_moe")
    if parameter.endswith(".mlp.gate.weight"):
        return weights[parameter.replace(".mlp.", ".block_sparse_moe.")]
    own = [f"{mixtral}.experts.{{}}.{name}.weight" for name in (["w1", "w3"] if kind == "gate_up_proj" else ["w2"])]
    qwen = [f"{layer}.experts.{{}}.{name}.weight" for name in (["gate_proj", "up_proj"] if kind == "gate_up_proj" else ["down_proj"])]
    names = own if own[0].format(0) in weights else qwen
    count = sum(name.startswith(names[0].split("{")[0]) and name.endswith(names[0].split("}")[1]) for name in weights)
    return torch.stack([torch.cat([weights[name.format(expert)] for name in names]) for expert in range(count)])


@pytest.mark.parametrize("plan", PLANS)
def test_a_step_has_pytorchs_loss_and_weights_under_every_plan(shared_tessera, stepped, plan):
    expect_pytorchs_step(shared_tessera, stepped, plan, PLANS[plan])


@pytest.mark.parametrize("imported", ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3"], indirect=True)
@pytest.mark.parametrize("plan", SPREAD)
def test_a_step_has_them_where_experts_are_spread(shared_tessera, stepped, plan):
    expect_pytorchs_step(shared_tessera, stepped, plan, SPREAD[plan])


def expect_pytorchs_step(shared_tessera, stepped, plan, parallel):
    family, loss, before, after = stepped
    name = f"{family}-{plan}"
    shared_tessera("train", train_yaml(shared_tessera, family, name, parallel), "--no-measure")
    (line,) = shared_tessera.metrics(name)
    assert abs(line["loss"] - loss) < 1e-5 * loss
    weights = load_file(exported(shared_tessera, name) / "model.safetensors")
    worst = 0
    for parameter, values in after.state_dict().items():
        if parameter == "lm_head.weight" and after.config.tie_word_embeddings:
            assert parameter not in weights
            continue
        if parameter.endswith("correction_bias"):
            assert (values - before[parameter]).abs().max() > BIAS_RATE / 2
            assert (stored(weights, parameter) - values).abs().max() < 1e-6
            continue
        moved = (values - before[parameter]).norm().item()
        assert moved > 0, parameter
        # What the step has moved is the gradient; weights of about 1 hold it to 1e-7 / RATE.
        off = (stored(weights, parameter) - values).norm().item()
        assert off < 1e-4 * moved + 1e-6, parameter
        worst = max(worst, off / moved)
    print(f"{family} {plan}: loss {abs(line['loss'] - loss) / loss:.1e} off, weights {worst:.1e} of what the step moved")


@pytest.mark.parametrize("plan", ["one", "tp"])
def test_a_step_in_bf16_has_the_loss_within_its_rounding(shared_tessera, stepped, plan):
    family, loss, _, _ = stepped
    name = f"{family}-{plan}-bf16"
    shared_tessera("train", train_yaml(shared_tessera, family, name, PLANS[plan], "bf16"), "--no-measure")
    (line,) = shared_tessera.metrics(name)
    assert abs(line["loss"] - loss) < 1e-2 * loss


def test_transformers_loads_an_export_as_its_own_kind_with_the_same_logits(shared_tessera, imported):
    name, model = imported
    folder = exported(shared_tessera, name)
    again, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert type(again) is type(model) and not report["missing_keys"] and not report["unexpected_keys"]
    assert worst_logit(shared_tessera, name, again.eval()) < 1e-4


REFUSED = {
    "dynamic": ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, ["rotary positions scaled by 'dynamic'", "default, llama3 or yarn"]),
    "partial": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}, ["only a part of each head"]),
    "layers": ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, ["1 of 2 layers look back"]),
    "listed": ({"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}, ["1 of 2 layers look back"]),
    "biases": ({"model_type": "qwen3", "attention_bias": True}, ["linear maps have biases", "attention_bias: false"]),
    "sinks": ({"model_type": "gpt_oss"}, ["models of type 'gpt_oss'", "llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3"]),
    "quantized": ({"quantization_config": {"bits": 4}}, ["weights are quantized"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_computed_otherwise_is_refused_by_name(tessera, case):
    changes, words = REFUSED[case]
    config = {key: value for key, value in FAMILIES["llama"][0].to_dict().items() if key != "rope_parameters"}
    tessera.write("theirs/config.json", {**config, "model_type": "llama", "rope_theta": 1e4, **changes})
    result = tessera("import", "theirs", check=False)
    assert result.returncode == 2, result.stderr
    for word in ["config.json:", *words]:
        assert word in result.stderr, result.stderr
    assert not list((tessera.folder / "runs").glob("*"))
