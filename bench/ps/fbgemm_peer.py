"""FBGEMM's table-batched embedding on the CPU, in one process: prints million keys a second as one line of JSON. Run by run.py.

    python fbgemm_peer.py ROWS ROUNDS
"""
import json
import os
import statistics
import sys
import time

import numpy
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from keys import BATCH, BATCHES, DIMENSION, FEATURES, uniform, zipf


def main():
    rows, rounds = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    # All features share one table, and each bag holds one key. FBGEMM is several times slower where the batch is one feature.
    table = SplitTableBatchedEmbeddingBagsCodegen([(rows, DIMENSION, EmbeddingLocation.HOST, ComputeDevice.CPU)], feature_table_map=[0] * FEATURES,
                                                  pooling_mode=PoolingMode.SUM, optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=0.05)
    table.init_embedding_weights_uniform(-0.01, 0.01)
    offsets = torch.arange(BATCH + 1)
    gradients = torch.rand(BATCH // FEATURES, FEATURES * DIMENSION) - 0.5
    rates = {}

    def time_batches(name, batches, run):
        start = time.perf_counter()
        for keys in batches:
            run(table(keys, offsets))
        rates.setdefault(name, []).append(BATCHES * BATCH / 1e6 / (time.perf_counter() - start))

    for seed in range(100, 100 + rounds):
        for draw in (uniform, zipf):
            batches = torch.from_numpy(draw(numpy.random.default_rng(seed), rows, (BATCHES, BATCH)))
            with torch.no_grad():
                time_batches(f"look-up {draw.__name__}", batches, lambda values: None)
            time_batches(f"look-up, backward and step {draw.__name__}", batches, lambda values: values.backward(gradients))
    print(json.dumps({name: statistics.median(values) for name, values in rates.items()}))


if __name__ == "__main__":
    main()
