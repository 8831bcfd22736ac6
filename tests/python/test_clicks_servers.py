"""Runs of click models beside servers that others use, that are killed, and that come and go."""

import json
import os
import signal

import pytest
from conftest import free_place, wait_for_step, wait_until, workers_of
from test_clicks import DIM, TABLES, clicks, job  # noqa: F401


def test_named_servers_keep_the_tables_and_refuse_another_run_of_the_name(clicks):
    server = clicks.start("ps", "serve", "--listen", free_place())
    try:
        place = server.stdout.readline().split()[2]
        yaml = clicks.write("named.yaml", job("named", "deepfm"))
        servers = ["--set", f"parameter_servers.servers=[{place}]"]
        clicks("train", yaml, "--no-measure", *servers)
        table = json.loads(clicks("ps", "status", place, "--json").stdout)[0]
        assert table["name"] == "named" and table["dimension"] == DIM + 1 and table["rows"] > TABLES
        before = sorted((clicks.folder / "runs" / "named").rglob("*"))
        refused = clicks("train", yaml, "--no-measure", "--overwrite", *servers, check=False)
        assert refused.returncode == 2 and "which another run has trained" in refused.stderr
        # And what was to be replaced is still there.
        assert sorted((clicks.folder / "runs" / "named").rglob("*")) == before
    finally:
        server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=30) == 0


def test_servers_belong_to_one_run_at_a_time(clicks):
    """Another run is refused while the first one trains, and its checkpoint once that has ended: the rows stay, and the first run goes on."""
    servers = [clicks.start("ps", "serve", "--listen", free_place()) for _ in range(2)]
    try:
        place, elsewhere = (server.stdout.readline().split()[2] for server in servers)
        at_server = ["--no-measure", "--set", f"parameter_servers.servers=[{place}]"]
        other = clicks.write("other.yaml", job("other", "deepfm"))
        clicks("train", other, "--no-measure", "--set", "train.steps=2", "--set", f"parameter_servers.servers=[{elsewhere}]")
        first = clicks.write("first.yaml", {**job("first", "deepfm"), "checkpoint": {"every": 50, "keep": 1}})
        run = clicks.start("train", first, *at_server, "--set", "train.steps=100000")
        wait_for_step(clicks, "first", 60, run)
        refused = clicks("train", other, "--resume", *at_server, check=False)
        assert refused.returncode == 2, refused.stderr
        assert "run 'other' wants to train" in refused.stderr and "1 worker of run 'first' trains" in refused.stderr
        for process in [run.pid, *workers_of(run.pid).values()]:
            os.kill(process, signal.SIGKILL)
        run.wait()
        rows = json.loads(clicks("ps", "status", place, "--json").stdout)[0]["rows"]
        refused = clicks("train", other, "--resume", *at_server, check=False)
        assert refused.returncode == 2, refused.stderr
        assert "table 'other'" in refused.stderr and "table 'first'" in refused.stderr and "servers of its own" in refused.stderr
        assert json.loads(clicks("ps", "status", place, "--json").stdout)[0]["rows"] == rows > TABLES
        step = len(clicks.metrics("first"))
        clicks("train", first, "--resume", *at_server, "--set", f"train.steps={step + 5}")
        assert len(clicks.metrics("first")) == step + 5
    finally:
        for server in servers:
            server.send_signal(signal.SIGTERM)
    assert [server.wait(timeout=30) for server in servers] == [0, 0]


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


def test_a_run_goes_on_with_a_server_that_is_killed_and_started_again_with_its_log(clicks):
    losses = {}
    for name in ("undisturbed", "killed"):
        words = ("ps", "serve", "--listen", free_place(), "--log", f"log-of-{name}")
        server = clicks.start(*words)
        try:
            server.stdout.readline()
            yaml = clicks.write(f"{name}.yaml", job(name, "deepfm", 2, {"dp": 2, "pp": 1, "tp": 1}, table={"kind": "adam", "lr": 0.01}, steps=60))
            run = clicks.start("train", yaml, "--no-measure", "--set", f"parameter_servers.servers=[{words[3]}]", "--set", "parameter_servers.reconnect=60")
            metrics = clicks.folder / "runs" / name / "metrics.jsonl"
            wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)
            if name == "killed":
                server.kill()
                server.wait()
                server = clicks.start(*words)
            _, message = run.communicate(timeout=60)
            assert run.returncode == 0, message
        finally:
            server.kill()
            server.wait()
        losses[name] = [line["loss"] for line in clicks.metrics(name)]
    assert losses["killed"] == losses["undisturbed"]
    refused = clicks("ps", "serve", "--listen", free_place(), "--log", "a", "--backup", free_place(), check=False)
    assert refused.returncode == 2 and "excludes" in refused.stderr


@pytest.mark.parametrize("consistency", ["synchronous", "asynchronous", "geo"])
def test_servers_are_added_and_left_while_a_run_trains(clicks, consistency):
    """From two servers to three, and to two others of these; the last server of the beginning is left and ended."""
    places = [free_place() for _ in range(3)]
    servers = [clicks.start("ps", "serve", "--listen", place) for place in places]
    losses = {}
    try:
        for server in servers:
            server.stdout.readline()
        for name in ("undisturbed", "moved"):
            yaml = job(name, "deepfm", 2, {"dp": 2, "pp": 1, "tp": 1}, table={"kind": "adagrad", "lr": 0.05, "schedule": {"warmup": 100}}, steps=1000)
            yaml["parameter_servers"] |= {"consistency": consistency, "servers": places[:2]}
            yaml["checkpoint"] = {"every": 90, "keep": 2}
            run = clicks.start("train", clicks.write(f"{name}.yaml", yaml), "--no-measure")
            metrics = clicks.folder / "runs" / name / "metrics.jsonl"
            wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)
            if name == "moved":
                said = clicks("ps", "move", name, *places).stdout
                assert f"the run goes on with {', '.join(places)}" in said
                clicks("ps", "move", name, places[2], places[0])
                servers[1].send_signal(signal.SIGTERM)
                assert servers[1].wait(timeout=30) == 0
                taken = json.loads((clicks.folder / "runs" / name / "servers-taken.json").read_text())
                assert taken["servers"] == [places[2], places[0]] and taken["after_step"] < 1000 and taken["rows"] > 0 and taken["refused"] == ""
            _, message = run.communicate(timeout=120)
            assert run.returncode == 0, message
            losses[name] = [line["loss"] for line in clicks.metrics(name)]
        rows = [sum(table["rows"] for table in json.loads(clicks("ps", "status", place, "--json").stdout) if table["name"] == "moved") for place in places[::2]]
        assert all(rows)
        not_trained = clicks("ps", "move", "moved", places[0], check=False)
        assert not_trained.returncode == 2 and "no process trains this run" in not_trained.stderr
    finally:
        for server in servers:
            server.kill()
            server.wait()
    if consistency == "synchronous":
        assert losses["moved"] == losses["undisturbed"]
        # And what was saved is what was trained.
        evaluated = {name: json.loads(clicks("eval", name, "--json").stdout)["loss"] for name in losses}
        assert evaluated["moved"] == pytest.approx(evaluated["undisturbed"], rel=1e-6)
    else:
        assert losses["moved"][-1] == pytest.approx(losses["undisturbed"][-1], rel=0.2)


def test_a_run_keeps_its_servers_where_others_cannot_be_taken(clicks):
    places = [free_place() for _ in range(2)]
    servers = [clicks.start("ps", "serve", "--listen", place) for place in places]
    try:
        for server in servers:
            server.stdout.readline()
        def start(command, place, steps, *more):
            yaml = clicks.write("run.yaml", job("run", "deepfm", steps=steps))
            return command("train", yaml, "--no-measure", "--set", f"parameter_servers.servers=[{place}]", *more)

        start(clicks, places[1], 2)
        run = start(clicks.start, places[0], 1000, "--overwrite")
        metrics = clicks.folder / "runs" / "run" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2)
        wrong = clicks("ps", "move", "run", "nowhere", check=False)
        assert wrong.returncode == 2 and "HOST:PORT, as `tessera ps serve` says it" in wrong.stderr
        holds = clicks("ps", "move", "run", *places, check=False)
        assert holds.returncode == 2 and f"the server at {places[1]} holds" in holds.stderr and "start it anew" in holds.stderr
        (clicks.folder / "runs" / "run" / "servers-asked.json").write_text("{")
        wait_until(lambda: not (clicks.folder / "runs" / "run" / "servers-asked.json").exists())
        _, message = run.communicate(timeout=120)
        assert run.returncode == 0, message
        assert "the run keeps its parameter servers" in message and "servers-asked.json" in message
        assert len(clicks.metrics("run")) == 1000
    finally:
        for server in servers:
            server.kill()
            server.wait()
