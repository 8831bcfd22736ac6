"""A run that is stopped early says where, how to go on, and ends with an exit code of its own."""

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import SHAKESPEARE, free_place, wait_for_step, workers_of

JOB = f"""name: long
model: {{arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128, seq: 32, vocab: 512}}
data: {{source: {SHAKESPEARE}, tokenizer: {{kind: bpe, vocab: 512}}}}
train: {{steps: 4000, global_batch: 8, optimizer: {{kind: adamw, lr: 1.0e-3}}, eval: {{sequences: 4}}}}
cluster: {{local: {{devices: 2, threads: 1}}}}
parallel: {{dp: 2, pp: 1, tp: 1}}
"""
TRY_AGAIN = 75


def run_of(tessera, name="long"):
    return Path(tessera.folder) / "runs" / name


def wait_until_caught(process, wanted):
    status = Path(f"/proc/{process.pid}/status")
    while not int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16) & 1 << (wanted - 1):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def go_on(tessera, message):
    """Types the command that the message ends with."""
    (command,) = re.findall(r"go on from the last checkpoint with: (.*)", message)
    words = shlex.split(command)
    assert words[0] == "tessera"
    return tessera(*words[1:], "--set", f"train.steps={len(tessera.metrics('long')) + 2}")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_stopped_says_where_and_how_to_go_on(tessera, stop):
    yaml = tessera.write("my texts/other.yaml", JOB.replace("name: long", "name: other"))
    process = tessera.start("train", yaml, "--no-measure", "--set", "name=long")
    wait_for_step(tessera, "long", 3, process)
    process.send_signal(stop)
    _, message = process.communicate(timeout=60)
    assert process.returncode == TRY_AGAIN, message
    made = len(tessera.metrics("long"))
    assert f"stopped after step {made} of 4000" in message and "complete" not in message, message
    assert "error" not in message, message
    assert "go on from the last checkpoint with: tessera train runs/long/train.yaml --resume\n" in message, message
    assert (run_of(tessera) / "checkpoints" / f"step-{made:06d}" / "manifest.json").exists()
    go_on(tessera, message)
    assert [line["step"] for line in tessera.metrics("long")] == list(range(made + 2))


def test_one_worker_that_is_asked_to_stop_stops_all(tessera):
    yaml = tessera.write("long.yaml", JOB)
    process = tessera.start("train", yaml, "--no-measure", "--json")
    wait_for_step(tessera, "long", 3, process)
    os.kill(workers_of(process.pid)[1], signal.SIGTERM)
    out, message = process.communicate(timeout=60)
    assert process.returncode == TRY_AGAIN, message
    made = len(tessera.metrics("long"))
    assert f"stopped after step {made} of 4000" in out.splitlines()[-1] and '"interrupted"' in out.splitlines()[-1]
    assert "complete" not in message, message
    assert (run_of(tessera) / "checkpoints" / f"step-{made:06d}" / "manifest.json").exists()


def test_a_stop_after_the_last_step_is_no_stop(tessera):
    yaml = tessera.write("long.yaml", JOB.replace("steps: 4000", "steps: 3"))
    tessera("train", yaml, "--no-measure")
    process = tessera.start("train", yaml, "--no-measure", "--resume")
    _, message = process.communicate(timeout=60)
    assert process.returncode == 0 and "runs/long is complete" in message, message


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_worker_that_waits_for_others_ends_when_asked(tessera, rank, stop):
    yaml = tessera.write("long.yaml", JOB)
    tessera("plan", yaml, "-o", "plan.json")
    worker = tessera.start("worker", yaml, "--plan", "plan.json", "--world", 2, "--rank", rank, "--rendezvous", free_place())
    try:
        wait_until_caught(worker, stop)
        worker.send_signal(stop)
        _, message = worker.communicate(timeout=20)
        assert worker.returncode == TRY_AGAIN, message
        assert f"rank {rank}: stopped before the first step" in message, message
        assert not run_of(tessera).exists()
    finally:
        worker.kill()
        worker.communicate()


def test_a_worker_that_is_to_survive_a_hangup_does(tessera):
    yaml = tessera.write("long.yaml", JOB)
    tessera("plan", yaml, "-o", "plan.json")
    worker = tessera.start("worker", yaml, "--plan", "plan.json", "--world", 2, "--rank", 0, "--rendezvous", free_place(),
                           ignored=[signal.SIGHUP])
    try:
        wait_until_caught(worker, signal.SIGTERM)
        worker.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(timeout=1)
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.parametrize("json", [False, True])
def test_training_goes_on_when_nobody_listens(tessera, json):
    yaml = tessera.write("long.yaml", JOB.replace("steps: 4000", "steps: 20"))
    command = ["train", yaml, "--no-measure", *(["--json"] if json else [])]
    reading, writing = os.pipe()
    process = tessera.start(*command, stdout=writing, stderr=writing)
    os.close(writing)
    assert os.read(reading, 1)
    os.close(reading)
    assert process.wait(timeout=120) == 0
    assert len(tessera.metrics("long")) == 20
    assert (run_of(tessera) / "checkpoints" / "step-000020" / "manifest.json").exists()
    log = (run_of(tessera) / "log.txt").read_text()
    for line in ("plan: 2 workers", "checkpoint of step 20", "validation loss", "runs/long is complete"):
        assert line in log, log


def test_the_log_has_everything_that_was_shown(tessera):
    yaml = tessera.write("long.yaml", JOB.replace("steps: 4000", "steps: 6"))
    shown = tessera("train", yaml, "--no-measure").stderr
    log = (run_of(tessera) / "log.txt").read_text()
    for line in shown.splitlines():
        assert line in log, f"{line!r} is not in:\n{log}"
    failed = tessera("train", yaml, "--no-measure", "--resume", "--set", "train.steps=12", "--set", "train.optimizer.lr=1e12", check=False)
    assert failed.returncode == 3, failed.stderr
    # Numbered like the line of progress and the checkpoints, and said once, not by each rank.
    log = (run_of(tessera) / "log.txt").read_text()
    for line in failed.stderr.splitlines():
        assert line in log, f"{line!r} is not in:\n{log}"
    warnings = re.findall(r"the gradient of step (\d+) is not finite", failed.stderr)
    assert len(warnings) == 2 and f"the last was step {int(warnings[-1]) + 1};" in failed.stderr, failed.stderr
