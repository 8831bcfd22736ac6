"""A Llama as a user of PyTorch writes it, with the names of Hugging Face's weights, and files that Tessera and it start from."""
import json

import torch
from torch import nn
from torch.nn import functional as F


def causal_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.size(1) != k.size(1))


class Attention(nn.Module):
    def __init__(self, shape, rope):
        super().__init__()
        self.head_dim, self.rope, self.attend = shape["hidden"] // shape["heads"], rope, causal_attention
        keys = shape["kv_heads"] * self.head_dim
        self.q_proj = nn.Linear(shape["hidden"], shape["hidden"], bias=False)
        self.k_proj = nn.Linear(shape["hidden"], keys, bias=False)
        self.v_proj = nn.Linear(shape["hidden"], keys, bias=False)
        self.o_proj = nn.Linear(shape["hidden"], shape["hidden"], bias=False)

    def turned(self, x):
        cos, sin = self.rope
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def forward(self, x):
        # As many heads as this rank has, where tensor parallelism cuts them.
        q, k, v = (rows.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for rows in (self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        return self.o_proj(self.attend(self.turned(q), self.turned(k), v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape["hidden"], shape["ffn"], bias=False)
        self.up_proj = nn.Linear(shape["hidden"], shape["ffn"], bias=False)
        self.down_proj = nn.Linear(shape["ffn"], shape["hidden"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape, rope):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape["hidden"], eps=1e-5)
        self.self_attn = Attention(shape, rope)
        self.post_attention_layernorm = nn.RMSNorm(shape["hidden"], eps=1e-5)
        self.mlp = FeedForward(shape)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Blocks [first, last): 0 is the embedding, the last one the norm and the head; the layers lie between."""

    def __init__(self, shape, first=0, last=None):
        super().__init__()
        last = shape["layers"] + 2 if last is None else last
        half = shape["hidden"] // shape["heads"] // 2
        # Not on a device of no memory, where whoever shards a model makes its weights.
        positions, steps = (torch.arange(count, device="cpu") for count in (shape["seq"], half))
        angles = torch.outer(positions, 10000.0 ** (-steps / half)).repeat(1, 2)
        self.rope = (angles.cos(), angles.sin())
        self.embed_tokens = nn.Embedding(shape["vocab"], shape["hidden"]) if first == 0 else None
        self.layers = nn.ModuleDict({str(i): Layer(shape, self.rope) for i in range(max(first - 1, 0), min(last - 1, shape["layers"]))})
        has_head = last == shape["layers"] + 2
        self.norm = nn.RMSNorm(shape["hidden"], eps=1e-5) if has_head else None
        self.lm_head = nn.Linear(shape["hidden"], shape["vocab"], bias=False) if has_head else None

    def forward(self, x):
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.lm_head is None else self.lm_head(self.norm(x))

    def load(self, file):
        from safetensors.torch import load_file
        weights = {name.removeprefix("model."): value for name, value in load_file(file).items()}
        self.load_state_dict({name: weights[name] for name in self.state_dict()})
        return self


def save(shape, folder):
    """Initial weights as a Hugging Face folder."""
    from safetensors.torch import save_file
    torch.manual_seed(0)
    model = Llama(shape)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    folder.mkdir(parents=True)
    save_file({name if name.startswith("lm_head") else f"model.{name}": value.contiguous() for name, value in model.state_dict().items()},
              folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": "float32", "hidden_size": shape["hidden"],
        "intermediate_size": shape["ffn"], "num_hidden_layers": shape["layers"], "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"], "vocab_size": shape["vocab"], "max_position_embeddings": shape["seq"], "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False}))
