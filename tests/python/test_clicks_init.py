"""Runs of click models that begin with another run's weights and rows (train.init)."""

import json
import signal

import pytest
from conftest import free_place
from test_clicks import DIM, STEPS, TABLES, clicks, job  # noqa: F401

ADAM = {"kind": "adam", "lr": 0.02}
STILL = {"kind": "sgd", "lr": 0}


def said(tessera, run):
    last = tessera.evaluations(run)[-1]
    return last["validation_loss"], last["auc"]


def still(name, devices=1, parallel=None, table=STILL, **parameter_servers):
    """A run that validates what it begins with: it makes one step of nothing. Without the other's rows a key has zeros."""
    out = job(name, "deepfm", devices, parallel, lr=0, table=table, init="runs/old", steps=1)
    out["parameter_servers"].update(parameter_servers)
    return out


def train_old(tessera, table=ADAM, **parameter_servers):
    planned = {**job("old", "deepfm", 2, {"dp": 2, "pp": 1, "tp": 1}, table=table), "checkpoint": {"every": 10, "keep": 2}}
    planned["parameter_servers"].update(parameter_servers)
    tessera("train", tessera.write("old.yaml", planned), "--no-measure")
    return said(tessera, "old")


def test_a_run_begins_with_the_rows_of_anothers_checkpoint(clicks):  # noqa: F811
    """Of own servers, of which there are fewer or more than the other run had, and of its base and the changes behind it."""
    before = train_old(clicks, threads=2)
    chains = json.loads((clicks.folder / f"runs/old/checkpoints/tables-{STEPS:06}/tables.json").read_text())["tables"][0]["servers"]
    assert len(chains) == 2 and all(len(chain["files"]) == 2 for chain in chains)
    for name, servers, devices, parallel in (("one", 1, 1, None), ("three", 3, 2, {"dp": 2, "pp": 1, "tp": 1}),
                                             ("two", 2, 2, {"dp": 1, "pp": 2, "tp": 1, "micro_batches": 2})):
        clicks("train", clicks.write(f"{name}.yaml", still(name, devices, parallel, threads=servers)), "--no-measure")
        assert said(clicks, name) == pytest.approx(before, rel=1e-5), name
    # An earlier checkpoint is another model.
    clicks("train", clicks.write("early.yaml", still("early")), "--no-measure", "--set", "train.init=old@10")
    assert said(clicks, "early")[0] != pytest.approx(before[0], rel=1e-3)


@pytest.mark.parametrize("life", [{}, {"consistency": "geo"}, {"lifecycle": {"period": 4}}])
def test_rows_are_the_same_whichever_rule_and_consistency_train_them_next(clicks, life):  # noqa: F811
    """Of a run of the other kind, and of one of the same kind."""
    kept = {"kind": "adagrad", "lr": 0.05}
    for number, (old, new) in enumerate(((life, life), ({}, life), (life, {}))):
        planned = job(f"old{number}", "deepfm", table=kept)
        planned["parameter_servers"].update(old)
        clicks("train", clicks.write("old.yaml", planned), "--no-measure")
        before = said(clicks, f"old{number}")
        begins = still(f"new{number}", table={"kind": "adagrad", "lr": 0}, **new)
        begins["train"]["init"] = f"runs/old{number}"
        clicks("train", clicks.write("new.yaml", begins), "--no-measure")
        assert said(clicks, f"new{number}") == pytest.approx(before, rel=1e-5), (old, new)


def test_a_run_goes_on_learning_from_anothers_rows(clicks):  # noqa: F811
    """And is resumed from its own, when the other run is not there any more."""
    adagrad = {"kind": "adagrad", "lr": 0.05}
    train_old(clicks, adagrad)
    for name in ("whole", "parts"):
        clicks.write(f"{name}.yaml", job(name, "deepfm", table=adagrad, init="runs/old"))
    clicks("train", "whole.yaml", "--no-measure", "--set", "train.steps=9")
    clicks("train", "parts.yaml", "--no-measure", "--set", "train.steps=5")
    (clicks.folder / "runs" / "old").rename(clicks.folder / "gone")
    clicks("train", "runs/parts/train.yaml", "--resume", "--set", "train.steps=9")
    whole, parts = ([line["loss"] for line in clicks.metrics(name)] for name in ("whole", "parts"))
    assert parts == pytest.approx(whole, rel=1e-6)
    old = [json.loads(line)["loss"] for line in (clicks.folder / "gone" / "metrics.jsonl").read_text().splitlines()]
    assert whole[0] < old[0] - 0.01


def test_named_servers_that_hold_the_other_run_still_are_given_a_table_more(clicks):  # noqa: F811
    server = clicks.start("ps", "serve", "--listen", free_place())
    try:
        place = server.stdout.readline().split()[2]
        servers = ["--set", f"parameter_servers.servers=[{place}]"]
        before = train_old(clicks, servers=[place])
        yaml = clicks.write("new.yaml", still("new"))
        clicks("train", yaml, "--no-measure", *servers)
        assert said(clicks, "new") == pytest.approx(before, rel=1e-5)
        old, new = json.loads(clicks("ps", "status", place, "--json").stdout)
        assert (old["name"], new["name"]) == ("old", "new") and new["rows"] >= old["rows"] > TABLES
        # What servers have saved for it has both tables; the run's own is meant.
        clicks("train", clicks.write("third.yaml", still("third")), "--no-measure", "--set", "train.init=new")
        assert said(clicks, "third") == pytest.approx(before, rel=1e-5)
        # A run of the name on these servers is refused, as one that begins with nothing is.
        refused = clicks("train", yaml, "--no-measure", "--overwrite", *servers, check=False)
        assert refused.returncode == 2 and "which another run has trained" in refused.stderr
    finally:
        server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=30) == 0


def test_rows_that_do_not_fit_or_are_missing_are_refused(clicks):  # noqa: F811
    train_old(clicks)
    yaml = clicks.write("new.yaml", still("new"))
    refused = clicks("train", yaml, "--no-measure", "--set", "parameter_servers.rows=bf16", check=False)
    assert refused.returncode == 2 and 'type of its rows is "fp32", and "bf16" in table new' in refused.stderr
    refused = clicks("train", yaml, "--no-measure", "--overwrite", "--set", f"model.dim={DIM + 1}", check=False)
    assert refused.returncode == 2 and "is of another model" in refused.stderr
    checkpoints = clicks.folder / "runs" / "old" / "checkpoints"
    (checkpoints / f"tables-{STEPS:06}").rename(clicks.folder / "away")
    refused = clicks("train", yaml, "--no-measure", "--overwrite", check=False)
    assert refused.returncode != 0 and "the rows of the model's tables are not beside" in refused.stderr
