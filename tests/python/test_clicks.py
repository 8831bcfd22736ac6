"""Models that read click logs: DeepFM and DLRM against plain PyTorch, their tables with parameter servers, on one rank and on two."""

import csv
import gzip
import json
import math
import random
import signal
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest
import torch
from conftest import REPOSITORY, free_place, wait_until
from safetensors.torch import load_file

STEPS, BATCH, TABLES, DIM, DENSE = 12, 64, 26, 4, 13
NO_KEY = 2**64 - 1
CLICKS = {"tables": TABLES, "dim": DIM, "dense": DENSE}
MODELS = {
    "deepfm": {"arch": "deepfm", **CLICKS, "hidden": [16, 8]},
    "dlrm": {"arch": "dlrm", **CLICKS, "bottom": [8, DIM], "top": [16, 1]},
    "wide_deep": {"arch": "wide_deep", **CLICKS, "hidden": [16, 8]},
    "dcn_v2": {"arch": "dcn_v2", **CLICKS, "cross": 3, "hidden": [16, 8]},
    "dcn_v2_parallel": {"arch": "dcn_v2", **CLICKS, "cross": 2, "rank": 5, "hidden": [16, 8], "structure": "parallel"},
}


def mlp(weights, name, x, last_relu=False):
    maps = sorted(int(key.split(".")[1]) for key in weights if key.startswith(name + ".") and key.endswith(".weight"))
    for place in maps:
        x = torch.nn.functional.linear(x, weights[f"{name}.{place}.weight"], weights[f"{name}.{place}.bias"])
        x = torch.relu(x) if place != maps[-1] or last_relu else x
    return x


def deepfm(weights, rows, dense):
    """`rows`: [samples, tables, 1 + dim], of each row its weight and its vector."""
    vectors = rows[:, :, 1:]
    pairs = sum((vectors[:, i] * vectors[:, j]).sum(1) for i in range(rows.shape[1]) for j in range(i))
    first = rows[:, :, 0].sum(1) + dense @ weights["first_order_dense.weight"][0]
    return first + pairs + mlp(weights, "deep", torch.cat([vectors.flatten(1), dense], 1))[:, 0]


def dlrm(weights, rows, dense):
    bottom = mlp(weights, "bot_l", dense, last_relu=True)
    all_vectors = torch.cat([bottom[:, None], rows], 1)
    pairs = [(all_vectors[:, i] * all_vectors[:, j]).sum(1) for i in range(TABLES + 1) for j in range(i)]
    return mlp(weights, "top_l", torch.cat([bottom, torch.stack(pairs, 1)], 1))[:, 0]


def wide_deep(weights, rows, dense):
    """`rows`: [samples, tables, 1 + dim], of each row its weight in the wide part and its vector."""
    wide = rows[:, :, 0].sum(1) + dense @ weights["first_order_dense.weight"][0]
    return wide + mlp(weights, "deep", torch.cat([rows[:, :, 1:].flatten(1), dense], 1))[:, 0]


def crossed(weights, x0):
    x = x0
    for layer in range(10):
        if f"cross.{layer}.weight" in weights:
            x = x0 * (x @ weights[f"cross.{layer}.weight"].T + weights[f"cross.{layer}.bias"]) + x
        elif f"cross.{layer}.u.weight" in weights:
            low = x @ weights[f"cross.{layer}.v.weight"].T
            x = x0 * (low @ weights[f"cross.{layer}.u.weight"].T + weights[f"cross.{layer}.u.bias"]) + x
    return x


def dcn_v2(weights, rows, dense):
    x0 = torch.cat([rows.flatten(1), dense], 1)
    if "logit.0.weight" not in weights:
        return mlp(weights, "deep", crossed(weights, x0))[:, 0]
    return mlp(weights, "logit", torch.cat([crossed(weights, x0), mlp(weights, "deep", x0, last_relu=True)], 1))[:, 0]


PLAIN = {"deepfm": (deepfm, DIM + 1), "dlrm": (dlrm, DIM), "wide_deep": (wide_deep, DIM + 1), "dcn_v2": (dcn_v2, DIM),
         "dcn_v2_parallel": (dcn_v2, DIM)}


def losses_of_pytorch(tessera, yaml, weights, logits, width, lr, table_step, tables=TABLES, lookups=1, late=False, rates=(1,) * STEPS):
    """From these weights and rows of zeros, over the batches that Tessera says it uses. `late`: rows miss the step before their own. `rates`: of each step, over the tables' peak. Of a batch
    with histories `logits` also gets their rows, those of the tables first, and which keys are there."""
    weights = {name: value.clone().requires_grad_(True) for name, value in weights.items()}
    optimizer = torch.optim.SGD(list(weights.values()), lr=lr)
    table, losses, owed = {}, [], []
    for rate, batch in zip(rates, map(json.loads, tessera("data", "batch", yaml, "--count", STEPS, "--json").stdout.splitlines())):
        keys = [key for sample in batch["keys"] for key in sample]
        in_tables = len(keys)
        keys += [key for sample in batch.get("history", []) for key in sample]
        different = sorted(set(keys) | {NO_KEY})
        held = torch.stack([table.setdefault(key, [torch.zeros(width), torch.zeros(width)])[0] for key in different]).requires_grad_(True)
        place = {key: i for i, key in enumerate(different)}
        found = held[torch.tensor([place[key] for key in keys])]
        rows = found[:in_tables].view(BATCH, tables, lookups, width).sum(2)
        seen = (found[in_tables:].view(BATCH, -1, width), batch["history"]) if "history" in batch else ()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits(weights, rows, torch.tensor(batch["dense"]), *seen), torch.tensor(batch["labels"]).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        pushed = [(key, gradient, rate) for key, gradient in zip(different, held.grad) if key != NO_KEY]
        for key, gradient, of in owed if late else pushed:
            table_step(table[key], gradient, of)
        owed = pushed
    return losses


def sgd(row, gradient, rate):
    row[0] = row[0] - 0.5 * rate * gradient


def large_sgd(row, gradient, rate):
    row[0] = row[0] - 60 * rate * gradient


def adagrad(row, gradient, rate):
    row[1] = row[1] + gradient**2
    row[0] = row[0] - 0.05 * rate * gradient / (row[1].sqrt() + 1e-8)


@pytest.fixture
def clicks(tessera):
    script = REPOSITORY / "examples" / "clicks" / "make_clicks.py"
    subprocess.run([sys.executable, script, tessera.folder / "clicks.tsv", "--lines", "1000"], check=True, stdout=subprocess.PIPE)
    return tessera


# What is crossed three times over needs small steps.
LEARNING_RATES = {"dcn_v2": 0.01, "dcn_v2_parallel": 0.01}


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
    logits, width = PLAIN[arch]
    plans = {"one": ({"dp": 1, "pp": 1, "tp": 1}, 1), "both": ({"dp": 2, "pp": 2, "tp": 1, "micro_batches": 2}, 4)}
    if arch in ("deepfm", "dlrm"):
        plans.update(replicas=({"dp": 2, "pp": 1, "tp": 1}, 2), stages=({"dp": 1, "pp": 2, "tp": 1, "micro_batches": 2}, 2))
    expected = None
    for name, (parallel, devices) in plans.items():
        lr = LEARNING_RATES.get(arch, 0.5)
        yaml = clicks.write(f"{name}.yaml", job(name, arch, devices, parallel, lr, init="runs/start"))
        expected = expected or losses_of_pytorch(clicks, yaml, weights, logits, width, lr, sgd)
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


def test_copies_that_one_rank_trains_are_the_table(clicks):
    """The rank's own differences come back, once they have been exchanged, as what it has itself: beside a step, for a validation, for a save."""
    weights = initial_weights(clicks, "deepfm")
    planned = job("geo", "deepfm", table={"kind": "adagrad", "lr": 0.05}, init="runs/start")
    planned["parameter_servers"].update(consistency="geo", exchange_every=3)
    yaml = clicks.write("geo.yaml", planned)
    expected = losses_of_pytorch(clicks, yaml, weights, deepfm, DIM + 1, 0.5, adagrad)
    clicks("train", yaml, "--no-measure")
    assert [line["loss"] for line in clicks.metrics("geo")] == pytest.approx(expected, rel=1e-4)
    synchronous = clicks.write("synchronous.yaml", job("synchronous", "deepfm", table={"kind": "adagrad", "lr": 0.05}, init="runs/start"))
    clicks("train", synchronous, "--no-measure")
    assert clicks.evaluations("geo")[-1]["validation_loss"] == pytest.approx(clicks.evaluations("synchronous")[-1]["validation_loss"], rel=1e-5)

    parts = clicks.write("parts.yaml", {**planned, "name": "parts"})
    clicks("train", parts, "--no-measure", "--set", "train.steps=7")
    clicks("train", parts, "--resume")
    assert [line["loss"] for line in clicks.metrics("parts")] == pytest.approx(expected, rel=1e-4)


def losses_of_two_copies(tessera, yaml, weights):
    """Of SGD on two ranks that exchange in every step: a rank's rows have all of its own steps, and the other's but for the last one."""
    weights = {name: value.clone().requires_grad_(True) for name, value in weights.items()}
    optimizer = torch.optim.SGD(list(weights.values()), lr=0.5)
    tables, owed, losses = ({}, {}), ([], []), []
    for batch in map(json.loads, tessera("data", "batch", yaml, "--count", STEPS, "--json").stdout.splitlines()):
        parts, pushed, loss = [slice(0, BATCH // 2), slice(BATCH // 2, BATCH)], [], 0
        for table, part in zip(tables, parts):
            keys = [key for sample in batch["keys"][part] for key in sample]
            different = sorted(set(keys) - {NO_KEY}) + [NO_KEY]
            held = torch.stack([table.setdefault(key, torch.zeros(DIM + 1)) for key in different]).requires_grad_(True)
            place = {key: i for i, key in enumerate(different)}
            rows = held[torch.tensor([place[key] for key in keys])].view(BATCH // 2, TABLES, DIM + 1)
            labels = torch.tensor(batch["labels"][part]).float()
            loss = loss + torch.nn.functional.binary_cross_entropy_with_logits(
                deepfm(weights, rows, torch.tensor(batch["dense"][part])), labels, reduction="sum") / BATCH
            pushed.append((different[:-1], held))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        pushed = [list(zip(keys, held.grad)) for keys, held in pushed]
        for rank, table in enumerate(tables):
            for key, gradient in pushed[rank] + owed[1 - rank]:
                table[key] = table.get(key, torch.zeros(DIM + 1)) - 0.5 * gradient
        owed = pushed
    return losses


def test_copies_of_two_ranks_miss_the_others_last_step_alone(clicks):
    weights = initial_weights(clicks, "deepfm")
    planned = job("copies", "deepfm", 2, {"dp": 2, "pp": 1, "tp": 1}, init="runs/start")
    planned["parameter_servers"].update(consistency="geo", exchange_every=1)
    yaml = clicks.write("copies.yaml", planned)
    expected = losses_of_two_copies(clicks, yaml, weights)
    clicks("train", yaml, "--no-measure")
    assert [line["loss"] for line in clicks.metrics("copies")] == pytest.approx(expected, rel=1e-4)


def test_tables_follow_a_schedule_of_their_own(clicks):
    weights = initial_weights(clicks, "deepfm")
    warmup, least = 4, 0.2
    rates = [(step + 1) / warmup if step < warmup else 1 - (1 - least) * (step - warmup) / (STEPS - 1 - warmup) for step in range(STEPS)]
    table = {"kind": "adagrad", "lr": 0.05, "schedule": {"kind": "linear", "warmup": warmup, "min_ratio": least}}
    for name, consistency, devices in (("one", "synchronous", 1), ("two", "synchronous", 2), ("ahead", "asynchronous", 1)):
        planned = job(name, "deepfm", devices, {"dp": devices, "pp": 1, "tp": 1}, table=table, init="runs/start")
        planned["parameter_servers"]["consistency"] = consistency
        yaml = clicks.write(f"{name}.yaml", planned)
        expected = losses_of_pytorch(clicks, yaml, weights, deepfm, DIM + 1, 0.5, adagrad, late=name == "ahead", rates=rates)
        clicks("train", yaml, "--no-measure")
        assert [line["loss"] for line in clicks.metrics(name)] == pytest.approx(expected, rel=1e-4), name


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


def din(weights, rows, dense, seen, keys, softmax=False):
    """`rows` [samples, tables, dim], of which the second is the target's; `seen` [samples, history, dim], with their keys."""
    target = rows[:, 1:2].expand_as(seen)
    x = torch.cat([seen, target, target - seen, target * seen], 2)
    x = torch.sigmoid(torch.nn.functional.linear(x, weights["attention.0.weight"], weights["attention.0.bias"]))
    score = torch.nn.functional.linear(x, weights["attention.2.weight"], weights["attention.2.bias"])[:, :, 0]
    there = torch.tensor([[key != NO_KEY for key in sample] for sample in keys])
    if softmax:
        score = torch.where(there.any(1, keepdim=True), torch.softmax(score.masked_fill(~there, -1e30), 1), 0)
    interest = torch.where(there, score, 0)[:, None] @ seen
    return mlp(weights, "deep", torch.cat([rows.flatten(1), interest[:, 0], dense], 1))[:, 0]


@pytest.mark.parametrize("softmax", [False, True])
def test_histories_are_attended_to_as_by_pytorch(tessera, softmax):
    draw = random.Random(2)
    lines = [f"{draw.randrange(2)},{draw.random():.3f},u{draw.randrange(9)},{draw.randrange(30)},"
             + "|".join(str(draw.randrange(30)) for _ in range(draw.choice([0, 1, 3, 7]))) for _ in range(400)]
    tessera.write("clicks.csv", "click,price,user,item,seen\n" + "\n".join(lines) + "\n")
    changes = {
        "model": {"arch": "din", "tables": 2, "dim": DIM, "dense": 1, "hidden": [8], "attention": [6], "history": 5, "target": 1, "softmax": softmax},
        "data": {"source": "clicks.csv", "format": "csv", "split": {"train": 0.9},
                 "columns": {"label": "click", "dense": ["price"], "categories": ["user", {"name": "item", "ids": "number"}], "history": "seen"}}}
    weights = initial_weights(tessera, "deepfm", **changes)
    expected = None
    for name, parallel, devices in (("one", {"dp": 1, "pp": 1, "tp": 1}, 1), ("both", {"dp": 2, "pp": 2, "tp": 1, "micro_batches": 2}, 4)):
        still = job(name, "deepfm", devices, parallel, init="runs/start")
        # Rows of zeros would have no gradient of what attention weighs, so they get some from the first step on, and a large one.
        yaml = tessera.write(f"{name}.yaml", {**still, **changes, "parameter_servers": {"optimizer": {"kind": "sgd", "lr": 60}, "initializer": {"kind": "zero"}}})
        expected = expected or losses_of_pytorch(
            tessera, yaml, weights, lambda *parts: din(*parts, softmax=softmax), DIM, 0.5, large_sgd, tables=2)
        tessera("train", yaml, "--no-measure")
        assert [line["loss"] for line in tessera.metrics(name)] == pytest.approx(expected, rel=1e-4), name
    after = load_file(next((tessera.folder / "runs" / "one" / "checkpoints").glob("step-*/*.safetensors")))
    assert not torch.allclose(after["attention.0.weight"], weights["attention.0.weight"], atol=1e-4)


def test_parquet_is_read_as_csv_is(tessera):
    draw = random.Random(3)
    rows = [{"click": draw.randrange(2), "price": draw.randrange(100) / 8, "user": f"u{draw.randrange(50)}", "item": draw.randrange(99),
             "seen": [draw.randrange(99) for _ in range(draw.randrange(4))]} for _ in range(300)]
    table = pyarrow.Table.from_pylist(rows)
    table = table.set_column(2, "user", table["user"].dictionary_encode())
    pyarrow.parquet.write_table(table, tessera.folder / "clicks.parquet", row_group_size=70)
    (tessera.folder / "parts").mkdir()
    for part, begin in enumerate(range(0, 300, 30)):  # part-10 would stand before part-2 by its letters
        pyarrow.parquet.write_table(table.slice(begin, 30), tessera.folder / "parts" / f"part-{part + 1}.parquet")
    text = "".join(f"{row['click']},{row['price']},{row['user']},{row['item']},{'|'.join(map(str, row['seen']))}\n" for row in rows)
    (tessera.folder / "clicks.csv.gz").write_bytes(gzip.compress(("click,price,user,item,seen\n" + text).encode()))
    shown = {}
    for name, source in (("csv", "clicks.csv.gz"), ("parts", "parts"), ("parquet", "clicks.parquet")):
        kind = "csv" if name == "csv" else "parquet"
        columns = {"label": "click", "dense": ["price"], "categories": [{"name": "user", "ids": "vocabulary", "least": 3}, "item"], "history": "seen"}
        data = {"source": source, "format": kind, "columns": columns, "split": {"train": 0.9}, "negatives": 0.5}
        model = {"arch": "din", "tables": 2, "dim": DIM, "dense": 1, "hidden": [8], "history": 3, "target": 1}
        yaml = tessera.write(f"{name}.yaml", {**job(name, "deepfm", steps=2), "model": model, "data": data})
        shown[name] = tessera("data", "batch", yaml, "--count", 2, "--json").stdout
    assert shown["csv"] == shown["parquet"] == shown["parts"]
    refused = tessera("data", "batch", yaml, "--set", "data.columns.dense=[prize]", check=False)
    assert refused.returncode == 2 and 'did you mean "price"?' in refused.stderr
    refused = tessera("data", "batch", yaml, "--set", "data.columns.label=item", check=False)
    assert refused.returncode != 0 and "clicks.parquet:1" in refused.stderr and "its column 'item' is" in refused.stderr


def test_predictions_are_calibrated_where_negatives_are_left_out(clicks):
    """Of a model that learns nothing, whose rows are zeros: what is left is a function of the numbers."""
    weights = initial_weights(clicks, "deepfm")
    losses = {}
    for name, devices in (("all", 1), ("some", 1), ("spread", 2)):
        still = job(name, "deepfm", devices, {"dp": devices, "pp": 1, "tp": 1}, lr=0, table={"kind": "sgd", "lr": 0}, init="runs/start", steps=1)
        still["data"]["negatives"] = 1 if name == "all" else 0.2
        clicks("train", clicks.write(f"{name}.yaml", still), "--no-measure")
        losses[name] = clicks.evaluations(name)[-1]["validation_loss"]
    lines = [line.split("\t") for line in (clicks.folder / "clicks.tsv").read_text().splitlines()][900:]
    dense = torch.tensor([[math.log1p(max(0, int(number or 0))) for number in line[1:14]] for line in lines])
    labels = torch.tensor([float(line[0]) for line in lines])
    probability = torch.sigmoid(deepfm(weights, torch.zeros(len(lines), TABLES, DIM + 1), dense)).double()
    calibrated = probability / (probability + (1 - probability) / 0.2)
    assert losses["all"] == pytest.approx(torch.nn.functional.binary_cross_entropy(probability, labels.double()).item(), rel=1e-5)
    assert losses["some"] == pytest.approx(torch.nn.functional.binary_cross_entropy(calibrated, labels.double()).item(), rel=1e-5)
    assert losses["spread"] == pytest.approx(losses["some"], rel=1e-5)
    clicks("eval", "some", "--predictions", "some.csv")
    with open(clicks.folder / "some.csv") as file:
        said = torch.tensor([float(row["probability"]) for row in csv.DictReader(file)], dtype=torch.float64)
    torch.testing.assert_close(said, calibrated, rtol=1e-5, atol=1e-7)


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


def test_rows_that_cannot_be_saved_leave_a_checkpoint_out_and_end_nothing(clicks):
    yaml = clicks.write("run.yaml", {**job("run", "deepfm", steps=600), "checkpoint": {"every": 300, "keep": 5}})
    run = clicks.start("train", yaml, "--no-measure")
    checkpoints = clicks.folder / "runs" / "run" / "checkpoints"
    wait_until(checkpoints.exists)
    (checkpoints / "tables-000300").write_text("in the way")
    _, message = run.communicate(timeout=120)
    assert run.returncode == 0, message
    assert "no checkpoint of step 300" in message
    assert not (checkpoints / "step-000300").exists() and (checkpoints / "step-000600").exists()
    assert (checkpoints / "tables-000600" / "tables.json").exists()


def test_rows_that_memory_has_no_room_for_lie_on_the_disk(clicks):
    """Too few are asked for here to have to: that the limit and the folder reach the server, and that nothing else changes."""
    clicks("train", clicks.write("memory.yaml", job("memory", "deepfm")), "--no-measure")
    yaml = job("disk", "deepfm")
    yaml["parameter_servers"] |= {"disk": "rows", "memory": "64 MiB"}
    clicks("train", clicks.write("disk.yaml", yaml), "--no-measure")
    assert (clicks.folder / "rows").is_dir()
    assert [line["loss"] for line in clicks.metrics("disk")] == [line["loss"] for line in clicks.metrics("memory")]
    small = clicks("train", "disk.yaml", "--no-measure", "--overwrite", "--set", "parameter_servers.memory=1 MiB", check=False)
    assert small.returncode == 2 and "memory" in small.stderr
    half = clicks("train", "memory.yaml", "--no-measure", "--set", "parameter_servers.memory=64 MiB", check=False)
    assert half.returncode == 2 and "disk and memory" in half.stderr


@pytest.mark.parametrize(("wire", "near"), [("bf16", 1e-3), ("int8", 5e-3)])
def test_rows_that_cross_in_fewer_bits_train_nearly_the_same(clicks, wire, near):
    clicks("train", clicks.write("whole.yaml", job("whole", "deepfm", 2, {"dp": 2, "pp": 1, "tp": 1})), "--no-measure")
    yaml = job(wire, "deepfm", 2, {"dp": 2, "pp": 1, "tp": 1})
    yaml["parameter_servers"]["wire"] = wire
    clicks("train", clicks.write("fewer.yaml", yaml), "--no-measure")
    losses = {name: [line["loss"] for line in clicks.metrics(name)] for name in ("whole", wire)}
    assert losses[wire] == pytest.approx(losses["whole"], rel=near) and losses[wire] != losses["whole"]


GROWS = {"lifecycle": {"period": 5, "growth": [{"seen": 0, "dimension": 1}, {"seen": 5, "dimension": DIM + 1}]}}


@pytest.mark.parametrize("servers", [{}, GROWS, {"wire": "int8"}])
def test_a_resumed_run_is_the_uninterrupted_one(clicks, servers):
    """Its rows lie beside the checkpoints, with their optimizer's state; the servers of the first part ended with it."""
    table = {"kind": "adagrad", "lr": 0.05, "schedule": {"warmup": 9}}

    def named(name):
        out = job(name, "deepfm", 2, {"dp": 2, "pp": 1, "tp": 1}, table=table)
        out["parameter_servers"] |= servers
        return out

    whole = clicks.write("whole.yaml", named("whole"))
    clicks("train", whole, "--no-measure")
    yaml = clicks.write("parts.yaml", {**named("parts"), "checkpoint": {"every": 5, "keep": 1}})
    clicks("train", yaml, "--no-measure", "--set", "train.steps=7")
    checkpoints = clicks.folder / "runs" / "parts" / "checkpoints"
    # Behind the rows of step 5, whose files it shares, those that have changed since.
    chain = json.loads((checkpoints / "tables-000007" / "tables.json").read_text())["tables"][0]["servers"][0]["files"]
    assert len(chain) == 2 and all((checkpoints / "tables-000007" / name).exists() for name in chain)
    clicks("train", yaml, "--resume")
    assert (checkpoints / "tables-000012").exists() and not (checkpoints / "tables-000005").exists()
    losses = {name: [line["loss"] for line in clicks.metrics(name)] for name in ("whole", "parts")}
    assert losses["parts"] == pytest.approx(losses["whole"], rel=1e-6)
    assert clicks.evaluations("parts")[-1]["auc"] == pytest.approx(clicks.evaluations("whole")[-1]["auc"], abs=1e-6)


@pytest.mark.parametrize(("consistency", "ranks"), [("synchronous", 2), ("asynchronous", 1)])
def test_rows_come_when_they_were_seen_often_enough_and_go_when_they_are_worth_little(clicks, consistency, ranks):
    """Against the same counted in Python: two shows before a row, periods of four steps, decay, scores; a table with rules of its own."""
    server = clicks.start("ps", "serve", "--listen", free_place())
    try:
        place = server.stdout.readline().split()[2]
        life = {"period": 4, "decay": 0.5, "click_weight": 1, "unclicked_weight": 0.125, "admission": {"after": 2, "waiting_keys": 1000000},
                "eviction": {"below": 0.25}, "tables": [{"tables": [2], "admission": {"after": 1}, "eviction": {}}]}
        servers = {"servers": [place], "optimizer": {"kind": "sgd", "lr": 0.5}, "initializer": {"kind": "zero"}, "consistency": consistency,
                   "lifecycle": life}
        yaml = clicks.write("life.yaml", {**job("life", "deepfm", ranks, {"dp": ranks, "pp": 1, "tp": 1}), "parameter_servers": servers})
        clicks("train", yaml, "--no-measure")
        expected = rows_that_live(clicks, yaml, consistency == "synchronous")
        table = json.loads(clicks("ps", "status", place, "--json").stdout)[0]
        assert table["lifecycle"]["period"] == 3
        # Of a hundred keys that wait about one is taken for another one.
        for name, count in expected.items():
            said = table["rows"] if name == "rows" else table["lifecycle"][name]
            assert said == pytest.approx(count, rel=0.02), name
        assert expected["evicted"] > 100 and expected["held_back"] > 1000 and expected["rows"] > 500
        shown = clicks("ps", "status", place).stdout
        assert "held back" in shown and str(table["lifecycle"]["evicted"]) in shown
        # Validation has made no rows: they are what training made.
        assert 0 <= clicks.evaluations("life")[-1]["auc"] <= 1
    finally:
        server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=30) == 0


def rows_that_live(tessera, yaml, late):
    """How many rows there are and were. `late`: a step's rows are seen when it is over, which is after the period that it ends."""
    seen, rows, count = {}, {}, {"admitted": 0, "held_back": 0, "evicted": 0}

    def end_period():
        for key in list(rows):
            rows[key] = [0.5 * value for value in rows[key]]
            if key >> 48 != 2 and rows[key][1] + 0.125 * (rows[key][0] - rows[key][1]) < 0.25:
                del rows[key]
                count["evicted"] += 1

    for step, batch in enumerate(map(json.loads, tessera("data", "batch", yaml, "--count", STEPS, "--json").stdout.splitlines()), 1):
        if late and step % 4 == 0:
            end_period()
        shows = {}
        for keys, label in zip(batch["keys"], batch["labels"]):
            for key in keys:
                told = shows.setdefault(key, [0, 0])
                told[0] += 1
                told[1] += label
        for key, told in shows.items():
            if key not in rows:
                seen[key] = seen.get(key, 0) + told[0]
                if seen[key] < (1 if key >> 48 == 2 else 2):
                    count["held_back"] += 1
                    continue
                del seen[key]
                rows[key] = [0, 0]
                count["admitted"] += 1
            rows[key] = [rows[key][0] + told[0], rows[key][1] + told[1]]
        if not late and step % 4 == 0:
            end_period()
    return {**count, "rows": len(rows)}
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

    lines = [line.split("\t", 1) for line in (clicks.folder / "clicks.tsv").read_text().splitlines()]

    def predicted(run, *more):
        out = json.loads(clicks("eval", run, "--json", "--predictions", "said.csv", *more).stdout)
        with open(clicks.folder / "said.csv") as file:
            rows = [(int(row["label"]), float(row["probability"])) for row in csv.DictReader(file)]
        assert len(rows) == out["samples"]
        # The loss and AUC that are said are those of the file.
        assert out["loss"] == pytest.approx(-sum(math.log(p if label else 1 - p) for label, p in rows) / len(rows), rel=1e-5)
        pairs = [(p > q) + (p == q) / 2 for one, p in rows if one for other, q in rows if not other]
        assert out["auc"] == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
        return rows

    held_back = predicted("ads")
    assert [label for label, _ in held_back] == [int(label) for label, _ in lines[900:]]
    assert predicted(clicks.folder / "served") == held_back
    # Another log, whose lines stand the other way round.
    clicks.write("turned.tsv", "".join(f"{label}\t{rest}\n" for label, rest in reversed(lines[900:])))
    turned = predicted("ads", "--log", "turned.tsv")
    assert [label for label, _ in turned] == [label for label, _ in reversed(held_back)]
    assert [p for _, p in turned] == pytest.approx([p for _, p in reversed(held_back)], abs=1e-6)

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
        assert refused.returncode == 2 and "hold " in refused.stderr and "which another run has trained" in refused.stderr
        (clicks.folder / "runs" / "ads").rename(clicks.folder / "ads")
        refused = clicks("train", "ads.yaml", "--no-measure", "--set", f"parameter_servers.servers=[{place}]", check=False)
        assert refused.returncode == 2 and "is finished: its rows do not change" in refused.stderr
    finally:
        server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=30) == 0
