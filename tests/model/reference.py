"""Parameters and FLOPs of transformers' models as torch counts them, as one JSON object by case.

Without arguments: small models, with FLOPs of a forward and a backward pass. With "published": models of their true size on the meta
device, parameters only. Each case is {"parameters": {name: count}, "forward": flops, "backward": flops, "config": config.json}.
"""
import json
import os
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch
import transformers as hf
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *a, out_shape=None, **n: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        lambda g, q, k, v, *a, out_shape=None, **n: sdpa_backward_flop_count(g, q, k, v),
}
LLAMA = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4, vocab_size=320,
             max_position_embeddings=32)
MLA = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=8, vocab_size=320,
           max_position_embeddings=32, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, kv_lora_rank=16, qk_rope_head_dim=8,
           qk_nope_head_dim=16, v_head_dim=16, first_k_dense_replace=1)
SMALL = {
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA)),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**LLAMA, sliding_window=None)),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config(**LLAMA)),
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config(**LLAMA, head_dim=16, tie_word_embeddings=True)),
    "mixtral": (hf.MixtralForCausalLM, hf.MixtralConfig(**LLAMA, num_local_experts=4)),
    "qwen2_moe": (hf.Qwen2MoeForCausalLM, hf.Qwen2MoeConfig(**LLAMA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                                                            shared_expert_intermediate_size=64)),
    "qwen3_moe": (hf.Qwen3MoeForCausalLM, hf.Qwen3MoeConfig(**LLAMA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16)),
    "deepseek_v2": (hf.DeepseekV2ForCausalLM, hf.DeepseekV2Config(**MLA, q_lora_rank=None, n_shared_experts=2)),
    "deepseek_v3": (hf.DeepseekV3ForCausalLM, hf.DeepseekV3Config(**MLA, q_lora_rank=24, n_shared_experts=1, n_group=2, topk_group=1)),
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=64, n_layer=3, n_head=8, vocab_size=320, n_positions=32, bos_token_id=0, eos_token_id=0)),
    "bert": (hf.BertForMaskedLM, hf.BertConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=8, vocab_size=320,
                                               max_position_embeddings=32)),
    "t5": (hf.T5ForConditionalGeneration, hf.T5Config(d_model=64, d_ff=96, d_kv=16, num_layers=3, num_decoder_layers=2, num_heads=8, vocab_size=320,
                                                      n_positions=32)),
    "t5_gated": (hf.T5ForConditionalGeneration, hf.T5Config(d_model=64, d_ff=96, d_kv=8, num_layers=2, num_heads=8, vocab_size=320, n_positions=32,
                                                            feed_forward_proj="gated-gelu")),
    "vit": (hf.ViTForImageClassification, hf.ViTConfig(hidden_size=64, intermediate_size=256, num_hidden_layers=3, num_attention_heads=8,
                                                       image_size=64, patch_size=16, num_labels=10)),
    "resnet50": (hf.ResNetForImageClassification, hf.ResNetConfig(num_labels=10)),
    "resnet18": (hf.ResNetForImageClassification, hf.ResNetConfig(num_labels=10, layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2])),
}
PUBLISHED = {
    "llama-3-8b": (hf.LlamaForCausalLM, hf.LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                                                       num_key_value_heads=8, vocab_size=128256)),
    "qwen2-7b": (hf.Qwen2ForCausalLM, hf.Qwen2Config(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
                                                     num_key_value_heads=4, vocab_size=152064)),
    "llama-3.2-1b": (hf.LlamaForCausalLM, hf.LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                                                         num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True)),
    "mistral-7b": (hf.MistralForCausalLM, hf.MistralConfig()),
    "qwen2.5-0.5b": (hf.Qwen2ForCausalLM, hf.Qwen2Config(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                                                         num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True)),
    "qwen3-0.6b": (hf.Qwen3ForCausalLM, hf.Qwen3Config(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                                                       num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True)),
    "qwen3-30b-a3b": (hf.Qwen3MoeForCausalLM, hf.Qwen3MoeConfig(hidden_size=2048, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4,
                                                                head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768)),
    "mixtral-8x7b": (hf.MixtralForCausalLM, hf.MixtralConfig()),
    "deepseek-v3": (hf.DeepseekV3ForCausalLM, hf.DeepseekV3Config()),
    "gpt2-xl": (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=1600, n_layer=48, n_head=25)),
    "bert-large": (hf.BertForMaskedLM, hf.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)),
    "t5-11b": (hf.T5ForConditionalGeneration, hf.T5Config(d_model=1024, d_kv=128, d_ff=65536, num_layers=24, num_heads=128)),
    "vit-l-16": (hf.ViTForImageClassification, hf.ViTConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
                                                            num_labels=1000)),
}


def inputs_of(model, config):
    if hasattr(config, "image_size") or config.model_type == "resnet":
        side = getattr(config, "image_size", 64)
        return dict(pixel_values=torch.randn(2, 3, side, side), labels=torch.zeros(2, dtype=torch.long))
    tokens = torch.randint(1, config.vocab_size, (2, 32))
    return dict(input_ids=tokens, labels=tokens) | (dict(decoder_input_ids=tokens) if config.model_type == "t5" else {})


def count(make, config, runs):
    with torch.device("cpu" if runs else "meta"):
        if runs and config.model_type != "resnet":
            # torch has no formula for grouped products; one product for each expert counts the same.
            config._attn_implementation, config._experts_implementation = "sdpa", "eager"
        model = make(config)
    case = {"parameters": {name: values.numel() for name, values in model.named_parameters()}, "config": json.loads(config.to_json_string(use_diff=False)),
            "attention": getattr(model.config, "_attn_implementation", "")}
    if runs:
        model.train()
        inputs = inputs_of(model, config)
        forward = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)
        with forward:
            loss = model(**inputs).loss
        backward = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)
        with backward:
            loss.backward()
        case |= {"forward": forward.get_total_flops(), "backward": backward.get_total_flops()}
    return case


if __name__ == "__main__":
    torch.manual_seed(0)
    published = sys.argv[1:] == ["published"]
    print(json.dumps({name: count(make, config, not published) for name, (make, config) in (PUBLISHED if published else SMALL).items()}))
