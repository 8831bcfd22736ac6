"""Learning rates, the best checkpoint, early stopping, and what training leaves on a terminal."""

import json
import os
import pty
import re
import subprocess
from pathlib import Path

from conftest import BINARIES, SHAKESPEARE


def job(name, steps=12, schedule="{kind: constant}", lr=1.0e-3, rest="", train="eval: {every: 2, sequences: 8}"):
    return f"""name: {name}
model: {{arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128, seq: 32, vocab: 512}}
data: {{source: {SHAKESPEARE}, tokenizer: {{kind: bpe, vocab: 512}}}}
train: {{steps: {steps}, global_batch: 8, optimizer: {{kind: adamw, lr: {lr}}}, schedule: {schedule}, {train}}}
parallel: {{dp: 2, pp: 1, tp: 1}}
cluster: {{local: {{devices: 2, threads: 1}}}}
{rest}
"""


def checkpoints(tessera, run):
    folder = Path(tessera.folder) / "runs" / run / "checkpoints"
    return sorted(int(path.name[5:]) for path in folder.glob("step-*"))


def test_a_warm_up_a_stable_part_and_a_decay(tessera):
    schedule = "{kind: wsd, warmup_ratio: 0.2, decay_ratio: 0.4, decay_shape: sqrt, min_ratio: 0}"
    tessera("train", tessera.write("wsd.yaml", job("wsd", 10, schedule)), "--no-measure")
    rates = [round(1000 * line["lr"], 6) for line in tessera.metrics("wsd")]
    assert rates == [0.5, 1, 1, 1, 1, 1, 0.5, 0.292893, 0.133975, 0]


# A rate that rises without end, and the losses with it.
RISING = dict(steps=40, schedule="{kind: constant, warmup: 40}", lr=30.0)


def test_the_best_checkpoint_outlives_newer_ones(tessera):
    tessera("train", tessera.write("best.yaml", job("best", **RISING, rest="checkpoint: {every: 4, keep: 2, best: true}")), "--no-measure")
    losses = {line["step"]: line["validation_loss"] for line in tessera.evaluations("best")}
    best = min(losses, key=losses.get)
    assert best < 36, losses
    named = json.loads((Path(tessera.folder) / "runs/best/checkpoints/best.json").read_text())
    assert named == {"step": best, "validation_loss": losses[best]}
    assert checkpoints(tessera, "best") == [best, 36, 40]
    # Its weights are those of the step: they start another run, whose first evaluation says so.
    init = ("--set", "name=again", "--set", f"train.init=runs/best/checkpoints/step-{best:06d}", "--set", "train.steps=1",
            "--set", "train.optimizer.lr=0")
    tessera("train", "best.yaml", "--no-measure", *init)
    assert abs(tessera.evaluations("again")[-1]["validation_loss"] - losses[best]) < 1e-9


def test_a_run_that_no_longer_gains_ends_and_is_complete(tessera):
    early = "eval: {every: 2, sequences: 8}, early_stop: {patience: 3, min_gain: 0.01}"
    yaml = tessera.write("early.yaml", job("early", 40, lr=0, train=early))
    said = tessera("train", yaml, "--no-measure").stderr
    assert "stopped early after 8 of 40 steps: 3 evaluations in a row have not lowered the validation loss by 0.01; the lowest was" in said, said
    assert "after 2 steps" in said and "runs/early is complete" in said, said
    assert len(tessera.metrics("early")) == 8 and checkpoints(tessera, "early")[-1] == 8
    assert [line["step"] for line in tessera.evaluations("early")] == [2, 4, 6, 8]
    assert "stopped early after 8 of 40 steps" in (Path(tessera.folder) / "runs/early/log.txt").read_text()

    # Nothing is left to do, unless the patience grows.
    said = tessera("train", yaml, "--no-measure", "--resume").stderr
    assert "stopped early after 8 of 40 steps" in said and len(tessera.metrics("early")) == 8, said
    tessera("train", yaml, "--no-measure", "--resume", "--set", "train.early_stop.patience=5")
    assert len(tessera.metrics("early")) == 12


def test_a_resumed_run_goes_on_counting(tessera):
    early = "eval: {every: 2, sequences: 8}, early_stop: {patience: 4}"
    yaml = tessera.write("counts.yaml", job("counts", 5, lr=0, train=early, rest="checkpoint: {best: true}"))
    tessera("train", yaml, "--no-measure")
    result = tessera("train", yaml, "--no-measure", "--resume", "--set", "train.steps=40", "--json")
    assert "stopped early after 8 of 40 steps" in json.loads(result.stdout.splitlines()[-1])["stopped_early"]
    assert json.loads((Path(tessera.folder) / "runs/counts/checkpoints/best.json").read_text())["step"] == 2
    assert checkpoints(tessera, "counts") == [2, 5, 8]


def test_step_lines_stand_as_often_as_asked(tessera):
    said = tessera("train", tessera.write("often.yaml", job("often", rest="log: {every: 5}")), "--no-measure").stderr
    assert re.findall(r"^step +(\d+)/12", said, re.MULTILINE) == ["1", "5", "10", "12"], said
    assert len(re.findall(r"^validation loss", said, re.MULTILINE)) == 6, said


def on_a_terminal(tessera, *arguments):
    """What a terminal of 80 columns shows, line by line, of what was erased nothing."""
    ours, theirs = pty.openpty()
    environment = {**tessera.environment, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen([BINARIES / "tessera", *map(str, arguments)], cwd=tessera.folder, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait(timeout=60) == 0, shown.decode()
    return [line.split("\r\033[K")[-1] for line in shown.decode().replace("\r\n", "\n").split("\n")]


def test_a_terminal_keeps_a_table_of_losses(tessera):
    lines = on_a_terminal(tessera, "train", tessera.write("table.yaml", job("table", rest="log: {every: 5}")), "--no-measure")
    head = next(number for number, line in enumerate(lines) if line.split()[:3] == ["step", "loss", "validation"])
    rows = [line for line in lines[head + 1:] if re.match(r" +\d+ ", line)]
    losses = {line["step"] + 1: f"{line['loss']:.4f}" for line in tessera.metrics("table")}
    validation = {line["step"]: f"{line['validation_loss']:.4f}" for line in tessera.evaluations("table")}
    columns = [(row[:9].strip(), row[11:19].strip(), row[21:31].strip()) for row in rows]
    assert columns == [(str(step), losses[step], validation.get(step, "")) for step in (1, 2, 4, 5, 6, 8, 10, 12)], lines
    assert all(len(line) < 80 for line in lines[head:head + len(rows) + 1]), lines
    assert sum("unigram entropy" in line for line in lines) == 1, lines
    assert any(line.startswith("12 steps in ") for line in lines), lines
