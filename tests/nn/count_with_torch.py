"""Parameters and FLOPs of transformers' LlamaForCausalLM as torch counts them, as JSON.

Arguments: hidden layers heads kv_heads ffn vocab seq samples tied(0|1)
"""
import json
import sys

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import LlamaConfig, LlamaForCausalLM

hidden, layers, heads, kv_heads, ffn, vocab, seq, samples, tied = map(int, sys.argv[1:])
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
                intermediate_size=ffn, vocab_size=vocab, max_position_embeddings=seq, tie_word_embeddings=bool(tied),
                attn_implementation="sdpa", use_cache=False))

# torch has these formulas for every fused attention except the one of the CPU.
cpu_attention = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *a, out_shape=None, **n: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        lambda g, q, k, v, *a, out_shape=None, **n: sdpa_backward_flop_count(g, q, k, v),
}
tokens = torch.randint(vocab, (samples, seq))
forward = FlopCounterMode(display=False, custom_mapping=cpu_attention)
with forward:
    loss = model(tokens, labels=tokens).loss
backward = FlopCounterMode(display=False, custom_mapping=cpu_attention)
with backward:
    loss.backward()
print(json.dumps({"parameters": sum(p.numel() for p in model.parameters()), "forward": forward.get_total_flops(),
                  "backward": backward.get_total_flops()}))
