"""What `tessera plan --write` writes is read by the parsers that the other trainers use."""

import tomllib
from pathlib import Path

JOB = """name: job
model: {preset: llama-3-8b, seq: 4096}
data: {source: synthetic}
train: {global_batch: 64, precision: bf16}
parallel: {dp: 4, pp: 4, zero: 1, schedule: 1f1b}
"""
CLUSTER = """name: gpus
groups:
  - {name: gpu, device: h100-sxm, nodes: 2, devices_per_node: 8, inside: nvlink4, network: rdma-400g}
"""


def test_a_plan_in_other_words_says_the_same(tessera):
    tessera.write("train.yaml", JOB)
    tessera.write("cluster.yaml", CLUSTER)
    tessera("plan", "train.yaml", "--cluster", "cluster.yaml", "--write", "megatron", "megatron.flags", "--write", "torchtitan", "titan.toml")
    flags = dict((line.split(" ", 1) + [""])[:2] for line in Path(tessera.folder, "megatron.flags").read_text().splitlines())
    titan = tomllib.loads(Path(tessera.folder, "titan.toml").read_text())
    parallelism = titan["parallelism"]
    stages = parallelism["module_fqns_per_model_part"]
    assert sum(stages, []) == ["tok_embeddings", *(f"layers.{i}" for i in range(32)), "norm", "output"]
    layout = flags.get("--pipeline-model-parallel-layout", "E" + "|".join(["t" * 8] * 4) + "L")
    assert [stage.count("t") for stage in layout.split("|")] == [sum(name.startswith("layers.") for name in stage) for stage in stages]
    assert parallelism["pipeline_parallel_degree"] == int(flags["--pipeline-model-parallel-size"]) == 4
    assert parallelism["pipeline_parallel_microbatch_size"] == int(flags["--micro-batch-size"])
    assert titan["training"]["local_batch_size"] * 4 == titan["training"]["global_batch_size"] == int(flags["--global-batch-size"])
    assert "--use-distributed-optimizer" in flags and parallelism["data_parallel_shard_degree"] == 4
