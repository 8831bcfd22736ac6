"""The same model and step in PyTorch, as a careful user writes them: fused attention, one product for q, k, v and one for gate
and up, fused AdamW, gradient clipping; eager or torch.compile; fp32, bf16 autocast, or bf16 weights with fp32 master copies.

Prints one JSON line like tessera_bench_step: {"tokens_per_s": median, "steps": [seconds...], "loss": of the last step, "peak_bytes": of a
GPU's memory}.
"""
import argparse
import collections
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

Shape = collections.namedtuple("Shape", "layers hidden heads kv_heads ffn vocab seq")


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = s.heads, s.kv_heads, s.hidden // s.heads
        self.norm1 = nn.RMSNorm(s.hidden, eps=1e-5)
        self.norm2 = nn.RMSNorm(s.hidden, eps=1e-5)
        self.qkv = nn.Linear(s.hidden, (s.heads + 2 * s.kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(s.hidden, s.hidden, bias=False)
        self.gate_up = nn.Linear(s.hidden, 2 * s.ffn, bias=False)
        self.down = nn.Linear(s.ffn, s.hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, seq, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, seq, self.heads + 2 * self.kv_heads, self.head_dim).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        attended = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, seq, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed = nn.Embedding(s.vocab, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden, eps=1e-5)
        self.head = nn.Linear(s.hidden, s.vocab, bias=False)
        head_dim = s.hidden // s.heads
        frequency = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angle = torch.outer(torch.arange(s.seq).float(), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos.to(x.dtype), self.sin.to(x.dtype))
        logits = self.head(self.norm(x)).flatten(0, 1)
        return F.cross_entropy(logits.float(), targets.flatten())


class Trainer:
    def __init__(self, shape, device, precision, compiled):
        torch.manual_seed(1)
        self.device = device
        with device:
            self.model = Model(shape)
        self.autocast = precision == "bf16-autocast"
        self.master = None
        if precision == "bf16-master":
            self.master = [p.detach().clone().requires_grad_() for p in self.model.parameters()]
            self.model.to(torch.bfloat16)
        self.forward = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.master or self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8,
                                           weight_decay=0.1, fused=True)

    def step(self, tokens, targets):
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            loss = self.forward(tokens, targets)
        loss.backward()
        if self.master is not None:
            for master, parameter in zip(self.master, self.model.parameters()):
                master.grad = parameter.grad.float()
                parameter.grad = None
        torch.nn.utils.clip_grad_norm_(self.master or self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.master is not None:
            with torch.no_grad():
                torch._foreach_copy_(list(self.model.parameters()), self.master)
        return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=("fp32", "bf16-autocast", "bf16-master"), default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--shape", type=lambda words: Shape(*map(int, words.split(","))), default="6,384,6,2,1024,8192,256", help=",".join(Shape._fields))
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--serve", action="store_true", help="run --steps steps for each line read, until the input ends")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)

    shape, device = options.shape, options.device
    trainer = Trainer(shape, device, options.precision, options.compile)
    tokens, targets = (torch.randint(shape.vocab, (options.batch, shape.seq), device=device) for _ in range(2))

    def run(count):
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            loss = trainer.step(tokens, targets)
            if device.type != "cpu":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
        if count:
            return {"tokens_per_s": options.batch * shape.seq / statistics.median(seconds), "loss": loss, "steps": seconds,
                    "peak_bytes": 0 if device.type == "cpu" else torch.cuda.max_memory_allocated(device)}

    run(options.warmup)
    if not options.serve:
        print(json.dumps(run(options.steps)), flush=True)
        return
    print("ready", flush=True)
    try:
        while input():
            print(json.dumps(run(options.steps)), flush=True)
    except EOFError:
        pass


if __name__ == "__main__":
    main()
