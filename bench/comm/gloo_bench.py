"""gloo_bench.py PREFIX: the same commands over Gloo through torch.distributed."""
import os
import sys
import time

import torch
import torch.distributed as dist


def run(rank, world, operation, bytes_, source, target):
    share = bytes_ // 4 // world
    if operation == "all_reduce":
        dist.all_reduce(source)
    elif operation == "reduce_scatter":
        dist.reduce_scatter_tensor(target[:share], source[: share * world])
    elif operation == "all_gather":
        dist.all_gather_into_tensor(target[: share * world], source[:share])
    elif operation == "broadcast":
        dist.broadcast(source, 0)
    elif operation == "all_to_all":
        dist.all_to_all_single(target[: share * world], source[: share * world])
    elif rank == 0:
        dist.send(source, 1)
        dist.recv(source, 1)
    elif rank == 1:
        dist.recv(source, 0)
        dist.send(source, 0)


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    answers = open(f"{sys.argv[1]}.out", "w") if rank == 0 else None
    for line in open(f"{sys.argv[1]}.{rank}"):
        operation, bytes_, iterations = line.split()
        bytes_, iterations = int(bytes_), int(iterations)
        source, target = torch.zeros(bytes_ // 4), torch.zeros(bytes_ // 4)
        for _ in range(1 + iterations // 4):
            run(rank, world, operation, bytes_, source, target)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            run(rank, world, operation, bytes_, source, target)
        passed = time.perf_counter() - start
        dist.barrier()
        if rank == 0:
            print(passed / iterations, file=answers, flush=True)


main()
