"""What a resumed run may change, and which checkpoint is taken when the newest is damaged."""

import json
import shutil
import time
from pathlib import Path

import pytest

from conftest import SHAKESPEARE

JOB = f"""name: job
model: {{arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128, seq: 32, vocab: 512}}
data: {{source: {SHAKESPEARE}, tokenizer: {{kind: bpe, vocab: 512}}}}
train: {{steps: 6, global_batch: 8, optimizer: {{kind: adamw, lr: 1.0e-3}}, eval: {{sequences: 4}}}}
parallel: {{dp: 1, pp: 1, tp: 1}}
checkpoint: {{every: 2, keep: 5}}
"""


def files_of(run):
    return {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


@pytest.fixture
def job(tessera):
    yaml = tessera.write("job.yaml", JOB)
    tessera("train", yaml, "--no-measure")
    tessera.run = Path(tessera.folder) / "runs" / "job"
    tessera.resume = lambda *words, check=True: tessera("train", yaml, "--no-measure", "--resume", *words, check=check)
    return tessera


def damage(run, step):
    shard = run / "checkpoints" / f"step-{step:06d}" / "rank-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)


def test_hyper_parameters_may_change_and_are_listed(job):
    said = job.resume("--set", "train.steps=8", "--set", "train.optimizer.lr=0.0005").stderr
    assert "the run goes on with other settings than before" in said
    assert "  train.optimizer.lr: 0.001, now 0.0005\n" in said and "  train.steps: 6, now 8\n" in said, said
    assert len(job.metrics("job")) == 8
    said = job.resume("--set", "train.steps=8", "--set", "train.optimizer.lr=0.0005").stderr
    assert "other settings" not in said and "runs/job is complete" in said, said


@pytest.mark.parametrize("setting, key, said", [
    ("train.seed=2", "train.seed", "train.seed: 1, now 2"),
    ("data.split.train=0.9", "data.split.train", "data.split.train: 0.95, now 0.9"),
    ("train.global_batch=4", "train.global_batch", "train.global_batch: 8, now 4"),
    ("data.source=other.txt", "data.source", "data.source (another text)"),
])
def test_other_data_must_be_named(job, setting, key, said):
    whole = SHAKESPEARE.read_text()
    job.write("other.txt", whole[:300_000])
    tokenizer = "data.tokenizer={kind: hf, file: runs/job/tokenizer.json}"
    words = ["--set", setting, "--set", tokenizer, "--set", "train.steps=8"]
    before = files_of(job.run)
    for named in ([], ["--change", "data.field"]):
        refused = job.resume(*words, *named, check=False)
        assert refused.returncode == 2 and said in refused.stderr, refused.stderr
        assert f"name it: --change {key}\n" in refused.stderr, refused.stderr
        assert files_of(job.run) == before
    unknown = job.resume(*words, "--change", "train.seeds", check=False)
    assert unknown.returncode == 2 and "did you mean 'train.seed'?" in unknown.stderr, unknown.stderr
    job.resume(*words, "--change", "data,train.seed" if key.startswith("data") else key)
    assert len(job.metrics("job")) == 8
    # It is the run's now.
    job.resume(*words)


def test_another_precision_makes_another_plan(job):
    said = job.resume("--set", "train.precision=bf16", "--set", "train.steps=8").stderr
    assert "  train.precision: not given, now bf16\n" in said, said
    assert json.loads((job.run / "plan.json").read_text())["precision"] == "bf16" and len(job.metrics("job")) == 8


def test_the_same_text_elsewhere_and_values_that_are_said_change_nothing(job):
    shutil.copy(SHAKESPEARE, Path(job.folder) / "moved.txt")
    job.resume("--set", "data.source=moved.txt", "--set", "data.split.train=0.95", "--set", "train.seed=1", "--set", "train.steps=8")
    assert len(job.metrics("job")) == 8


@pytest.mark.parametrize("words, said", [
    (["--set", "train.optimizer.lr=0.5"], "the run has made all its 6 steps; no other setting changes it now; expected train.steps above 6"),
    (["--set", "train.seed=3", "--change", "train.seed"], "set now: train.seed: 1, now 3"),
    (["--set", "train.steps=5"], "the run has made 6 steps, and train.steps is 5; expected train.steps of at least 6"),
    (["--overwrite"], "--resume"),
])
def test_what_would_lose_steps_is_refused(job, words, said):
    before = files_of(job.run)
    refused = job.resume(*words, check=False)
    assert refused.returncode == 2 and said in refused.stderr, refused.stderr
    assert files_of(job.run) == before


def test_a_repeated_resume_evaluates_once(job):
    for _ in range(2):
        job.resume()
    assert [line["step"] for line in job.evaluations("job")] == [6]
    assert [line["step"] for line in job.metrics("job")] == list(range(6))


def test_all_take_the_same_checkpoint_when_the_newest_is_damaged(job):
    damage(job.run, 6)
    warning = "passing over a checkpoint: runs/job/checkpoints/step-000006"
    evaluated = job("eval", "job", "--json")
    assert json.loads(evaluated.stdout)["checkpoint"] == "step-000004" and warning in evaluated.stderr
    written = job("generate", "job", "--prompt", "A", "--max-tokens", 4)
    assert warning in written.stderr
    assert warning in job("export", "job", "--to", "hf", "out").stderr
    named = job("eval", "job@6", check=False)
    assert named.returncode == 3 and "rank-00000.safetensors" in named.stderr and "model." in named.stderr, named.stderr

    # A run that goes on is asked to stop before it has made the damaged step again: its newest checkpoint is of a lower step.
    yaml = Path(job.folder) / "job.yaml"
    process = job.start("train", yaml, "--no-measure", "--resume", "--set", "train.steps=100000", "--set", "checkpoint.every=1")
    checkpoint = job.run / "checkpoints" / "step-000005"
    while not checkpoint.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.kill()
    _, said = process.communicate(timeout=60)
    assert warning in said and "step-000006.damaged" in said, said
    assert (job.run / "checkpoints" / "step-000006.damaged").exists()
    shutil.rmtree(job.run / "checkpoints" / "step-000006", ignore_errors=True)
    evaluated = job("eval", "job", "--json")
    assert json.loads(evaluated.stdout)["checkpoint"] != "step-000006" and "passing over" not in evaluated.stderr


def test_when_all_are_damaged_the_newest_is_named(job):
    for step in (2, 4, 6):
        damage(job.run, step)
    for words in (["eval", "job"], ["generate", "job"], ["export", "job", "--to", "hf", "out"]):
        refused = job(*words, check=False)
        assert refused.returncode == 3 and "error: runs/job/checkpoints/step-000006/rank-00000" in refused.stderr, refused.stderr


def test_a_run_starts_from_the_checkpoint_that_is_whole(job):
    damage(job.run, 6)
    yaml = job.write("next.yaml", JOB.replace("name: job", "name: next").replace("steps: 6", "steps: 2"))
    started = job("train", yaml, "--no-measure", "--set", "train.init=job")
    assert "passing over a checkpoint: " in started.stderr and "step-000006" in started.stderr, started.stderr
    same = job("train", yaml, "--no-measure", "--set", "train.init=job@4", "--set", "name=same")
    assert "passing over" not in same.stderr
    assert [line["loss"] for line in job.metrics("next")] == [line["loss"] for line in job.metrics("same")]
    named = job("train", yaml, "--no-measure", "--set", "train.init=job@6", "--set", "name=third", check=False)
    assert named.returncode == 3 and "rank-00000.safetensors" in named.stderr, named.stderr


def test_a_run_that_stopped_early_is_complete(job):
    early = ["--set", "train.steps=40", "--set", "train.eval.every=2", "--set", "train.early_stop={patience: 1, min_gain: 100}"]
    said = job.resume(*early).stderr
    assert "stopped early after 8 of 40 steps: 1 evaluation has not lowered the validation loss by 100" in said, said
    assert job("runs", "--json").stdout.count('"state":"complete"') == 1
    before = [line["step"] for line in job.evaluations("job")]
    assert before == sorted(set(before)) and before[-1] == 8, before
    job.resume(*early)
    assert [line["step"] for line in job.evaluations("job")] == before
    assert job("runs", "--json").stdout.count('"state":"complete"') == 1


def test_as_many_checkpoints_are_kept_as_were_asked_for(job):
    job.resume("--set", "train.steps=10", "--set", "checkpoint.keep=1")
    assert [path.name for path in (job.run / "checkpoints").iterdir()] == ["step-000010"]
