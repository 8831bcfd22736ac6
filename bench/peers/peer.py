"""One rank of a peer's side of a cell: reads a JSON file, trains on random images or text, and rank 0 prints the seconds of the steps and, where every rank trains the whole
model, the ranks' mean losses."""
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from models import MODELS  # noqa: E402


class Side:
    """A way to train. `module` is what this rank holds of the model; `step` computes its gradients."""

    def optimized(self, optimizer):
        """What takes the step of this optimizer of `module`."""
        return optimizer


class Replicas(Side):
    """The whole model on each rank, or its part of every tensor."""

    def __init__(self, spec, parts):
        self.module = nn.Sequential(*parts)
        self.own = slice(dist.get_rank(), None, dist.get_world_size())
        self.set_up(spec)

    def tie_head(self):
        if hasattr(self.module[0], "tokens"):
            self.module[-1][-1].weight = self.module[0].tokens.weight

    def set_up(self, spec):
        self.tie_head()
        self.module = nn.parallel.DistributedDataParallel(self.module)

    def step(self, images, labels):
        loss = loss_of(self.module(images[self.own]), labels[self.own])
        self.backward(loss)
        return loss.detach()

    def backward(self, loss):
        loss.backward()


class FullyShard(Replicas):
    def set_up(self, spec):
        from torch.distributed.fsdp import fully_shard
        for part in self.module:
            fully_shard(part)
        fully_shard(self.module)


class Zero(Replicas):
    """DeepSpeed's ZeRO-1 and ZeRO-2 over Gloo, with its defaults but for what the others do not do either: clipping, and the norm for it."""

    def set_up(self, spec):
        self.tie_head()
        self.stage, self.samples = spec["stage"], spec["batch"] // dist.get_world_size()

    def optimized(self, optimizer):
        import deepspeed
        # Else it compiles its exchange in shared memory, which training does not use.
        deepspeed.ops.__compatible_ops__ = {}
        deepspeed.init_distributed(dist_backend="gloo")
        self.module, *_ = deepspeed.initialize(model=self.module, optimizer=optimizer, config={
            "train_micro_batch_size_per_gpu": self.samples, "gradient_accumulation_steps": 1, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": self.stage, "compute_grad_norm": False}})
        return self.module

    def backward(self, loss):
        self.module.backward(loss)


MASKED = 0.15


def random_samples(spec, count):
    """What the model reads, and its labels: of text that of masked tokens, -1 elsewhere."""
    if spec["model"] != "bert":
        return torch.randn(count, *spec["shape"]), torch.randint(spec["classes"], (count,))
    tokens = torch.randint(spec["classes"], (count, *spec["shape"]))
    return tokens, torch.where(torch.rand(tokens.shape) < MASKED, tokens, -1)


def loss_of(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-1)


def seconds_of(parts, images):
    """Of a forward and a backward pass of each part, the second time that it runs."""
    seconds = []
    for part in parts:
        for _ in range(2):
            begin = time.perf_counter()
            out = part(images.requires_grad_(images.is_floating_point()))
            out.sum().backward()
            taken = time.perf_counter() - begin
        seconds.append(taken)
        part.zero_grad(set_to_none=True)
        images = out.detach()
    return seconds


def balanced(seconds, stages):
    """The first part of each stage, and the number of parts: the slowest stage is as fast as it can be."""
    count = len(seconds)
    best = {(0, 0): (0.0, [])}  # stages, parts: the slowest, and where each begins
    for stage in range(1, stages + 1):
        for end in range(stage, count + 1):
            best[stage, end] = min((max(best[stage - 1, begin][0], sum(seconds[begin:end])), best[stage - 1, begin][1] + [begin])
                                   for begin in range(stage - 1, end) if (stage - 1, begin) in best)
    return best[stages, count][1] + [count]


class Pipelines(Side):
    """`replicas` pipelines beside each other, of as many stages as ranks are left to each; stages are balanced by their measured time."""

    def __init__(self, spec, parts):
        self.replicas = spec["replicas"]
        stages = dist.get_world_size() // self.replicas
        rank = dist.get_rank()
        groups = [dist.new_group([replica * stages + stage for stage in range(stages)]) for replica in range(self.replicas)]
        peers = [dist.new_group([replica * stages + stage for replica in range(self.replicas)]) for stage in range(stages)]
        replica, stage = divmod(rank, stages)
        micro_batch = spec["batch"] // self.replicas // spec["micro_batches"]
        cuts = [balanced(seconds_of(parts, random_samples(spec, micro_batch)[0]), stages)]
        dist.broadcast_object_list(cuts)
        self.module = nn.Sequential(*parts[cuts[0][stage]:cuts[0][stage + 1]])
        self.peers = peers[stage] if self.replicas > 1 else None
        self.own = slice(replica, None, self.replicas)
        self.first, self.last = stage == 0, stage == stages - 1
        self.schedule = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}[spec["schedule"]](
            pipelining.PipelineStage(self.module, stage, stages, torch.device("cpu"), group=groups[replica]), spec["micro_batches"],
            loss_fn=loss_of)

    def step(self, images, labels):
        self.schedule.step(*([images[self.own]] if self.first else []), **({"target": labels[self.own]} if self.last else {}))
        if self.peers is None:
            return
        gradients = [parameter.grad for parameter in self.module.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self.peers)
        for gradient, mean in zip(gradients, flat.div_(self.replicas).split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


WAYS = {"ddp": Replicas, "fsdp2": FullyShard, "zero-1": Zero, "zero-2": Zero}


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(3)
    dist.init_process_group("gloo")
    side = WAYS.get(spec["way"], Pipelines)(spec, MODELS[spec["model"]](spec["classes"]))
    optimizer = side.optimized(torch.optim.SGD(side.module.parameters(), lr=0.01))
    images, labels = random_samples(spec, spec["batch"])
    seconds, losses = [], []
    for _ in range(spec["steps"]):
        dist.barrier()
        begin = time.perf_counter()
        losses.append(side.step(images, labels))
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        seconds.append(time.perf_counter() - begin)
    result = {"seconds": seconds}
    if spec["way"] in WAYS:
        mean = torch.stack(losses) / dist.get_world_size()
        dist.all_reduce(mean)
        result["losses"] = mean.tolist()
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    # What Gloo and autograd's threads destroy on the way out sometimes meets what is gone already.
    os._exit(0)


if __name__ == "__main__":
    main()
