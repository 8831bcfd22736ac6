"""Models that read click logs: DeepFM and DLRM against plain PyTorch, their tables with parameter servers, on one rank and on two."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import REPOSITORY, free_place
from safetensors.torch import load_file

STEPS, BATCH, TABLES, DIM, DENSE = 12, 64, 26, 4, 13
NO_KEY = 2**64 - 1
MODELS = {
    "deepfm": {"arch": "deepfm", "tables": TABLES, "dim": DIM, "dense": DENSE, "hidden": [16, 8]},
    "dlrm": {"arch": "dlrm", "tables": TABLES, "dim": DIM, "dense": DENSE, "bottom": [8, DIM], "top": [16, 1]},
}


def mlp(weights, name, x):
    maps = sorted(int(key.split(".")[1]) for key in weights if key.startswith(name + ".") and key.endswith(".weight"))
    for place in maps:
        x = torch.nn.functional.linear(x, weights[f"{name}.{place}.weight"], weights[f"{name}.{place}.bias"])
        x = torch.relu(x) if place != maps[-1] or name == "bot_l" else x
    return x


def deepfm(weights, rows, dense):
    """`rows`: [samples, tables, 1 + dim], of each row its weight and its vector."""
    vectors = rows[:, :, 1:]
    pairs = sum((vectors[:, i] * vectors[:, j]).sum(1) for i in range(rows.shape[1]) for j in range(i))
    first = rows[:, :, 0].sum(1) + dense @ weights["first_order_dense.weight"][0]
    return first + pairs + mlp(weights, "deep", torch.cat([vectors.flatten(1), dense], 1))[:, 0]


def dlrm(weights, rows, dense):
    bottom = mlp(weights, "bot_l", dense)
    all_vectors = torch.cat([bottom[:, None], rows], 1)
    pairs = [(all_vectors[:, i] * all_vectors[:, j]).sum(1) for i in range(TABLES + 1) for j in range(i)]
    return mlp(weights, "top_l", torch.cat([bottom, torch.stack(pairs, 1)], 1))[:, 0]


def losses_of_pytorch(tessera, yaml, weights, logits, width, lr, table_step, tables=TABLES, lookups=1, late=False):
    """From these weights and rows of zeros, over the batches that Tessera says it uses. `late`: rows miss the step before their own."""
    weights = {name: value.clone().requires_grad_(True) for name, value in weights.items()}
    optimizer = torch.optim.SGD(list(weights.values()), lr=lr)
    table, losses, owed = {}, [], []
    for batch in map(json.loads, tessera("data", "batch", yaml, "--count", STEPS, "--json").stdout.splitlines()):
        keys = [key for sample in batch["keys"] for key in sample]
        different = sorted(set(keys) | {NO_KEY})
        held = torch.stack([table.setdefault(key, [torch.zeros(width), torch.zeros(width)])[0] for key in different]).requires_grad_(True)
        place = {key: i for i, key in enumerate(different)}
        rows = held[torch.tensor([place[key] for key in keys])].view(BATCH, tables, lookups, width).sum(2)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits(weights, rows, torch.tensor(batch["dense"])), torch.tensor(batch["labels"]).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        pushed = [(key, gradient) for key, gradient in zip(different, held.grad) if key != NO_KEY]
        for key, gradient in owed if late else pushed:
            table_step(table[key], gradient)
        owed = pushed
    return losses


def sgd(row, gradient):
    row[0] = row[0] - 0.5 * gradient


def adagrad(row, gradient):
    row[1] = row[1] + gradient**2
    row[0] = row[0] - 0.05 * gradient / (row[1].sqrt() + 1e-8)


@pytest.fixture
def clicks(tessera):
    script = REPOSITORY / "examples" / "clicks" / "make_clicks.py"
    subprocess.run([sys.executable, script, tessera.folder / "clicks.tsv", "--lines", "1000"], check=True, stdout=subprocess.PIPE)
    return tessera


def job(name, arch, devices=1, parallel=None, lr=0.5, table=None, **train):
    return {
        "name": name, "model": MODELS[arch], "data": {"source": "clicks.tsv", "format": "criteo", "split": {"train": 0.9}},
        "train": {"steps": STEPS, "global_batch": BATCH, "seed": 3, "optimizer": {"kind": "sgd", "lr": lr, "weight_decay": 0, "clip": 0},
                  "schedule": {"kind": "constant"}, "eval": {"sequences": 100}, **train},
        "parameter_servers": {"optimizer": table or {"kind": "sgd", "lr": 0.5}, "initializer": {"kind": "zero"}},
        "cluster": {"local": {"devices": devices, "threads": 1}}, "parallel": parallel or {"dp": 1, "pp": 1, "tp": 1},
    }


def initial_weights(tessera, arch, **changes):
    """Of a run that has made one step of nothing, and is there for others to begin with."""
    still = job("start", arch, lr=0, table={"kind": "sgd", "lr": 0}, steps=1)
    tessera("train", tessera.write("start.yaml", {**still, **changes}), "--no-measure")
    return load_file(next((tessera.folder / "runs" / "start" / "checkpoints").glob("step-*/*.safetensors")))


@pytest.mark.parametrize("arch", MODELS)
def test_plans_follow_pytorch(clicks, arch):
    weights = initial_weights(clicks, arch)
    logits, width = {"deepfm": (deepfm, DIM + 1), "dlrm": (dlrm, DIM)}[arch]
    plans = {"one": ({"dp": 1, "pp": 1, "tp": 1}, 1), "replicas": ({"dp": 2, "pp": 1, "tp": 1}, 2),
             "stages": ({"dp": 1, "pp": 2, "tp": 1, "micro_batches": 2}, 2), "both": ({"dp": 2, "pp": 2, "tp": 1, "micro_batches": 2}, 4)}
    expected = None
    for name, (parallel, devices) in plans.items():
        yaml = clicks.write(f"{name}.yaml", job(name, arch, devices, parallel, init="runs/start"))
        expected = expected or losses_of_pytorch(clicks, yaml, weights, logits, width, 0.5, sgd)
        clicks("train", yaml, "--no-measure")
        losses = [line["loss"] for line in clicks.metrics(name)]
        assert losses == pytest.approx(expected, rel=1e-4), name
    assert expected[-1] < expected[0]


def test_rows_that_are_pulled_beside_a_step_miss_that_step_alone(clicks):
    weights = initial_weights(clicks, "deepfm")
    servers = {"optimizer": {"kind": "sgd", "lr": 0.5}, "initializer": {"kind": "zero"}, "consistency": "asynchronous"}
    yaml = clicks.write("ahead.yaml", {**job("ahead", "deepfm", init="runs/start"), "parameter_servers": servers})
    clicks("train", yaml, "--no-measure")
    expected = losses_of_pytorch(clicks, yaml, weights, deepfm, DIM + 1, 0.5, sgd, late=True)
    assert [line["loss"] for line in clicks.metrics("ahead")] == pytest.approx(expected, rel=1e-4)


def test_adagrad_steps_rows_as_pytorchs_formula_does(clicks):
    weights = initial_weights(clicks, "deepfm")
    yaml = clicks.write("one.yaml", job("one", "deepfm", table={"kind": "adagrad", "lr": 0.05}, init="runs/start"))
    clicks("train", yaml, "--no-measure")
    expected = losses_of_pytorch(clicks, yaml, weights, deepfm, DIM + 1, 0.5, adagrad)
    assert [line["loss"] for line in clicks.metrics("one")] == pytest.approx(expected, rel=1e-4)
    evaluation = clicks.evaluations("one")[-1]
    assert 0 <= evaluation["auc"] <= 1 and evaluation["validation_loss"] > 0


def test_look_ups_of_a_table_are_summed(tessera):
    draw = random.Random(1)
    lines = [" ".join([str(draw.randrange(2)), f"1:{draw.random():.3f}", *(f"{draw.randrange(2, 40)}:1" for _ in range(draw.randrange(6)))])
             for _ in range(400)]
    tessera.write("clicks.txt", "\n".join(lines) + "\n")
    changes = {"model": {"arch": "deepfm", "tables": 2, "lookups": 3, "dim": DIM, "dense": 1, "hidden": [8]},
               "data": {"source": "clicks.txt", "format": "libsvm", "split": {"train": 0.9}}}
    weights = initial_weights(tessera, "deepfm", **changes)
    yaml = tessera.write("sums.yaml", {**job("sums", "deepfm", init="runs/start"), **changes})
    tessera("train", yaml, "--no-measure")
    expected = losses_of_pytorch(tessera, yaml, weights, deepfm, DIM + 1, 0.5, sgd, tables=2, lookups=3)
    assert [line["loss"] for line in tessera.metrics("sums")] == pytest.approx(expected, rel=1e-4)


def test_named_servers_keep_the_tables_and_refuse_another_run_of_the_name(clicks):
    server = clicks.start("ps", "serve", "--listen", free_place())
    try:
        place = server.stdout.readline().split()[2]
        yaml = clicks.write("named.yaml", job("named", "deepfm"))
        servers = ["--set", f"parameter_servers.servers=[{place}]"]
        clicks("train", yaml, "--no-measure", *servers)
        table = json.loads(clicks("ps", "status", place, "--json").stdout)[0]
        assert table["name"] == "named" and table["dimension"] == DIM + 1 and table["rows"] > TABLES
        refused = clicks("train", yaml, "--no-measure", "--overwrite", *servers, check=False)
        assert refused.returncode == 2 and "which another run has trained" in refused.stderr
    finally:
        server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=30) == 0


def test_a_run_does_not_notice_that_a_server_with_a_backup_is_killed(clicks):
    losses = {}
    for name in ("undisturbed", "killed"):
        places = free_place(), free_place()
        servers = [clicks.start("ps", "serve", "--listen", places[0], "--backup", places[1]),
                   clicks.start("ps", "serve", "--listen", places[1], "--backup-of", places[0])]
        try:
            for server in servers:
                server.stdout.readline()
            yaml = clicks.write(f"{name}.yaml", job(name, "deepfm", 2, {"dp": 2, "pp": 1, "tp": 1}, table={"kind": "adam", "lr": 0.01}, steps=60))
            run = clicks.start("train", yaml, "--no-measure", "--set", f"parameter_servers.servers=[{'/'.join(places)}]")
            metrics = clicks.folder / "runs" / name / "metrics.jsonl"
            wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)
            if name == "killed":
                servers[0].kill()
            _, message = run.communicate(timeout=60)
            assert run.returncode == 0, message
        finally:
            for server in servers:
                server.kill()
                server.wait()
        losses[name] = [line["loss"] for line in clicks.metrics(name)]
    assert losses["killed"] == losses["undisturbed"]


def wait_until(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    pytest.fail("it did not happen within a minute")


def test_a_damaged_line_is_named_and_left_out_where_asked(clicks):
    path = clicks.folder / "clicks.tsv"
    lines = path.read_text().splitlines()
    lines[6] = lines[6].replace("\t", " ", 1)
    path.write_text("\n".join(lines) + "\n")
    yaml = clicks.write("damaged.yaml", job("damaged", "deepfm", steps=1))
    refused = clicks("train", yaml, "--no-measure", check=False)
    assert refused.returncode != 0 and "clicks.tsv:7" in refused.stderr and "data.on_error: skip" in refused.stderr
    trained = clicks("train", yaml, "--no-measure", "--set", "data.on_error=skip")
    assert "1 lines cannot be read and were left out (7)" in trained.stderr


def test_a_resumed_run_is_the_uninterrupted_one(clicks):
    """Its rows lie beside the checkpoints, with their optimizer's state; the servers of the first part ended with it."""
    table = {"kind": "adagrad", "lr": 0.05}
    whole = clicks.write("whole.yaml", job("whole", "deepfm", 2, {"dp": 2, "pp": 1, "tp": 1}, table=table))
    clicks("train", whole, "--no-measure")
    yaml = clicks.write("parts.yaml", {**job("parts", "deepfm", 2, {"dp": 2, "pp": 1, "tp": 1}, table=table), "checkpoint": {"every": 5, "keep": 1}})
    clicks("train", yaml, "--no-measure", "--set", "train.steps=7")
    checkpoints = clicks.folder / "runs" / "parts" / "checkpoints"
    assert (checkpoints / "tables-000007" / "tables.json").exists()
    clicks("train", yaml, "--resume")
    assert (checkpoints / "tables-000012").exists() and not (checkpoints / "tables-000005").exists()
    losses = {name: [line["loss"] for line in clicks.metrics(name)] for name in ("whole", "parts")}
    assert losses["parts"] == pytest.approx(losses["whole"], rel=1e-6)
    assert clicks.evaluations("parts")[-1]["auc"] == pytest.approx(clicks.evaluations("whole")[-1]["auc"], abs=1e-6)


def test_a_run_is_evaluated_and_served_without_its_servers(clicks):
    """From what the servers saved: `eval` of the run, of its serving directory, and what clients of `serve-table` read are what training said."""
    clicks("train", clicks.write("ads.yaml", job("ads", "deepfm", table={"kind": "adagrad", "lr": 0.05})), "--no-measure")
    said = clicks.evaluations("ads")[-1]
    checkpoints = clicks.folder / "runs" / "ads" / "checkpoints"
    before = sorted(checkpoints.rglob("*"))

    def evaluated(run):
        out = json.loads(clicks("eval", run, "--json", "--sequences", "100").stdout)
        return out["loss"], out["auc"]

    assert evaluated("ads") == pytest.approx((said["validation_loss"], said["auc"]), rel=1e-6)
    assert sorted(checkpoints.rglob("*")) == before
    exported = clicks("export", "ads", "--to", "serving", "served")
    assert "serve-table served" in exported.stdout
    described = json.loads((clicks.folder / "served" / "serving.json").read_text())
    assert described["step"] == STEPS and described["type"] == "fp32" and described["dimension"] == DIM + 1
    weights = load_file(clicks.folder / "served" / described["dense"])
    assert not any("exp_avg" in name or "momentum" in name for name in weights)
    (checkpoints / f"tables-{STEPS:06}").rename(clicks.folder / "away")
    assert evaluated(clicks.folder / "served") == pytest.approx((said["validation_loss"], said["auc"]), rel=1e-6)
    missing = clicks("export", "ads", "--to", "serving", "other", check=False)
    assert missing.returncode != 0 and f"tables-{STEPS:06}" in missing.stderr and not (clicks.folder / "other").exists()
    (clicks.folder / "away").rename(checkpoints / f"tables-{STEPS:06}")

    clicks("export", "ads", "--to", "serving", "served", "--rows", "int8")
    assert json.loads((clicks.folder / "served" / "serving.json").read_text())["type"] == "int8"
    assert evaluated(clicks.folder / "served")[0] == pytest.approx(said["validation_loss"], rel=1e-2)
    foreign = clicks.write("mine/notes.txt", "x").parent
    kept = clicks("export", "ads", "--to", "serving", foreign, check=False)
    assert kept.returncode == 2 and (foreign / "notes.txt").exists()
    server = clicks.start("serve-table", "served", "--listen", free_place(), "--check")
    try:
        place = server.stdout.readline().split()[2]
        table = json.loads(clicks("ps", "status", place, "--json").stdout)[0]
        assert (table["name"], table["dimension"], table["rows"]) == ("ads", DIM + 1, described["rows"])
        refused = clicks("train", "ads.yaml", "--no-measure", "--set", "name=ads", "--overwrite", "--set", f"parameter_servers.servers=[{place}]",
                         check=False)
        assert refused.returncode == 2 and "is finished: its rows do not change" in refused.stderr
    finally:
        server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=30) == 0
