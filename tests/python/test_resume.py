"""A run that is killed and resumed equals the run that was not."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from conftest import SHAKESPEARE, wait_for_checkpoint, wait_for_step, workers_of

STEPS = 24


def job(name, parallel, **train):
    return {
        "name": name,
        "model": {"arch": "llama", "hidden": 128, "layers": 4, "heads": 4, "kv_heads": 2, "ffn": 256, "seq": 64, "vocab": 512},
        "data": {"source": str(SHAKESPEARE), "tokenizer": {"kind": "bpe", "vocab": 512}},
        "train": {"steps": STEPS, "global_batch": 16, "optimizer": {"kind": "adamw", "lr": 1.0e-3}, "eval": {"sequences": 16}, **train},
        "cluster": {"local": {"devices": parallel["dp"] * parallel["pp"] * parallel["tp"], "threads": 1}},
        "parallel": parallel,
        "checkpoint": {"every": 6},
    }


PLANS = [{"dp": 2, "pp": 1, "tp": 1, "zero": 1}, {"dp": 1, "pp": 2, "tp": 1, "micro_batches": 4}]


@pytest.mark.parametrize("index", range(len(PLANS)))
def test_resume_after_kill_is_bitwise_the_uninterrupted_run(tessera, index):
    plan = PLANS[index]
    whole = tessera.write("whole.yaml", job("whole", plan))
    tessera("train", whole, "--no-measure")
    expected = [line["loss"] for line in tessera.metrics("whole")]

    killed = tessera.write("killed.yaml", job("killed", plan))
    process = tessera.start("train", killed, "--no-measure")
    wait_for_step(tessera, "killed", 8, process)
    wait_for_checkpoint(tessera, "killed", process)
    os.kill(workers_of(process.pid)[1], signal.SIGKILL)
    _, message = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "rank 1" in message and "--resume" in message, message
    assert not workers_of(process.pid)

    tessera("train", killed, "--no-measure", "--resume")
    losses = {line["step"]: line["loss"] for line in tessera.metrics("killed")}
    assert [losses[step] for step in range(STEPS)] == expected
    assert tessera.evaluations("killed")[-1]["validation_loss"] == tessera.evaluations("whole")[-1]["validation_loss"]

    other = tessera.write("other.yaml", job("killed", PLANS[1 - index]))
    for checkpoint in sorted((Path(tessera.folder) / "runs" / "killed" / "checkpoints").iterdir())[1:]:
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    tessera("train", other, "--no-measure", "--resume", "--set", f"parallel={json.dumps(PLANS[1 - index])}")
    losses = {line["step"]: line["loss"] for line in tessera.metrics("killed")}
    worst = max(abs(losses[step] - expected[step]) / expected[step] for step in range(STEPS))
    print(f"resumed under another plan: worst relative difference {worst:.1e}")
    assert worst < 1e-4


def test_no_worker_outlives_a_killed_launcher(tessera):
    yaml = tessera.write("orphans.yaml", job("orphans", {"dp": 2, "pp": 1, "tp": 1}, steps=4000))
    process = tessera.start("train", yaml, "--no-measure")
    wait_for_step(tessera, "orphans", 2, process)
    workers = workers_of(process.pid)
    assert len(workers) == 2
    process.kill()
    process.wait()
    for _ in range(500):
        alive = [pid for pid in workers.values() if Path(f"/proc/{pid}").exists()]
        if not alive:
            return
        time.sleep(0.01)
    raise AssertionError(f"workers {alive} are still there")
