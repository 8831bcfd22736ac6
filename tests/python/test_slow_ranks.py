"""A rank that becomes slow while a run trains is named in its log, with what it costs, and again when that is over."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import BINARIES, REPOSITORY, SHAKESPEARE, wait_for_step, workers_of

sys.path.insert(0, str(REPOSITORY / "bench"))
from lab import load_netlab  # noqa: E402

JOB = {
    "name": "run",
    "model": {"arch": "llama", "hidden": 64, "layers": 4, "heads": 4, "kv_heads": 4, "ffn": 128, "seq": 64, "vocab": 512},
    "data": {"source": str(SHAKESPEARE), "tokenizer": {"kind": "bpe", "vocab": 512}},
    "train": {"steps": 1000000, "global_batch": 8, "precision": "fp32", "optimizer": {"kind": "adamw", "lr": 1e-4}},
    "checkpoint": {"every": 0},
    "cluster": {"local": {"devices": 2, "threads": 1}},
}
BEGINNING = 6  # seconds of training: windows have 0.8, and the first five say what is usual
SLOW = {"dp": r"rank 1 computes [\d.]+ x as long as its peer, above all in \S+ of \S+ [\d to]+: [\d.]+ \S+ of a step of [\d.]+ \S+ are spent waiting for it",
        "pp": r"rank 1 computes [\d.]+ x as long as at the run's beginning, above all in \S+ of \S+ [\d to]+: [\d.]+ \S+ of a step of [\d.]+ \S+ are spent waiting for it"}
OVER = {"dp": r"rank 1 computes as long as its peer again, after \d+ steps",
        "pp": r"rank 1 computes as long as at the run's beginning again, after \d+ steps"}


def log_of(tessera):
    return (Path(tessera.folder) / "runs" / "run" / "log.txt").read_text()


def train_usually(tessera, process):
    """Waits until the beginning is over."""
    wait_for_step(tessera, "run", 1, process)
    begin = time.monotonic()
    while time.monotonic() < begin + BEGINNING:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def until(said, turn, process):
    """Waits with `turn` until something was said, for as long as a slow machine may need."""
    for _ in range(6000):
        if re.search(said[0], said[1]()):
            return
        assert process.poll() is None, process.communicate()
        turn()
    raise AssertionError(f"nothing was said like {said[0]}:\n{said[1]()}")


def slowing(worker):
    """What takes three quarters of its time from a worker, for a moment."""
    def stop_for_a_moment():
        os.kill(worker, signal.SIGSTOP)
        time.sleep(0.03)
        os.kill(worker, signal.SIGCONT)
        time.sleep(0.01)

    return stop_for_a_moment


@pytest.mark.parametrize("kind, parallel", [("dp", {"dp": 2, "pp": 1, "tp": 1, "micro_batches": 1}),
                                            ("pp", {"dp": 1, "pp": 2, "tp": 1, "micro_batches": 4})])
def test_a_slowed_worker_is_named_and_so_is_its_end(tessera, kind, parallel):
    job = tessera.write("train.yaml", dict(JOB, parallel=parallel))
    process = tessera.start("train", job, "--no-measure")
    try:
        train_usually(tessera, process)
        stop_for_a_moment = slowing(workers_of(process.pid)[1])
        until((SLOW[kind], lambda: log_of(tessera)), stop_for_a_moment, process)
        until((OVER[kind], lambda: log_of(tessera)), lambda: time.sleep(0.05), process)
        lines = [line for line in log_of(tessera).splitlines() if "rank 1 computes" in line]
        assert " warning: " in lines[0] and " info: " in lines[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_a_host_that_becomes_slow_has_less_to_do_from_then_on(tessera):
    """Two hosts, as the cluster file has it; their workers run on this one."""
    tessera.write("hosts.yaml", {"name": "hosts", "groups": [{"name": "hosts", "device": "cpu:zen4", "nodes": 2, "cores": 1, "devices_per_node": 1, "memory": "8 GiB", "network": "tcp-10g"}]})
    job = tessera.write("train.yaml", {**JOB, "cluster": "hosts.yaml", "parallel": {"dp": 2, "pp": 1, "tp": 1, "micro_batches": 1}})
    run = Path(tessera.folder) / "runs" / "run"
    process = tessera.start("train", job, "--no-measure")
    try:
        train_usually(tessera, process)
        stop_for_a_moment = slowing(workers_of(process.pid)[1])
        until((r"after step \d+ rebalanced: blocks 0-\d+ on ranks 0, 1 with \d \+ \d of 8 samples; a step is expected to take ", lambda: log_of(tessera)), stop_for_a_moment, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    shares = [share["samples"] for share in json.loads((run / "plan.json").read_text())["stages"][0]["shares"]]
    assert shares[0] > shares[1] and sum(shares) == 8
    assert "speeds: [1, 0." in (run / "cluster.yaml").read_text()
    steps = len((run / "metrics.jsonl").read_text().splitlines())
    tessera("train", job, "--resume", "--set", f"train.steps={steps + 3}")
    assert json.loads((run / "plan.json").read_text())["stages"][0]["shares"][0]["samples"] == shares[0]


def test_an_even_run_is_left_alone(tessera):
    """Both workers are slowed alike, together. What else runs on this machine may slow one of them, which is then named, but not forever."""
    job = tessera.write("train.yaml", dict(JOB, parallel={"dp": 2, "pp": 1, "tp": 1, "micro_batches": 1}))
    process = tessera.start("train", job, "--no-measure")
    try:
        train_usually(tessera, process)
        workers = workers_of(process.pid).values()
        for _ in range(20):
            before = len(log_of(tessera))
            for _ in range(150):
                for signal_of_turn in (signal.SIGSTOP, signal.SIGCONT):
                    for worker in workers:
                        os.kill(worker, signal_of_turn)
                    time.sleep(0.02)
            if " x as long as " not in log_of(tessera)[before:]:
                return
        raise AssertionError(log_of(tessera))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_a_link_that_drifts_is_named_with_its_hosts(tessera):
    netlab = load_netlab()
    if netlab.missing():
        pytest.skip(f"no emulated hosts here: {netlab.missing()}")
    job = tessera.write("train.yaml", dict(JOB, parallel={"dp": 2, "pp": 1, "tp": 1, "micro_batches": 1}))
    tessera("plan", job, "-o", "plan.json")
    with netlab.Lab(2, gbit=[1]) as lab:
        def rate(mbit):
            for host in range(2):
                run = ["tc", "-n", lab.namespace(host), "qdisc", "change", "dev", "eth0", "root", "tbf", "rate", f"{mbit}mbit", "burst", "130000", "latency", "100ms"]
                subprocess.run(run, check=True)

        words = [str(BINARIES / "tessera"), "worker", str(job), "--plan", "plan.json", "--run", "runs/run", "--world", "2", "--rendezvous", f"{lab.address(0)}:29500"]
        environment = {**tessera.environment, "OMP_NUM_THREADS": "1"}
        ranks = [lab.popen(rank, [*words, "--rank", str(rank)], environment, cwd=tessera.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                 for rank in range(2)]
        train_usually(tessera, ranks[0])
        rate(40)
        who = f"exchanges over \\S+ \\(rank 0 on host {lab.namespace(0)}, rank 1 on host {lab.namespace(1)}\\)"
        until((who + r" take [\d.]+ x as long as at the run's beginning: [\d.]+ \S+ more in a step of", lambda: log_of(tessera)), lambda: time.sleep(0.05), ranks[0])


def test_a_link_that_becomes_slow_leads_to_another_order_of_ranks(tessera):
    """Four hosts, sharded, so that parts of the state change their owners; the losses are those of a run whose ranks stay in their order."""
    netlab = load_netlab()
    if netlab.missing():
        pytest.skip(f"no emulated hosts here: {netlab.missing()}")
    tessera.write("hosts.yaml", {"name": "hosts", "groups": [{"name": "hosts", "device": "cpu:zen4", "nodes": 4, "cores": 1, "devices_per_node": 1, "memory": "8 GiB", "network": "tcp-10g"}]})
    parallel = {"dp": 4, "pp": 1, "tp": 1, "zero": 1, "micro_batches": 1}
    job = tessera.write("train.yaml", {**JOB, "train": {**JOB["train"], "schedule": {"kind": "constant"}}, "cluster": "hosts.yaml", "parallel": parallel})
    # What the plan is made from, in which nothing was measured.
    tessera("train", job, "--no-measure", "--set", "name=first", "--set", "train.steps=1")
    run, first = Path(tessera.folder) / "runs" / "run", Path(tessera.folder) / "runs" / "first"
    plan, profile = first / "plan.json", first / "profile.json"
    before = json.loads(plan.read_text())
    assert before["stages"][0]["ranks"] == [0, 1, 2, 3] and len({place["node"] for place in before["ranks"]}) == 4
    with netlab.Lab(4, gbit=[1]) as lab:
        words = [str(BINARIES / "tessera"), "worker", str(job), "--plan", str(plan), "--profile", str(profile), "--run", str(run), "--world", "4", "--rendezvous", f"{lab.address(0)}:29500"]
        environment = {**tessera.environment, "OMP_NUM_THREADS": "1"}
        ranks = [lab.popen(rank, [*words, "--rank", str(rank)], environment, cwd=tessera.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                 for rank in range(4)]
        train_usually(tessera, ranks[0])
        lab.slow(0, 1, 0.02)
        wait = lambda: time.sleep(0.05)  # noqa: E731
        until((r"after step \d+ the links between hosts were measured again in [\d.]+ \S+: 0\.0\d Gbit/s between hosts 0 and 1, ", lambda: log_of(tessera)), wait, ranks[0])
        until((r"after step \d+ rebalanced: blocks 0-\d+ on ranks 0, 2, 1, 3; a step is expected to take ", lambda: log_of(tessera)), wait, ranks[0])
        changed = int(re.search(r"after step (\d+) rebalanced", log_of(tessera))[1])
        wait_for_step(tessera, "run", changed + 5, ranks[0])
        ranks[0].send_signal(signal.SIGTERM)
        for rank in ranks:
            rank.communicate(timeout=60)
    assert json.loads((run / "plan.json").read_text())["stages"][0]["ranks"] == [0, 2, 1, 3]
    assert "tcp-10g:0-1" in [sample["link"] for sample in json.loads((run / "profile.json").read_text())["communication"]]
    losses = [line["loss"] for line in tessera.metrics("run")]
    tessera("train", job, "--plan", plan, "--no-measure", "--set", "name=calm", "--set", f"train.steps={len(losses)}")
    assert losses == pytest.approx([line["loss"] for line in tessera.metrics("calm")], rel=1e-5)
