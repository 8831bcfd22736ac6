"""Workers that are killed in the middle of a save leave the checkpoint before it whole, and the run goes on from there."""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from conftest import SHAKESPEARE, workers_of

STEPS = 4000
JOB = f"""name: job
model: {{arch: llama, hidden: 128, layers: 4, heads: 4, kv_heads: 4, ffn: 256, seq: 16, vocab: 512}}
data: {{source: {SHAKESPEARE}, tokenizer: {{kind: bpe, vocab: 512}}}}
train: {{steps: {STEPS}, global_batch: 2, optimizer: {{kind: adamw, lr: 1.0e-3}}, schedule: {{kind: constant}}}}
checkpoint: {{every: 1, keep: 2}}
"""


def committed(checkpoints):
    return sorted(int(path.name[5:]) for path in checkpoints.glob("step-*") if re.fullmatch(r"step-\d{6,}", path.name))


def kill_in_a_save(process, checkpoints, chance):
    """Waits for two commits of this process and kills all its workers somewhere in a later save. The steps that were committed then."""
    begun = committed(checkpoints)[-1:]
    while committed(checkpoints)[-1:] == begun or len(committed(checkpoints)) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    workers = list(workers_of(process.pid).values())
    while not any(checkpoints.glob("step-*.tmp")):
        pass
    time.sleep(chance.random() * 0.03)
    before = committed(checkpoints)
    for worker in chance.sample(workers, len(workers)):
        os.kill(worker, signal.SIGKILL)
    process.communicate(timeout=60)
    return before


@pytest.mark.parametrize("ranks, kills", [(1, 12), (2, 8)])
def test_a_save_that_is_killed_leaves_the_one_before(tessera, ranks, kills):
    chance = random.Random(kills)
    yaml = tessera.write("job.yaml", JOB)
    plan = ("--set", f"parallel={{dp: {ranks}, pp: 1, tp: 1, zero: {ranks - 1}}}", "--set", f"cluster={{local: {{devices: {ranks}, threads: 1}}}}")
    checkpoints = Path(tessera.folder) / "runs" / "job" / "checkpoints"
    interrupted = 0
    for kill in range(kills):
        process = tessera.start("train", yaml, "--no-measure", *plan, *(["--resume"] if kill else []))
        before = kill_in_a_save(process, checkpoints, chance)
        interrupted += any(checkpoints.glob("step-*.tmp"))
        # Evaluating reads every byte of it.
        tessera("eval", f"runs/job@{before[-1]}", "--sequences", 1)
    assert interrupted > kills / 3, "most were to be killed before their commit"
    made = committed(checkpoints)[-1]
    last = made + 2
    tessera("train", yaml, "--no-measure", *plan, "--resume", "--set", f"train.steps={last}")
    # Every step was made once by the run as it stands, and as by one that nothing interrupts.
    losses = [line["loss"] for line in tessera.metrics("job")]
    tessera("train", yaml, "--no-measure", *plan, "--set", f"train.steps={last}", "--set", "name=whole", "--set", "checkpoint.every=0")
    assert losses == [line["loss"] for line in tessera.metrics("whole")]
