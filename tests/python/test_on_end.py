"""The user's command at the end of a run: started once, told how it ended, and never a reason for another exit code."""

import json
import signal
from pathlib import Path

from conftest import BINARIES, SHAKESPEARE, wait_for_step

TELL = r"""printf '%s|%s|%s|%s|%s|%s\n' "$TESSERA_RUN_NAME" "$TESSERA_RUN_FOLDER" "$TESSERA_RUN_OUTCOME" "$TESSERA_RUN_STEPS" """ \
       r""""$TESSERA_RUN_LAST_LOSS" "$TESSERA_RUN_EXIT_CODE" >> told"""


def job(on_end, steps=4):
    return {
        "name": "job",
        "model": {"arch": "llama", "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128, "seq": 32, "vocab": 512},
        "data": {"source": str(SHAKESPEARE), "tokenizer": {"kind": "bpe", "vocab": 512}},
        "train": {"steps": steps, "global_batch": 8},
        "cluster": {"local": {"devices": 2, "threads": 1}},
        "parallel": {"dp": 2, "pp": 1, "tp": 1},
        "on_end": on_end,
    }


def told(tessera):
    """What the command was told, each time that it ran."""
    path = Path(tessera.folder) / "told"
    return [line.split("|") for line in path.read_text().splitlines()] if path.exists() else []


def test_it_is_told_once_that_a_run_is_complete(tessera):
    yaml = tessera.write("job.yaml", job(["sh", "-c", TELL + "; echo said to you"]))
    result = tessera("train", yaml, "--no-measure", "--json")
    folder = str(Path(tessera.folder).resolve() / "runs" / "job")
    (line,) = told(tessera)
    assert line[:4] == ["job", folder, "complete", "4"] and line[5] == "0"
    assert abs(float(line[4]) - tessera.metrics("job")[-1]["loss"]) < 1e-3
    assert "said to you" in result.stderr and "said to you" not in result.stdout
    assert all(json.loads(text) for text in result.stdout.splitlines())
    # It may use the run, which nobody holds any more.
    again = ["--resume", "--set", "train.steps=5", "--set", "'on_end=[]'"]
    words = ["sh", "-c", " ".join(map(str, [BINARIES / "tessera", "train", "job.yaml", "--no-measure", *again]))]
    tessera("train", tessera.write("job.yaml", job(words)), "--no-measure", "--overwrite")
    assert len(tessera.metrics("job")) == 5


def test_it_is_told_that_a_run_was_stopped(tessera):
    yaml = tessera.write("job.yaml", job(["sh", "-c", TELL], steps=4000))
    process = tessera.start("train", yaml, "--no-measure")
    wait_for_step(tessera, "job", 1, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    (line,) = told(tessera)
    assert line[2:4] == ["stopped", str(len(tessera.metrics("job")))] and line[5] == str(process.returncode) == "75", line


def test_it_is_told_that_a_run_has_failed(tessera):
    yaml = tessera.write("job.yaml", job(["sh", "-c", TELL], steps=400))
    process = tessera.start("train", yaml, "--no-measure")
    wait_for_step(tessera, "job", 1, process)
    # The checkpoint at the end finds a file in its way.
    folder = Path(tessera.folder) / "runs" / "job" / "checkpoints"
    folder.rmdir()
    folder.touch()
    _, said = process.communicate(timeout=60)
    (line,) = told(tessera)
    assert process.returncode == 4 and line[2:4] == ["failed", "400"] and line[5] == "4", (line, said)
    # Where the start is refused there is no end of a run.
    tessera("train", yaml, "--no-measure", check=False)
    assert len(told(tessera)) == 1


def test_no_shell_reads_its_words(tessera):
    words = ["sh", "-c", 'printf "%s\\n" "$@" > words', "sh", "$(touch oops)", "a b; touch oops", "*"]
    yaml = tessera.write("job.yaml", job(words))
    tessera("train", yaml, "--no-measure")
    assert (Path(tessera.folder) / "words").read_text().splitlines() == words[4:]
    assert not (Path(tessera.folder) / "oops").exists()


def test_its_own_failure_is_a_warning(tessera):
    for words, said in [(["sh", "-c", "exit 7"], "on_end: sh ended with exit code 7"), (["sh", "-c", "kill -9 $$"], "on_end: sh was ended by signal 9"),
                        (["no-such-program"], "on_end: cannot start no-such-program: No such file")]:
        result = tessera("train", tessera.write("job.yaml", job(words)), "--no-measure", "--overwrite")
        assert said in result.stderr, result.stderr


def test_a_program_is_found_beside_the_yaml_also_when_the_run_is_resumed(tessera):
    program = tessera.write("there/tell.sh", "#!/bin/sh\n" + TELL + "\n")
    program.chmod(0o755)
    tessera("train", tessera.write("there/job.yaml", job(["./tell.sh"])), "--no-measure")
    tessera("train", "runs/job/train.yaml", "--no-measure", "--resume", "--set", "train.steps=5")
    assert [line[2:4] for line in told(tessera)] == [["complete", "4"], ["complete", "5"]]


def test_a_worker_started_by_hand_starts_nothing(tessera):
    yaml = tessera.write("job.yaml", job(["sh", "-c", TELL]))
    one = ("--set", "cluster={local: {devices: 1}}", "--set", "parallel={dp: 1, pp: 1, tp: 1}")
    tessera("plan", yaml, "-o", "plan.json", *one)
    tessera("worker", yaml, "--plan", "plan.json", "--rank", 0, "--world", 1, *one)
    assert len(tessera.metrics("job")) == 4 and not told(tessera)
