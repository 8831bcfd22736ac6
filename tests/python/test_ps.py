"""Parameter servers as a user starts them and looks at them."""

import json
import signal
import socket

from conftest import free_place


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
