"""PaddlePaddle's CPU parameter server: one server and one worker. Run by run.py with the Python that has the package.

    python paddle_peer.py serve PORT
    python paddle_peer.py work PORT ROWS PID at-once|merged

The worker calls Paddle's client through the operators that a trainer's program holds. It answers what tessera_bench_ps_service answers, and "load" (pulls
and pushes every key once) and "save". at-once: each push is sent at once and by itself; merged: Paddle's defaults, which merge 12.
"""
import json
import os
import pathlib
import socket
import sys
import tempfile
import time

import numpy
import paddle
from google.protobuf import text_format
from keys import BATCH, BATCHES, DIMENSION, SMALL_BATCH, SMALL_BATCHES, keys_of, uniform, zipf
from paddle.base import core
from paddle.distributed.fleet.proto import the_one_ps_pb2

HOST = "127.0.0.1"
FLAGS = {"at-once": "-pserver_push_sparse_merge_limit=0 -pserver_max_async_call_num=0 -pserver_async_push_sparse_interval_ms=1", "merged": ""}
SHARDS = 12  # as many as the server has threads; small batches take several times as long with Paddle's 1000
FLUSH_POLL = 0.1  # seconds that Paddle sleeps before it looks whether all has been sent


def description(flags=""):
    """A table with AdaGrad; a row has two moments, since Paddle keeps its first value apart."""
    rule = {"name": "SparseAdaGradSGDRule", "adagrad": {"learning_rate": 0.05, "initial_g2sum": 3.0, "initial_range": 0.0001, "weight_bounds": [-10, 10]}}
    accessor = {"accessor_class": "SparseAccessor", "fea_dim": DIMENSION + 2, "embedx_dim": DIMENSION - 1, "embedx_threshold": 0,
                "embed_sgd_param": rule, "embedx_sgd_param": rule}
    tables = [{"table_class": "MemorySparseTable", "type": the_one_ps_pb2.PS_SPARSE_TABLE, "table_id": 0, "shard_num": SHARDS,
               "compress_in_save": False, "accessor": accessor}]
    service = {"server_class": "BrpcPsServer", "client_class": "BrpcPsClient", "service_class": "BrpcPsService", "server_thread_num": SHARDS}
    return text_format.MessageToString(the_one_ps_pb2.PSParameter(
        init_gflags=flags, worker_param={"downpour_worker_param": {"downpour_table_param": tables}},
        server_param={"downpour_server_param": {"downpour_table_param": tables, "service_param": service}}))


def places(port):
    return [core.PSHost(HOST, port, 0).serialize_to_string()]


def serve(port):
    server = core.DistFleetWrapper()
    server.init_server(description(), places(port), 0, 1, [])
    server.run_server(HOST, port)


class Worker:
    def __init__(self, port, flags):
        # The client listens too, at the address that this host's name stands for.
        if not socket.gethostbyname(socket.gethostname()).startswith("127."):
            sys.exit("Paddle's worker would listen beyond this host: let /etc/hosts give the host's name an address of 127.0.0.0/8")
        self.client = core.DistFleetWrapper()
        self.client.init_worker(description(flags), places(port), 0)
        paddle.enable_static()
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        names = {"W": "table", "Ids": "keys"}
        self.pulling = self.program("distributed_lookup_table", names, "values", {"lookup_table_version": "lookup_table_v2"})
        self.pushing = self.program("distributed_push_sparse", {**names, "Shows": "shows", "Clicks": "clicks", "Outputs": "gradients"}, "gradients",
                                    {"size": DIMENSION, "use_cvm_op": False, "slots": [0]})
        self.set("table", numpy.zeros((1, DIMENSION), "float32"))
        self.set("shows", numpy.ones((1, 1), "float32"))
        self.set("clicks", numpy.zeros((1, 1), "float32"))
        self.gradients = numpy.random.default_rng(7).random((1, BATCH, DIMENSION), "float32") - numpy.float32(0.5)

    @staticmethod
    def program(operator, inputs, output, attributes):
        program = paddle.static.Program()
        block = program.global_block()
        shapes = {"table": [1, DIMENSION], "keys": [1, -1], "shows": [1, 1], "clicks": [1, 1]}
        made = {name: block.create_var(name=name, shape=shapes.get(name, [1, -1, DIMENSION]), dtype="int64" if name == "keys" else "float32",
                                       persistable=True) for name in {*inputs.values(), output}}
        block.append_op(type=operator, inputs={role: [made[name]] for role, name in inputs.items()}, outputs={"Outputs": [made[output]]},
                        attrs={"table_id": 0, "is_distributed": True, "padding_idx": -1, **attributes})
        return program

    @staticmethod
    def tensor(name):
        return paddle.static.global_scope().var(name).get_tensor()

    def set(self, name, values):
        self.tensor(name).set(values, paddle.CPUPlace())

    # Keys are one sample's, as Paddle multiplies gradients by the number of samples, in place.
    def pull(self, keys):
        self.set("keys", keys.reshape(1, -1))
        self.executor.run(self.pulling)

    def push(self, keys):
        self.set("keys", keys.reshape(1, -1))
        if self.tensor("gradients").shape()[1:2] != [keys.size]:
            self.set("gradients", self.gradients[:, :keys.size])
        self.executor.run(self.pushing)

    def pull_and_push(self, keys):
        self.pull(keys)
        self.push(keys)

    def rows_there(self, batches):
        """Rows that are missing are pulled as zeros."""
        there = 0
        for keys in batches:
            self.pull(keys)
            there += int(numpy.array(self.tensor("values")).any(axis=2).sum())
        return there


def all_keys(rows):
    return [keys_of(numpy.arange(start, min(start + BATCH, rows))) for start in range(0, rows, BATCH)]


def cpu_seconds_of(process):
    return time.clock_gettime(~process << 3 | 2)  # as clock_getcpuclockid names that process's clock


def resident_bytes_of(process):
    return int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Bench:
    def __init__(self, worker, rows, server):
        self.worker, self.server = worker, server
        self.rows, self.every = rows, all_keys(rows)
        self.seed = 100

    def cpu_seconds(self):
        return cpu_seconds_of(os.getpid()) + cpu_seconds_of(self.server)

    def time(self, batches, run):
        cpu_before, start = self.cpu_seconds(), time.perf_counter()
        for keys in batches:
            run(keys)
        seconds = time.perf_counter() - start
        if run != self.worker.pull:
            self.worker.client.client_flush()
            seconds = max(seconds, time.perf_counter() - start - FLUSH_POLL)
        return {"million_keys_per_s": sum(keys.size for keys in batches) / 1e6 / seconds, "milliseconds_of_a_batch": 1e3 * seconds / len(batches),
                "cpu_milliseconds_of_a_batch": 1e3 * (self.cpu_seconds() - cpu_before) / len(batches)}

    def insert(self):
        """By pushes: a pull makes no row."""
        resident_before = resident_bytes_of(self.server)
        told = self.time(self.every, self.worker.push)
        resident = resident_bytes_of(self.server) - resident_before
        there = self.worker.rows_there(self.every)
        return {**told, "rows": there, "resident_bytes_of_a_row": resident / max(1, there)}

    def load(self):
        told = self.time(self.every, self.worker.pull_and_push)
        self.worker.client.client_flush()  # again: a flush passes over pushes that are being merged
        return {**told, "rows": self.worker.rows_there(self.every)}

    def save(self):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            self.worker.client.save_one_model(0, folder, 0)
            return {"million_rows_per_s": self.rows / 1e6 / (time.perf_counter() - start)}

    def run(self, name):
        self.seed += 1
        shape = (SMALL_BATCHES, SMALL_BATCH) if name.startswith("small") else (BATCHES, BATCH)
        rows = (zipf if name.endswith("zipf") else uniform)(numpy.random.default_rng(self.seed), self.rows, shape)
        return self.time(keys_of(rows), self.worker.pull_and_push if "push" in name else self.worker.pull)


def work(port, rows, server, flags):
    bench = Bench(Worker(port, flags), rows, server)
    others = {"insert": bench.insert, "load": bench.load, "save": bench.save}
    print("ready", flush=True)
    for line in sys.stdin:
        word = line.strip()
        print(json.dumps(others[word]() if word in others else bench.run(word)), flush=True)
    os._exit(0)  # else Paddle waits for what the server has not answered


def main():
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        work(*map(int, sys.argv[2:5]), FLAGS[sys.argv[5]])


if __name__ == "__main__":
    main()
