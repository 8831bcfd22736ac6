"""The page of a run: its figures are those of the run's files, and what is missing or damaged is said."""

import json
import re
import shutil
import statistics
import sys

import pytest

from conftest import REPOSITORY, SHAKESPEARE, Page

sys.path.insert(0, str(REPOSITORY / "bench" / "timeline"))
from compare import figures_of, median_of, steps_of  # noqa: E402

JOB = {
    "name": "pipe",
    "model": {"arch": "llama", "hidden": 64, "layers": 4, "heads": 4, "kv_heads": 4, "ffn": 128, "seq": 64, "vocab": 512},
    "data": {"source": str(SHAKESPEARE), "tokenizer": {"kind": "bpe", "vocab": 512}, "split": {"train": 0.95}},
    "train": {"steps": 24, "global_batch": 8, "precision": "fp32", "optimizer": {"kind": "adamw", "lr": 1e-3}, "eval": {"every": 8, "sequences": 2}},
    "cluster": {"local": {"devices": 2, "threads": 1}},
    "parallel": {"pp": 2, "dp": 1, "tp": 1, "micro_batches": 4, "schedule": "1f1b"},
}


@pytest.fixture(scope="module")
def run(shared_tessera):
    """A run of two workers, and the profile that it was planned with."""
    job = shared_tessera.write("train.yaml", JOB)
    shared_tessera("profile", job, "--seconds", "4", "-o", "profile.json")
    shared_tessera("plan", job, "--profile", "profile.json", "-o", "plan.json")
    shared_tessera("train", job, "--plan", "plan.json")
    return shared_tessera


def page_of(tessera, *arguments, name="pipe"):
    result = tessera("runs", "show", name, "--html", "page.html", *arguments)
    text = (tessera.folder / "page.html").read_text()
    page = Page("run")
    page.feed(text)
    page.close()
    return text, page, json.loads(page.data), result


def copied(tessera, name):
    shutil.copytree(tessera.folder / "runs" / "pipe", tessera.folder / "runs" / name, dirs_exist_ok=True)
    return tessera.folder / "runs" / name


def test_figures_are_those_of_the_runs_files(run):
    _, _, data, result = page_of(run, "--profile", "profile.json")
    assert result.stdout == "page written to page.html\n" and data["notes"] == []
    metrics, facts = run.metrics("pipe"), data["facts"]
    assert facts["state"] == "complete" and facts["steps"] == len(metrics) == 24
    assert facts["step_seconds"] == pytest.approx(statistics.median_high(step["seconds"] for step in metrics))
    assert facts["tokens_per_s"] == pytest.approx(statistics.median_high(step["tokens_per_s"] for step in metrics))
    assert facts["prices"] == "the profile profile.json"
    for key, curve in (("loss", "loss"), ("tokens_per_s", "throughput"), ("grad_norm", "grad_norm")):
        assert data["curves"][curve] == [[step["step"] + 1, step[key]] for step in metrics]
    assert data["curves"]["validation"] == [[one["step"], one["validation_loss"]] for one in run.evaluations("pipe")]
    assert not data["curves"]["thinned"]
    for row in data["ranks"]:
        memory = json.loads((run.folder / f"runs/pipe/memory/rank-{row['rank']}.json").read_text())
        assert row["memory"] == memory["peak_resident"] and row["memory_predicted"] > 0
    assert [row["rank"] for row in data["ranks"]] == [0, 1]


def kinds(figures):
    out = {}
    for kind, duration, _ in figures["instructions"].values():
        out.setdefault(kind, []).append(duration)
    return out


def check_side(data, side, figures):
    """Against the benchmark's way from a trace to figures, which shares no code with the page's."""
    shares = data["facts"][side]
    assert shares["step"] == pytest.approx(figures["step"])
    assert sum(shares[part] for part in ("computing", "exposed", "reading", "idle")) == pytest.approx(1, abs=1e-3)
    for row in data["kinds"]:
        durations = kinds(figures)[row["kind"]]
        assert row[side]["count"] == len(durations)
        assert row[side]["median"] == pytest.approx(statistics.median(durations))
        assert row[side]["total"] == pytest.approx(sum(durations))
    assert {row["kind"] for row in data["kinds"]} == set(kinds(figures))


def test_both_timelines_are_those_of_the_traces(run):
    _, _, data, _ = page_of(run, "--profile", "profile.json")
    run("simulate", "train.yaml", "--plan", "plan.json", "--profile", "profile.json", "--trace", "simulated.json")
    predicted = steps_of(json.loads((run.folder / "simulated.json").read_text()))
    measured = steps_of(json.loads((run.folder / "runs/pipe/trace.json").read_text()))
    check_side(data, "predicted", figures_of(predicted[0]))
    each = [figures_of(ranks) for ranks in measured.values()]
    check_side(data, "measured", median_of(each))
    lengths = [statistics.mean(rank.end - rank.begin for rank in ranks.values()) for ranks in measured.values()]
    for part in ("exposed", "waits"):
        shares = data["facts"]["measured"]
        own = shares["exposed"] if part == "exposed" else shares["exposed"] + shares["idle"] + shares["reading"]
        assert own == pytest.approx(statistics.mean(step[part] / length for step, length in zip(each, lengths)), abs=1e-6)
    shown = figures_of(measured[data["timelines"]["step"] - 1])
    lengths = [figures_of(ranks)["step"] for ranks in measured.values()]
    assert abs(shown["step"] - statistics.median(lengths)) == min(abs(length - statistics.median(lengths)) for length in lengths)
    assert data["timelines"]["alike"] and data["timelines"]["traced"] == 8
    for side, figures in (("measured", shown), ("predicted", figures_of(predicted[0]))):
        spans = {(row["rank"], span[5]): span for row in data["timelines"][side]["rows"] for span in row["spans"] if span[5] >= 0}
        assert spans.keys() == figures["instructions"].keys()
        for key, (kind, _, begin) in figures["instructions"].items():
            assert spans[key][1] / 1e6 == pytest.approx(begin, abs=1e-6)
            assert data["timelines"]["words"][spans[key][4]].startswith(kind)
    simulated = json.loads(run("simulate", "train.yaml", "--plan", "plan.json", "--profile", "profile.json", "--json").stdout)
    assert data["facts"]["predicted"]["step"] == pytest.approx(simulated["step_seconds"])
    assert data["facts"]["predicted"]["exposed"] == pytest.approx(simulated["exposed_communication"], abs=1e-3)
    assert data["facts"]["predicted"]["idle"] == pytest.approx(simulated["bubble"], abs=1e-3)
    assert [row["memory_predicted"] for row in data["ranks"]] == [rank["memory_bytes"] for rank in simulated["ranks"]]


def test_page_stands_alone_and_has_what_the_script_draws_into(run):
    text, page, _, _ = page_of(run, "--profile", "profile.json")
    assert set(re.findall(r"https?://[^\s'\"]*", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text and "url(" not in text
    used = set(re.findall(r"(?:at|chart|curve)\('([a-z-]+)'", text))
    assert used and used <= set(page.ids)
    assert len(text) < 100_000


def test_page_goes_into_the_runs_folder(run):
    result = run("runs", "show", "pipe", "--profile", "profile.json", "--html")
    assert result.stdout == "page written to runs/pipe/report.html\n"
    said = json.loads(run("runs", "show", "pipe", "--json", "--profile", "profile.json", "--html", "page.html").stdout)
    assert said == {"html": "page.html", "notes": []}


def test_without_a_profile_the_measured_half_stands_alone(run):
    _, _, data, result = page_of(run)
    assert data["timelines"]["measured"] and data["timelines"]["predicted"] is None and data["facts"]["predicted"] is None
    assert len(data["notes"]) == 1 and "no profile of this run" in data["notes"][0] and "--profile FILE" in data["notes"][0]
    assert data["notes"][0] in result.stderr
    assert data["facts"]["planned_step"] > 0 and data["ranks"][0]["memory_predicted"] > 0


@pytest.mark.parametrize("file, content, note", [
    ("trace.json", None, "trace.json is missing: it is written when a run ends"),
    ("trace.json", '{"traceEvents": [{"ph": "X"', "trace.json is left out: "),
    ("trace.json", '{"traceEvents": [{"ph": "X", "name": "step 1", "pid": 0, "ts": 0, "dur": -1, "args": {"step": 1}}]}', "the time of 'step 1' is none"),
    ("plan.json", None, "plan.json is missing"),
    ("plan.json", "{}", "plan.json is left out"),
    ("cluster.yaml", "groups: 3\n", "cluster.yaml is left out"),
    ("memory/rank-1.json", "[]", "memory/rank-1.json is left out"),
])
def test_damaged_and_missing_files_are_said(run, file, content, note):
    path = copied(run, "damaged") / file
    path.unlink() if content is None else path.write_text(content)
    _, _, data, result = page_of(run, "--profile", "profile.json", name="damaged")
    assert any(note in one for one in data["notes"]), data["notes"]
    assert note in result.stderr
    assert data["facts"]["steps"] == 24 and data["curves"]["loss"]
    assert (data["timelines"]["measured"] is None) == (file == "trace.json")
    assert (data["timelines"]["predicted"] is None) == (file in ("plan.json", "cluster.yaml"))
    shutil.rmtree(path.parents[1] if path.parent.name == "memory" else path.parent)


def test_what_cannot_be_a_page_is_refused(run):
    metrics = copied(run, "broken") / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join([lines[0], "no line", *lines[2:]]) + "\n")
    result = run("runs", "show", "broken", "--html", "page.html", check=False)
    assert result.returncode == 3 and "metrics.jsonl:2" in result.stderr
    result = run("runs", "show", "pipe", "--html", "train.yaml/page.html", check=False)
    assert result.returncode == 4 and "cannot write train.yaml/page.html: Not a directory" in result.stderr
    result = run("runs", "show", "pipe", "--html", "page.html", "--profile", "none.json", check=False)
    assert result.returncode == 3 and "none.json" in result.stderr
    result = run("runs", "show", "pipe", "--profile", "profile.json", check=False)
    assert result.returncode == 2 and "--html" in result.stderr


def test_long_runs_are_thinned_and_keep_their_extremes(run):
    folder = copied(run, "long")
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    losses = [5 - step / 5000 + (3 if step == 7777 else 0) for step in range(20000)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(dict(line, step=step, loss=loss, grad_norm=None if step < 100 else 1.0)) + "\n" for step, loss in enumerate(losses)))
    text, _, data, _ = page_of(run, "--profile", "profile.json", name="long")
    points = data["curves"]["loss"]
    assert data["curves"]["thinned"] and 300 <= len(points) <= 600
    assert [7778, losses[7777]] in points and min(value for _, value in points) == min(losses)
    assert points == sorted(points) and all(losses[step - 1] == value for step, value in points)
    assert data["curves"]["grad_norm"][0] == [1, None]
    assert len(text) < 200_000


def test_run_without_a_step(run):
    folder = copied(run, "fresh")
    for file in ("metrics.jsonl", "evaluations.jsonl", "trace.json"):
        (folder / file).unlink()
    _, _, data, _ = page_of(run, "--profile", "profile.json", name="fresh")
    assert data["facts"]["steps"] == 0 and data["facts"]["step_seconds"] is None and data["timelines"]["predicted"]
