"""Checkpoints and texts by name, wherever one is read."""

import json
from pathlib import Path

import pytest

from conftest import SHAKESPEARE

JOB = f"""name: job
model: {{arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128, seq: 32, vocab: 512}}
data: {{source: {SHAKESPEARE}, tokenizer: {{kind: bpe, vocab: 512}}}}
train: {{steps: 40, global_batch: 8, optimizer: {{kind: adamw, lr: 1.0e-2}}, eval: {{sequences: 4}}}}
parallel: {{dp: 1, pp: 1, tp: 1}}
checkpoint: {{every: 20, keep: 5}}
"""


@pytest.fixture(scope="module")
def job(shared_tessera):
    yaml = shared_tessera.write("job.yaml", JOB)
    shared_tessera("train", yaml, "--no-measure")
    return shared_tessera


def loss_of(job, *words):
    return json.loads(job("eval", *words, "--sequences", 32, "--json").stdout)


def test_a_run_is_evaluated_at_a_step(job):
    early, late = loss_of(job, "job@20"), loss_of(job, "runs/job")
    assert early["checkpoint"] == "step-000020" and late["checkpoint"] == "step-000040"
    assert early["loss"] > late["loss"]
    assert loss_of(job, "runs/job@40") == late


def test_what_is_not_there_is_answered_with_what_is(job):
    step = job("eval", "job@30", check=False)
    assert step.returncode == 3 and "no checkpoint of step 30; expected one of the steps 20, 40" in step.stderr, step.stderr
    for command in (["eval"], ["generate"], ["export", "--to", "hf", "nowhere"]):
        run = job(*command, "jop@20", check=False)
        assert run.returncode == 3 and "did you mean 'job'?" in run.stderr, run.stderr
    assert not (Path(job.folder) / "nowhere").exists()


def test_another_text_is_evaluated_in_the_tokens_of_the_run(job):
    same = job.write("same.txt", SHAKESPEARE.read_text()[:60_000])
    other = job.write("other.txt", "".join(chr(97 + (7 * i * i) % 26) for i in range(60_000)))
    on_same, on_other = loss_of(job, "job", "--text", same), loss_of(job, "job", "--text", other)
    assert on_same["text"] == str(same) and on_other["loss"] != on_same["loss"]
    # The whole text, not what a split leaves of it.
    everything = json.loads(job("eval", "job", "--text", other, "--json").stdout)
    assert everything["tokens"] > 20_000
    assert f", on {other}: loss" in job("eval", "job", "--text", other).stdout
    short = job.write("short.txt", "A few words.")
    refused = job("eval", "job", "--text", short, check=False)
    assert refused.returncode == 2 and "too few for one sequence" in refused.stderr, refused.stderr
    missing = job("eval", "job", "--text", "sane.txt", check=False)
    assert missing.returncode == 3 and "sane.txt" in missing.stderr and "same.txt" in missing.stderr, missing.stderr


def test_text_is_written_at_a_step(job):
    words = ["--prompt", "The king", "--max-tokens", 20, "--temperature", 0, "--json"]
    early, late = (job("generate", run, *words).stdout for run in ("job@20", "job"))
    assert json.loads(early)["prompt"] == "The king" and early != late
    assert job("generate", "job@40", *words).stdout == late


def test_a_step_is_exported_in_either_type(job):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    models = {}
    for dtype in ("fp32", "bf16"):
        job("export", "job@20", "--to", "hf", dtype, "--dtype", dtype)
        folder = Path(job.folder) / dtype
        models[dtype] = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        (weights,) = folder.glob("*.safetensors")
        models[dtype].bytes = weights.stat().st_size
    assert models["fp32"].dtype == torch.float32 and models["bf16"].dtype == torch.bfloat16
    assert models["bf16"].bytes < 0.55 * models["fp32"].bytes
    for (name, whole), (_, half) in zip(models["fp32"].named_parameters(), models["bf16"].named_parameters()):
        assert torch.equal(whole.to(torch.bfloat16), half), name
    refused = job("export", "job", "--to", "hf", "fp8", "--dtype", "fp8", check=False)
    assert refused.returncode == 2 and "bf16" in refused.stderr, refused.stderr


@pytest.mark.parametrize("start", ["job@20", "runs/job@20", "hf-start"])
def test_a_run_starts_from_the_weights_that_are_named(job, start):
    if start == "hf-start":
        job("export", "job@20", "--to", "hf", start)
    name = start.replace("/", "-").replace("@", "-at-")
    words = ["--no-measure", "--set", f"name={name}", "--set", f"train.init={start}", "--set", "train.steps=1",
             "--set", "train.optimizer.lr=0"]
    tokens = ["--set", f"data.tokenizer={{kind: hf, file: {Path(job.folder) / start / 'tokenizer.json'}}}"] if start == "hf-start" else []
    job("train", "job.yaml", *words, *tokens)
    assert loss_of(job, name)["loss"] == pytest.approx(loss_of(job, "job@20")["loss"], rel=1e-6)
    # It goes on from another folder too.
    assert Path(job.folder) in Path(yaml_value(job, name, "init").split("@")[0]).parents


def yaml_value(job, run, key):
    (line,) = [line for line in (Path(job.folder) / "runs" / run / "train.yaml").read_text().splitlines() if f"{key}:" in line]
    return line.split(f"{key}:")[1].strip().split(",")[0].strip("'\"} ")


def test_weights_that_are_not_there_are_refused_before_anything_is_made(job):
    words = ["train", "job.yaml", "--no-measure", "--set", "name=none"]
    refused = job(*words, "--set", "train.init=jop", check=False)
    assert refused.returncode == 3 and "did you mean 'job'?" in refused.stderr, refused.stderr
    assert not (Path(job.folder) / "runs" / "none").exists()
    job("export", "job@20", "--to", "hf", "other-model")
    refused = job(*words, "--set", "train.init=other-model", "--set", "model.layers=1", check=False)
    assert refused.returncode == 2 and "another model than the train.yaml" in refused.stderr, refused.stderr
