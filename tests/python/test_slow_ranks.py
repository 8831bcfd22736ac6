"""A rank that becomes slow while a run trains is named in its log, with what it costs, and again when that is over."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from conftest import SHAKESPEARE, wait_for_step, workers_of

JOB = {
    "name": "run",
    "model": {"arch": "llama", "hidden": 64, "layers": 4, "heads": 4, "kv_heads": 4, "ffn": 128, "seq": 64, "vocab": 512},
    "data": {"source": str(SHAKESPEARE), "tokenizer": {"kind": "bpe", "vocab": 512}},
    "train": {"steps": 1000000, "global_batch": 8, "precision": "fp32", "optimizer": {"kind": "adamw", "lr": 1e-4}},
    "checkpoint": {"every": 0},
    "cluster": {"local": {"devices": 2, "threads": 1}},
}
SLOW = {"dp": r"rank 1 computes [\d.]+ x as long as its peer: [\d.]+ \S+ of a step of [\d.]+ \S+ are spent waiting for it",
        "pp": r"rank 1 computes [\d.]+ x as long as at the run's beginning: [\d.]+ \S+ of a step of [\d.]+ \S+ are spent waiting for it"}
OVER = {"dp": r"rank 1 computes as long as its peer again, after \d+ steps",
        "pp": r"rank 1 computes as long as at the run's beginning again, after \d+ steps"}


def log_of(tessera):
    return (Path(tessera.folder) / "runs" / "run" / "log.txt").read_text()


def until(said, turn, process):
    """Waits with `turn` until something was said, for as long as a slow machine may need."""
    for _ in range(6000):
        if re.search(said[0], said[1]()):
            return
        assert process.poll() is None, process.communicate()
        turn()
    raise AssertionError(f"nothing was said like {said[0]}:\n{said[1]()}")


@pytest.mark.parametrize("kind, parallel", [("dp", {"dp": 2, "pp": 1, "tp": 1, "micro_batches": 1}),
                                            ("pp", {"dp": 1, "pp": 2, "tp": 1, "micro_batches": 4})])
def test_a_slowed_worker_is_named_and_so_is_its_end(tessera, kind, parallel):
    job = tessera.write("train.yaml", dict(JOB, parallel=parallel))
    process = tessera.start("train", job, "--no-measure")
    try:
        # Without peers a rank is compared with its first windows, of half a second each.
        wait_for_step(tessera, "run", 50, process)
        time.sleep(4)
        worker = workers_of(process.pid)[1]

        def stop_for_a_moment():
            os.kill(worker, signal.SIGSTOP)
            time.sleep(0.03)
            os.kill(worker, signal.SIGCONT)
            time.sleep(0.01)

        until((SLOW[kind], lambda: log_of(tessera)), stop_for_a_moment, process)
        until((OVER[kind], lambda: log_of(tessera)), lambda: time.sleep(0.05), process)
        lines = [line for line in log_of(tessera).splitlines() if "rank 1 computes" in line]
        assert " warning: " in lines[0] and " info: " in lines[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_an_even_run_is_left_alone(tessera):
    """Both workers are slowed alike, together: as on a machine with other work."""
    job = tessera.write("train.yaml", dict(JOB, parallel={"dp": 2, "pp": 1, "tp": 1, "micro_batches": 1}))
    process = tessera.start("train", job, "--no-measure")
    try:
        wait_for_step(tessera, "run", 50, process)
        workers = workers_of(process.pid).values()
        for _ in range(150):
            for signal_of_turn, seconds in ((signal.SIGSTOP, 0.02), (signal.SIGCONT, 0.02)):
                for worker in workers:
                    os.kill(worker, signal_of_turn)
                time.sleep(seconds)
        assert "computes" not in log_of(tessera)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
