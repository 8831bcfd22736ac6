"""One rank of PyTorch's side of a row: reads a JSON file, trains, and rank 0 prints seconds and losses of the steps.

Each way is set up as PyTorch's documentation and torchtitan do it: fused AdamW, buckets as by default, gradients clipped by their norm.
"""
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from llama import Llama  # noqa: E402
aten = torch.ops.aten


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Whole:
    """Every rank has the whole model, or its part of every tensor. `samples` is what of a batch is the rank's."""

    def __init__(self, spec):
        self.model = Llama(spec["model"]).load(spec["weights"])
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.set_up()

    def modules(self):
        return [self.model]

    def set_up(self):
        pass

    def samples(self, rows):
        return rows

    def pass_through(self, tokens, targets):
        loss = loss_of(self.model(self.samples(tokens)), self.samples(targets))
        loss.backward()
        return loss.detach()

    def norm(self, gradients):
        norm = torch.nn.utils.get_total_norm(gradients)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def mean_losses(self, losses):
        dist.all_reduce(losses)
        return losses / dist.get_world_size()


class Replicas(Whole):
    def samples(self, rows):
        return rows.chunk(dist.get_world_size())[dist.get_rank()]

    def set_up(self):
        self.model = torch.nn.parallel.DistributedDataParallel(self.model)


class FullyShard(Replicas):
    def set_up(self):
        from torch.distributed.fsdp import fully_shard
        for layer in self.model.layers.values():
            fully_shard(layer, mesh=self.mesh)
        fully_shard(self.model, mesh=self.mesh)


class ShardedFromBirth(FullyShard):
    """Random weights, made where they are kept: no rank could hold the whole model."""

    def __init__(self, spec):
        with torch.device("meta"):
            self.model = Llama(spec["model"])
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.set_up()
        self.model.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in self.model.parameters():
                own = parameter.to_local()
                own.normal_(std=0.02) if parameter.dim() > 1 else own.fill_(1.0)


class Tensor(Whole):
    def set_up(self):
        from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
        parallelize_module(self.model, self.mesh, {
            "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
            "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
        for layer in self.model.layers.values():
            gathered = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
            parallelize_module(layer, self.mesh, {
                "input_layernorm": SequenceParallel(), "post_attention_layernorm": SequenceParallel(),
                "self_attn": PrepareModuleInput(**gathered), "mlp": PrepareModuleInput(**gathered),
                **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}, "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
                "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1))})

    def pass_through(self, tokens, targets):
        from torch.distributed.tensor.parallel import loss_parallel
        with loss_parallel():
            loss = loss_of(self.model(tokens), targets)
            loss.backward()
        return loss.detach().full_tensor() if isinstance(loss, DTensor) else loss.detach()


class Ring(torch.autograd.Function):
    """PyTorch's ring with its attention for CPUs: context_parallel() itself finds only those for GPUs (2.13: there is no sharding rule for
    _scaled_dot_product_flash_attention_for_cpu)."""

    @staticmethod
    def forward(ctx, q, k, v):
        out, sums = ring._templated_ring_attention(dist.group.WORLD, 2, aten._scaled_dot_product_flash_attention_for_cpu, q, k, v, is_causal=True)
        ctx.save_for_backward(q, k, v, out, sums)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, sums = ctx.saved_tensors
        return ring._templated_ring_attention_backward(dist.group.WORLD, 2, aten._scaled_dot_product_flash_attention_for_cpu_backward, grad.contiguous(),
                                                       "grad_out", q, k, v, out, sums, is_causal=True, dropout_p=0.0)[:3]


class Context(Whole):
    """Sequences cut as context_parallel() cuts them; each rank has all weights, whose gradients are summed as replicas' are."""

    def own(self, rows, dim):
        ranks, rank = dist.get_world_size(), dist.get_rank()
        parts = rows.chunk(2 * ranks, dim)
        return torch.cat((parts[rank], parts[2 * ranks - 1 - rank]), dim)

    def samples(self, rows):
        return self.own(rows, 1)

    def set_up(self):
        ring._cp_options.enable_load_balance = True
        for layer in self.model.layers.values():
            layer.self_attn.rope = tuple(self.own(table, 0) for table in self.model.rope)
            layer.self_attn.attend = self.attend
        self.model = torch.nn.parallel.DistributedDataParallel(self.model)

    @staticmethod
    def attend(q, k, v):
        groups = q.size(1) // k.size(1)
        return Ring.apply(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))


class Pipeline:
    def __init__(self, spec):
        from torch.distributed import pipelining
        rank, ranks = dist.get_rank(), dist.get_world_size()
        cuts = spec["cuts"]  # of the stages: their first blocks, and the number of blocks
        count = len(cuts) - 1
        held = [stage for stage in range(count) if (min(stage, count - 1 - stage) if spec["way"] == "zb-v" else stage % ranks) == rank]
        self.parts = [Llama(spec["model"], cuts[stage], cuts[stage + 1]).load(spec["weights"]) for stage in held]
        stages = [pipelining.PipelineStage(part, stage, count, torch.device("cpu")) for stage, part in zip(held, self.parts)]
        kind = {"1f1b": pipelining.Schedule1F1B, "interleaved": pipelining.ScheduleInterleaved1F1B, "zb-v": pipelining.ScheduleZBVZeroBubble,
                "interleaved-zb": pipelining.ScheduleInterleavedZeroBubble}[spec["way"]]
        self.schedule = kind(stages[0] if spec["way"] == "1f1b" else stages, spec["micro_batches"], loss_fn=loss_of)
        self.first, self.last = 0 in held, count - 1 in held

    def modules(self):
        return self.parts

    def pass_through(self, tokens, targets):
        losses = []
        self.schedule.step(*([tokens] if self.first else []), **({"target": targets, "losses": losses} if self.last else {}))
        return torch.stack(losses).mean().detach() if losses else torch.zeros(())

    def norm(self, gradients):
        square = torch.nn.utils.get_total_norm(gradients) ** 2
        dist.all_reduce(square)
        return square.sqrt()

    def mean_losses(self, losses):
        dist.all_reduce(losses)
        return losses


WAYS = {"ddp": Replicas, "zero-3": FullyShard, "zero-3 from birth": ShardedFromBirth, "tp": Tensor, "ring": Context}


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group("gloo")
    side = WAYS.get(spec["way"], Pipeline)(spec)
    parameters = [parameter for module in side.modules() for parameter in module.parameters()]
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
                                   {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}], lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    batches = [(torch.tensor(batch["tokens"]), torch.tensor(batch["targets"])) for batch in map(json.loads, pathlib.Path(spec["batches"]).read_text().splitlines())]
    losses, seconds = [], []
    dist.barrier()
    for tokens, targets in batches:
        begin = time.perf_counter()
        losses.append(side.pass_through(tokens, targets))
        torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, side.norm([p.grad for p in parameters]))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
    losses = side.mean_losses(torch.stack(losses))
    memory = next(int(line.split()[1]) * 1024 for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    peak = torch.tensor(memory)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": seconds, "losses": losses.tolist(), "peak_resident": int(peak)}), flush=True)
    dist.barrier()
    # What Gloo and autograd's threads destroy on the way out sometimes meets what is gone already.
    os._exit(0)


if __name__ == "__main__":
    main()
