"""What the user gets wrong is answered with file, line and the nearest valid choice; nothing that existed is damaged."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from conftest import BINARIES, SHAKESPEARE, free_place

GOOD = """name: job
model: {arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128, seq: 32, vocab: 512}
data: {source: SOURCE, tokenizer: {kind: bpe, vocab: 512}}
train:
  steps: 4
  global_batch: 8
  optimizer: {kind: adamw, lr: 1.0e-3}
parallel: {dp: 1, pp: 1, tp: 1}
""".replace("SOURCE", str(SHAKESPEARE))


def files_of(run):
    return {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def refused(tessera, yaml, *words, arguments=()):
    path = tessera.write("job.yaml", yaml)
    result = tessera("train", path, "--no-measure", *arguments, check=False)
    assert result.returncode not in (0, 70), result.stderr
    for word in words:
        assert word in result.stderr, f"{word!r} is not in:\n{result.stderr}"
    return result


@pytest.mark.parametrize("good,bad,words", [
    ("steps: 4", "stps: 4", ["job.yaml:5", "stps", "did you mean 'steps'"]),
    ("steps: 4", "steps: many", ["job.yaml:5", "train.steps", "whole number"]),
    ("steps: 4", "steps: -1", ["job.yaml:5", "at least 1"]),
    ("kind: adamw", "kind: adamv", ["job.yaml:7", "did you mean 'adamw'"]),
    ("heads: 4, kv_heads: 2", "heads: 5, kv_heads: 5", ["job.yaml:2", "5", "64", "nearest: 4"]),
    ("kv_heads: 2", "kv_heads: 3", ["job.yaml:2", "does not divide"]),
    ("arch: llama", "arch: lama", ["job.yaml:2", "did you mean 'llama'"]),
    ("tp: 1", "tp: 3", ["job.yaml:8", "tp 3", "nearest: tp 2"]),
    ("dp: 1", "dp: 3", ["job.yaml:8", "dp 3", "nearest: dp 2"]),
    ("pp: 1", "pp: 9", ["job.yaml:8", "pp 9"]),
    ("tp: 1", "tp: 1, micro_batches: 3", ["job.yaml:8", "micro_batches 3"]),
    (str(SHAKESPEARE), "nowhere.txt", ["nowhere.txt"]),
    ("vocab: 512}\ndata", "vocab: 300}\ndata", ["512", "300"]),
    ("model: {arch", "model: [arch", ["job.yaml:2", "not valid YAML"]),
    ("model: {arch: llama, hidden: 64", "model: {arch: llama, hidden: 65536", ["no plan fits", "more than", "would fit"]),
])
def test_a_mistake_in_the_yaml_is_answered_with_its_place(tessera, good, bad, words):
    assert good in GOOD
    refused(tessera, GOOD.replace(good, bad), *words)
    assert not (Path(tessera.folder) / "runs" / "job" / "checkpoints" / "step-000004").exists()


@pytest.mark.parametrize("content,words", [(b"", ["empty"]), (b"text \x00\x01\x02\xff binary", ["text.txt"])])
def test_an_empty_or_binary_text_is_refused(tessera, content, words):
    path = Path(tessera.folder) / "text.txt"
    path.write_bytes(content)
    refused(tessera, GOOD.replace(str(SHAKESPEARE), str(path)), *words)


def test_a_plan_for_other_devices_is_refused(tessera):
    yaml = tessera.write("job.yaml", GOOD)
    tessera("plan", yaml, "-o", "plan.json", "--set", "cluster={local: {devices: 1}}")
    plan = json.loads((Path(tessera.folder) / "plan.json").read_text())
    tessera.write("other.json", {**plan, "cluster": "0123456789abcdef"})
    refused(tessera, GOOD, "other.json", arguments=["--plan", "other.json"])
    tessera.write("broken.json", {**plan, "micro_batches": 3})
    refused(tessera, GOOD, "broken.json", "3", arguments=["--plan", "broken.json"])


def test_a_plan_that_does_not_fit_is_refused(tessera):
    tessera.write("small.yaml", "name: small\ngroups:\n  - {name: host, device: 'cpu:zen4', cores: 1, memory: 700 MiB, inside: shm}\n")
    large = GOOD.replace("global_batch: 8", "global_batch: 8192").replace("tp: 1", "tp: 1, micro_batches: 64") + "cluster: small.yaml\n"
    yaml = tessera.write("job.yaml", large)
    tessera("plan", yaml, "-o", "plan.json")
    plan = json.loads((Path(tessera.folder) / "plan.json").read_text())
    tessera.write("whole.json", {**plan, "micro_batches": 1})
    refused(tessera, large, "whole.json", "does not fit", "630 MiB", arguments=["--plan", "whole.json"])
    assert not (Path(tessera.folder) / "runs" / "job" / "plan.json").exists()


def test_a_text_without_validation_trains(tessera):
    yaml = tessera.write("job.yaml", GOOD.replace("tokenizer:", "split: {train: 1.0}, tokenizer:"))
    tessera("train", yaml, "--no-measure")
    assert len(tessera.metrics("job")) == 4 and not tessera.evaluations("job")
    result = tessera("eval", "job", check=False)
    assert result.returncode == 2 and "no validation text" in result.stderr, result.stderr
    result = tessera("eval", "job", "--json", check=False)
    assert "no validation text" in json.loads(result.stdout)["error"]["message"]


def test_a_run_goes_on_with_its_own_tokenizer_when_the_text_grows(tessera):
    text = Path(tessera.folder) / "text.txt"
    text.write_bytes(SHAKESPEARE.read_bytes()[:200_000])
    yaml = tessera.write("job.yaml", GOOD.replace(str(SHAKESPEARE), "text.txt"))
    tessera("train", yaml, "--no-measure")
    text.write_text(text.read_text(errors="ignore") + "zyx wvu " * 20_000)
    more = ("train", yaml, "--no-measure", "--resume", "--set", "train.steps=6")
    result = tessera(*more, check=False)
    hint = "data.tokenizer={kind: hf, file: runs/job/tokenizer.json}"
    assert result.returncode == 2 and hint in result.stderr, result.stderr
    refused = tessera(*more, "--set", hint, check=False)
    assert refused.returncode == 2 and "--change data.source" in refused.stderr, refused.stderr
    tessera(*more, "--set", hint, "--change", "data.source")
    assert len(tessera.metrics("job")) == 6


def test_a_run_keeps_where_its_text_lies(tessera):
    folder = Path(tessera.folder) / "elsewhere"
    yaml = tessera.write("elsewhere/job.yaml", GOOD.replace(str(SHAKESPEARE), "text.txt"))
    (folder / "text.txt").write_bytes(SHAKESPEARE.read_bytes()[:200_000])
    tessera("train", yaml, "--no-measure")
    assert "loss" in tessera("eval", "job", "--sequences", 4).stdout


def test_what_cannot_be_sampled_with_is_refused(tessera):
    for option, value in [("--temperature", -1), ("--top-p", 1.5), ("--top-k", -1), ("--max-tokens", -1)]:
        result = tessera("generate", "job", option, value, check=False)
        assert result.returncode == 2 and option in result.stderr, result.stderr


def test_a_worker_does_not_touch_a_run_unasked(tessera):
    yaml = tessera.write("job.yaml", GOOD)
    tessera("plan", yaml, "-o", "plan.json")
    start = ("worker", yaml, "--plan", "plan.json", "--rank", 0, "--world", 1)
    tessera(*start)
    assert "loss" in tessera("eval", "job", "--sequences", 4).stdout
    before = files_of(Path(tessera.folder) / "runs" / "job")
    result = tessera(*start, check=False)
    assert result.returncode != 0 and "--resume" in result.stderr, result.stderr
    assert files_of(Path(tessera.folder) / "runs" / "job") == before
    tessera(*start, "--resume", "--set", "train.steps=6")
    assert len(tessera.metrics("job")) == 6


def test_a_run_that_exists_is_not_touched_unasked(tessera):
    yaml = tessera.write("job.yaml", GOOD)
    tessera("train", yaml, "--no-measure")
    before = files_of(Path(tessera.folder) / "runs")
    result = tessera("train", yaml, "--no-measure", check=False)
    assert result.returncode != 0 and "--resume" in result.stderr
    assert before == files_of(Path(tessera.folder) / "runs")


@pytest.mark.parametrize("words, said", [
    (["--overwrite", "--set", "parallel={tp: 3}"], "tp 3"),
    (["--overwrite", "--set", "data.source=nowhere.txt"], "nowhere.txt"),
    (["--overwrite", "--set", "train.global_batch=1000000"], "train.global_batch of at most"),
    (["--resume", "--set", "model.layers=3"], "another model"),
    (["--resume", "--set", "data.tokenizer={kind: bpe, vocab: 300}"], "tokenizer"),
])
def test_a_run_outlives_a_start_that_is_refused(tessera, words, said):
    yaml = tessera.write("job.yaml", GOOD)
    tessera("train", yaml, "--no-measure")
    run = Path(tessera.folder) / "runs" / "job"
    before = files_of(run)
    result = tessera("train", yaml, "--no-measure", *words, check=False)
    assert result.returncode != 0 and said in result.stderr, result.stderr
    assert files_of(run) == before


def test_a_flipped_bit_in_a_checkpoint_is_named(tessera):
    yaml = tessera.write("job.yaml", GOOD)
    tessera("train", yaml, "--no-measure")
    shard = Path(tessera.folder) / "runs" / "job" / "checkpoints" / "step-000004" / "rank-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)
    result = tessera("train", yaml, "--no-measure", "--resume", "--set", "train.steps=8", check=False)
    assert result.returncode == 3 and "rank-00000.safetensors" in result.stderr and "model." in result.stderr, result.stderr


def test_resuming_passes_over_a_flipped_bit(tessera):
    yaml = tessera.write("job.yaml", GOOD + "checkpoint: {every: 2, keep: 3}\n")
    tessera("train", yaml, "--no-measure")
    losses = [line["loss"] for line in tessera.metrics("job")]
    shard = Path(tessera.folder) / "runs" / "job" / "checkpoints" / "step-000004" / "rank-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)
    result = tessera("train", yaml, "--no-measure", "--resume")
    assert "passing over a checkpoint" in result.stderr and "rank-00000.safetensors" in result.stderr, result.stderr
    assert [line["loss"] for line in tessera.metrics("job")] == losses


@pytest.mark.parametrize("every", [1, 2])
def test_weights_that_blow_up_end_the_run_and_not_its_checkpoints(tessera, every):
    yaml = tessera.write("job.yaml", GOOD.replace("steps: 4", "steps: 20") + f"checkpoint: {{every: {every}, keep: 20}}\n")
    tessera("train", yaml, "--no-measure", "--set", "train.steps=4")
    result = tessera("train", yaml, "--no-measure", "--resume", "--set", "train.optimizer.lr=1e12", check=False)
    assert result.returncode == 3 and "not finite" in result.stderr, result.stderr
    assert len(tessera.metrics("job")) < 10
    # The step that ruined the weights had finite gradients, and its checkpoint was written.
    ruined = re.search(r"move the checkpoint of step (\d+) away", result.stderr)
    assert bool(ruined) == (every == 1), result.stderr
    if ruined:
        shutil.rmtree(Path(tessera.folder) / "runs" / "job" / "checkpoints" / f"step-{int(ruined[1]):06d}")
    tessera("train", yaml, "--no-measure", "--resume", "--set", "train.steps=6")


def test_gradients_that_blow_up_before_a_checkpoint_leave_nothing_to_go_on_from(tessera):
    yaml = tessera.write("job.yaml", GOOD.replace("steps: 4", "steps: 20"))
    result = tessera("train", yaml, "--no-measure", "--set", "train.optimizer.lr=1e12", "--set", "train.optimizer.clip=0", check=False)
    assert result.returncode == 3 and "not finite" in result.stderr, result.stderr
    assert "start over with --overwrite and a smaller train.optimizer.lr" in result.stderr, result.stderr
    assert '"state":"failed"' in tessera("runs", "--json").stdout
    (log,) = re.findall(r"^[-0-9]+ [.:0-9]+ (.*is not finite; the step was skipped.*)$",
                        (Path(tessera.folder) / "runs/job/log.txt").read_text(), re.M)[:1]
    assert log.startswith("warning: the gradient of step "), log


def test_a_run_has_one_writer(tessera):
    yaml = tessera.write("job.yaml", GOOD.replace("steps: 4", "steps: 100000"))
    first = tessera.start("train", yaml, "--no-measure")
    try:
        metrics = Path(tessera.folder) / "runs" / "job" / "metrics.jsonl"
        while not metrics.exists() or not metrics.read_bytes():
            assert first.poll() is None, first.communicate()
            time.sleep(0.02)
        for word in ("--resume", "--overwrite"):
            result = tessera("train", yaml, "--no-measure", word, check=False)
            assert result.returncode == 2 and "another process is training this run" in result.stderr, result.stderr
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
    assert first.returncode == 75
    tessera("eval", "job", "--sequences", 4)


def test_a_run_survives_a_hangup_that_is_ignored(tessera):
    yaml = tessera.write("job.yaml", GOOD.replace("steps: 4", "steps: 60"))
    run = tessera.start("train", yaml, "--no-measure", ignored=[signal.SIGHUP])
    metrics = Path(tessera.folder) / "runs" / "job" / "metrics.jsonl"
    while not metrics.exists() or not metrics.read_bytes():
        assert run.poll() is None, run.communicate()
        time.sleep(0.02)
    run.send_signal(signal.SIGHUP)
    run.communicate(timeout=60)
    assert run.returncode == 0 and len(tessera.metrics("job")) == 60


def refusals_of_two(tessera, words, of_the_second):
    place = free_place()
    ranks = [tessera.start(*words, "--world", 2, "--rank", rank, "--rendezvous", place, *(of_the_second if rank else [])) for rank in (0, 1)]
    said = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert all(rank.returncode for rank in ranks), said
    return said


def test_what_mpirun_starts_is_a_run_that_refused_ranks_leave_alone(tessera):
    two_hosts = ("--set", "cluster={local: {devices: 2}}")
    yaml = tessera.write("job.yaml", GOOD.replace("dp: 1", "dp: 2"))
    tessera("plan", yaml, "-o", "plan.json", *two_hosts)
    address, port = free_place().split(":")
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2", BINARIES / "tessera", "worker", yaml]
    subprocess.run([*mpirun, "--plan", "plan.json", *two_hosts], cwd=tessera.folder, check=True, timeout=120,
                   env=dict(tessera.environment, MASTER_ADDR=address, MASTER_PORT=port))
    run = Path(tessera.folder) / "runs" / "job"
    assert len(tessera.metrics("job")) == 4
    tessera("eval", "job", "--sequences", 4)
    before = files_of(run)
    text = tessera.write("other.txt", SHAKESPEARE.read_text()[:200_000])
    for word in ("--overwrite", "--resume"):
        said = refusals_of_two(tessera, ["worker", yaml, "--plan", "plan.json", *two_hosts, word], ["--set", f"data.source={text}"])
        assert any("do not read the same text" in one for one in said), said
        assert files_of(run) == before
    said = refusals_of_two(tessera, ["worker", yaml, "--plan", "plan.json", *two_hosts, "--resume"], ["--run", "elsewhere"])
    assert any("not every rank sees the run's folder" in one for one in said), said
    result = tessera("worker", yaml, "--plan", "plan.json", *two_hosts, "--world", 2, "--rank", 0, "--rendezvous", free_place(), check=False)
    assert result.returncode == 2 and "a run of this name exists" in result.stderr, result.stderr


def test_other_hosts_reach_no_run_without_its_secret(tessera):
    yaml = tessera.write("job.yaml", GOOD.replace("dp: 1", "dp: 2"))
    two_hosts = ("--set", "cluster={local: {devices: 2}}")
    tessera("plan", yaml, "-o", "plan.json", *two_hosts)
    words = ["worker", yaml, "--plan", "plan.json", "--world", 2, *two_hosts]
    open_place = free_place().replace("127.0.0.1", "0.0.0.0")
    tessera.environment.pop("TESSERA_SECRET", None)
    refused = tessera(*words, "--rank", 0, "--rendezvous", open_place, check=False)
    assert refused.returncode == 2, refused.stderr
    for part in ("has no secret of the run", open_place, "TESSERA_SECRET_FILE", "openssl rand -hex 32"):
        assert part in refused.stderr, refused.stderr
    secret = tessera.write("secret", "5" * 64)
    tessera.environment["TESSERA_SECRET_FILE"] = str(secret)
    secret.chmod(0o644)
    refused = tessera(*words, "--rank", 0, "--rendezvous", open_place, check=False)
    assert refused.returncode == 2 and "chmod 600" in refused.stderr, refused.stderr
    secret.chmod(0o600)
    ranks = [tessera.start(*words, "--rank", rank, "--rendezvous", open_place) for rank in (0, 1)]
    said = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), said
    assert len(tessera.metrics("job")) == 4


def test_ranks_of_different_files_do_not_meet(tessera):
    yaml = tessera.write("job.yaml", GOOD.replace("dp: 1", "dp: 2"))
    other = tessera.write("other/job.yaml", GOOD.replace("dp: 1", "dp: 2").replace("1.0e-3", "2.0e-3"))
    tessera("plan", yaml, "-o", "plan.json", "--set", "cluster={local: {devices: 2}}")
    words = ("--plan", "plan.json", "--world", 2, "--rendezvous", free_place(), "--set", "cluster={local: {devices: 2}}")
    first = tessera.start("worker", yaml, *words, "--rank", 0)
    try:
        result = tessera("worker", other, *words, "--rank", 1, "--run", "runs/other", check=False, timeout=60)
        assert result.returncode == 2 and "refused at the rendezvous" in result.stderr, result.stderr
    finally:
        first.kill()
        first.communicate()


def test_what_only_planning_knows_is_refused_before_a_run_is_touched(tessera):
    yaml = tessera.write("job.yaml", GOOD)
    tessera("train", yaml, "--no-measure")
    before = files_of(Path(tessera.folder) / "runs" / "job")
    tessera.write("gpus.yaml", "name: gpus\ngroups:\n  - {name: a, device: a100-80, devices_per_node: 8, inside: nvlink3}\n")
    tessera.write("others.yaml", "name: others\ngroups:\n  - {name: a, device: mi300x, devices_per_node: 8, inside: pcie4}\n")
    for setting, code, said in [("model.keeps=autograd", 2, "keeps: autograd"), ("cluster=others.yaml", 2, "the trainer computes on CPUs and NVIDIA GPUs"),
                                ("cluster=gpus.yaml", 3, "of nvidia here: libtorch")]:
        result = tessera("train", yaml, "--no-measure", "--overwrite", "--set", setting, "--set", "parallel=auto", check=False)
        assert result.returncode == code and said in result.stderr, result.stderr
    assert files_of(Path(tessera.folder) / "runs" / "job") == before


def test_a_truncated_token_cache_is_not_used(tessera):
    tessera.environment["TESSERA_CACHE"] = str(Path(tessera.folder) / "own-cache")
    yaml = tessera.write("job.yaml", GOOD)
    tessera("data", "pack", yaml)
    (cache,) = (Path(tessera.folder) / "own-cache").glob("tokens-*.bin")
    whole = cache.read_bytes()
    cache.write_bytes(whole[:-100])
    tessera("train", yaml, "--no-measure")
    assert cache.read_bytes() == whole  # built again
    losses = [line["loss"] for line in tessera.metrics("job")]
    tessera("train", yaml, "--no-measure", "--overwrite")
    assert losses == [line["loss"] for line in tessera.metrics("job")]


def test_a_port_in_use_is_said_at_once(tessera):
    yaml = tessera.write("job.yaml", GOOD)
    tessera("plan", yaml, "-o", "plan.json", "--set", "parallel={dp: 2, pp: 1, tp: 1}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = tessera("worker", yaml, "--plan", "plan.json", "--rank", 0, "--world", 2, "--rendezvous", f"127.0.0.1:{port}",
                         "--set", "parallel={dp: 2, pp: 1, tp: 1}", check=False, timeout=60)
    assert result.returncode == 4 and str(port) in result.stderr, result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system needs root")
@pytest.mark.parametrize("degrees", ["dp: 1", "dp: 2, zero: 1"])
def test_a_full_disk_ends_clearly_and_leaves_what_was_there(tessera, degrees):
    small = Path(tessera.folder) / "runs"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", small], check=True)
    try:
        yaml = tessera.write("job.yaml", GOOD.replace("steps: 4", "steps: 40").replace("dp: 1", degrees) + "checkpoint: {every: 4, keep: 100}\n")
        result = tessera("train", yaml, "--no-measure", check=False)
        assert result.returncode == 4 and "space" in result.stderr, result.stderr
        assert len(tessera.metrics("job")) == 40
        complete = sorted(small.glob("job/checkpoints/step-*"))
        assert complete and not list(small.glob("job/checkpoints/*.tmp"))
        tessera("eval", "job", "--sequences", 4)
    finally:
        subprocess.run(["umount", small], check=True)
