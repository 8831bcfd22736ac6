"""Parameter servers as a user starts them and looks at them."""

import json
import random
import signal
import socket
import urllib.request

import pytest
from conftest import Page, free_place


def place_with_a_free_neighbour():
    while True:
        place = free_place()
        with socket.socket() as neighbour:
            try:
                neighbour.bind(("127.0.0.1", int(place.split(":")[1]) + 1))
                return place
            except (OSError, OverflowError):
                continue


def serving(tessera, *words):
    process = tessera.start("ps", "serve", *words)
    line = process.stdout.readline()
    assert line.startswith("serving at "), (line, process.communicate())
    return process, line.split()[2:]


def test_servers_say_where_they_are_and_end_when_asked(tessera):
    process, places = serving(tessera, "--listen", place_with_a_free_neighbour(), "--threads", "2")
    try:
        assert len(places) == 2
        status = tessera("ps", "status", *places)
        assert status.stdout == "no tables yet\n"
        assert json.loads(tessera("ps", "status", places[1], "--json").stdout) == []
    finally:
        process.send_signal(signal.SIGTERM)
    out, error = process.communicate(timeout=30)
    assert (process.returncode, out, error) == (0, "", "")


def test_a_place_that_is_taken_is_named(tessera):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = tessera("ps", "serve", "--listen", place, check=False)
    assert refused.returncode == 4
    assert place.split(":")[1] in refused.stderr and "use" in refused.stderr


def test_a_server_that_others_reach_needs_a_secret(tessera):
    refused = tessera("ps", "serve", "--listen", "0.0.0.0:29407", check=False)
    assert refused.returncode == 2
    assert "has no secret" in refused.stderr and "openssl rand -hex 32" in refused.stderr


def test_who_has_another_secret_is_told_nothing(tessera):
    tessera.environment["TESSERA_SECRET"] = "a" * 64
    process, places = serving(tessera, "--listen", free_place())
    try:
        tessera.environment["TESSERA_SECRET"] = "b" * 64
        refused = tessera("ps", "status", *places, check=False)
    finally:
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    assert refused.returncode == 2 and "do not have the same secret" in refused.stderr


def metrics_of(place):
    with urllib.request.urlopen(f"http://{place}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def check_page_of_tables(tessera, places, name):
    """The run's page against the servers, whom nobody else has asked for anything."""
    status = json.loads(tessera("ps", "status", *places, "--json").stdout)

    def shown():
        tessera("runs", "show", name, "--html", "page.html")
        page = Page("run")
        page.feed((tessera.folder / "page.html").read_text())
        page.close()
        assert "tables" in page.ids and "tables-note" in page.ids
        return json.loads(page.data)

    tables = shown()["tables"]
    assert (tables["steps"], tables["consistency"], tables["seen"]["most"]) == (6, "synchronous", 0) and tables["seconds"] > 0
    (table,) = tables["tables"]
    assert table["name"] == name and [server["place"] for server in table["servers"]] == places
    assert table["rows"] == sum(server["rows"] for server in status)
    assert table["skew"] == pytest.approx(2 * max(server["rows"] for server in status) / table["rows"])
    assert table["memory_bytes"] == sum(server["index_bytes"] + server["row_bytes"] for server in status) and table["disk_bytes"] == 0
    assert table["hits"] == 1
    for key in ("keys_pulled", "keys_pushed"):
        assert table[key] == sum(server[key] for server in status) == sum(server[key] for server in table["servers"])
    for server, said in zip(table["servers"], status):
        for key in ("pulls", "pushes"):
            assert server[key]["messages"] == sum(count for _, count in said[key]["classes"])
            assert (server[key]["median"], server[key]["p99"]) == (said[key]["median"], said[key]["p99"])
    file = tessera.folder / "runs" / name / "servers.json"
    file.write_text(file.read_text().replace('"tables"', '"tabels"'))
    damaged = shown()
    assert damaged["tables"] is None and any("servers.json is left out" in note for note in damaged["notes"])


def test_metrics_and_status_say_what_a_run_has_asked_of_its_servers(tessera):
    draw = random.Random(1)
    lines = [f"{draw.randrange(2)} 1:{draw.random():.3f} {draw.randrange(2, 40)}:1" for _ in range(300)]
    tessera.write("clicks.txt", "\n".join(lines) + "\n")
    page = free_place()
    process, places = serving(tessera, "--listen", place_with_a_free_neighbour(), "--threads", "2", "--metrics", page)
    try:
        assert metrics_of(page)[f'tessera_ps_leads{{server="{places[1]}"}}'] == 1
        tessera.write("seen.yaml", {
            "name": "seen", "model": {"arch": "deepfm", "tables": 1, "dim": 4, "dense": 1, "hidden": [8]},
            "data": {"source": "clicks.txt", "format": "libsvm", "split": {"train": 0.9}},
            "train": {"steps": 6, "global_batch": 20, "schedule": {"kind": "constant"}},
            "parameter_servers": {"servers": places}, "cluster": {"local": {"devices": 1, "threads": 1}},
            "parallel": {"dp": 1, "pp": 1, "tp": 1}})
        tessera("train", "seen.yaml", "--no-measure")
        metrics = metrics_of(page)
        check_page_of_tables(tessera, places, "seen")
        status = json.loads(tessera("ps", "status", *places, "--json", "--seconds", "0.05").stdout)
        assert [table["server"] for table in status] == places
        for table in status:
            labels = f'{{server="{table["server"]}",table="seen"}}'
            for name, key in (("rows", "rows"), ("keys_pulled_total", "keys_pulled"), ("keys_pushed_total", "keys_pushed"),
                              ("row_bytes", "row_bytes"), ("memory_hits_total", "hits"), ("gradients_refused_total", "gradients_refused")):
                assert metrics[f"tessera_ps_{name}{labels}"] == table[key], name
            server = f'{{server="{table["server"]}"}}'
            assert metrics[f"tessera_ps_slowest_worker_steps{server}"] == table["slowest"] == 6
            assert metrics[f"tessera_ps_push_seconds_count{labels}"] == 6
            last = f'tessera_ps_push_seconds_bucket{labels[:-1]},le="+Inf"}}'
            assert metrics[last] == 6 and metrics[f"tessera_ps_push_seconds_sum{labels}"] > 0
            # Nobody asks any more.
            assert table["pulled_per_second"] == 0 and table["pushes"]["classes"] == [] and "median" not in table["pushes"]
        for table in json.loads(tessera("ps", "status", *places, "--json").stdout):
            assert sum(count for _, count in table["pushes"]["classes"]) == 6
            assert 0 < table["pushes"]["median"] <= table["pushes"]["p99"] and table["pulls"]["median"] > 0
        assert sum(table["rows"] for table in status) > 10
        shown = tessera("ps", "status", *places).stdout
        skew = max(table["rows"] for table in status) * 2 / sum(table["rows"] for table in status)
        assert "skew" in shown and f"{skew:.2f}" in shown and "pull p50 / p99" in shown
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0


def test_a_taken_place_for_metrics_is_named(tessera):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        page = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = tessera("ps", "serve", "--listen", free_place(), "--metrics", page, check=False)
    assert refused.returncode == 4 and f"{page} for /metrics" in refused.stderr
