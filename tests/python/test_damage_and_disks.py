"""What is damaged or full outside of a run: the cached profile of this host, the standard output of the worker."""

import subprocess
from pathlib import Path

from conftest import BINARIES, SHAKESPEARE

JOB = """name: job
model: {arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128, seq: 32, vocab: 512}
data: {source: synthetic}
train: {steps: 2, global_batch: 4}
cluster: {local: {devices: 1, threads: 1}}
"""


def test_a_damaged_profile_in_the_cache_is_measured_again(tessera, tmp_path):
    cache = tmp_path / "cache"
    tessera.environment["TESSERA_CACHE"] = str(cache)
    yaml = tessera.write("job.yaml", JOB)
    tessera("profile", yaml, "--seconds", 0.2)
    profile = next(cache.glob("profile-*.json"))
    assert "prices: measured on this host" in tessera("plan", yaml).stdout
    profile.write_text(profile.read_text()[:200])
    result = tessera("plan", yaml)
    assert "the cached profile of this host is damaged" in result.stderr and str(profile) in result.stderr, result.stderr
    assert "measuring 1 worker" in result.stderr and "prices: measured on this host" in result.stdout
    assert "measuring" not in tessera("plan", yaml).stderr
    profile.write_text("{}")
    result = tessera("train", yaml)
    assert "the cached profile of this host is damaged" in result.stderr, result.stderr
    assert "format" in profile.read_text() and len(tessera.metrics("job")) == 2


def test_a_worker_says_that_its_output_is_lost(tessera):
    yaml = tessera.write("job.yaml", JOB)
    tessera("train", yaml, "--no-measure")
    for command in (["tessera-worker", "--help"], ["tessera", "eval", "job"], ["tessera", "eval", "job", "--json"],
                    ["tessera", "train", str(yaml), "--no-measure", "--overwrite", "--json"]):
        with open("/dev/full", "w") as full:
            result = subprocess.run([str(BINARIES / command[0]), *command[1:]], cwd=tessera.folder, env=tessera.environment, stdout=full,
                                    stderr=subprocess.PIPE, text=True)
        assert result.returncode == 4, (command, result.stderr)
        assert result.stderr.count("cannot write to the standard output: ") == 1, (command, result.stderr)
    assert len(tessera.metrics("job")) == 2
    assert (Path(tessera.folder) / "runs" / "job" / "checkpoints" / "step-000002").exists()


def test_text_that_is_lost_is_an_error(tessera):
    yaml = tessera.write("job.yaml", JOB.replace("source: synthetic", f"source: {SHAKESPEARE}, tokenizer: {{kind: bpe, vocab: 512}}"))
    tessera("train", yaml, "--no-measure")
    for words in (["generate", "job", "--prompt", "A"], ["generate", "job", "--prompt", "A", "--json"], ["export", "job", "--to", "hf", "out"],
                  ["import", "out", "--name", "again"], ["profile", str(yaml), "--seconds", "0.1"]):
        with open("/dev/full", "w") as full:
            result = subprocess.run([str(BINARIES / "tessera"), *words], cwd=tessera.folder, env=tessera.environment, stdout=full,
                                    stderr=subprocess.PIPE, text=True)
        assert result.returncode == 4, (words, result.stderr)
        assert result.stderr.count("cannot write to the standard output: ") == 1, (words, result.stderr)
    assert (Path(tessera.folder) / "out" / "config.json").exists()


def test_a_worker_answers_a_bad_option_as_json(tessera):
    result = tessera("eval", "job", "--sequences", "1.5", "--json", check=False)
    assert result.returncode == 2 and '"code":"invalid_config"' in result.stdout, result.stdout
    result = tessera("train", "job.yaml", "--plan", program="tessera-worker", check=False)
    assert result.returncode == 2 and "error: tessera-worker: " in result.stderr, result.stderr
