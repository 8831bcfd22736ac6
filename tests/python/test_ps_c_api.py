"""libtessera_ps.so, as another framework would load it: embeddings of PyTorch whose rows lie on servers."""

import ctypes
import json
import os
import signal
import subprocess

import pytest
import torch
from conftest import BINARIES, REPOSITORY, free_place, wait_until
from test_ps import metrics_of, place_with_a_free_neighbour, serving

ROWS, DIM, STEPS = 40, 3, 25


class Client:
    def __init__(self, *places, deadline=20.0):
        self.library = ctypes.CDLL(str(BINARIES / "libtessera_ps.so"))
        self.library.tessera_ps_last_error.restype = ctypes.c_char_p
        self.library.tessera_ps_close.argtypes = [ctypes.c_void_p]
        self.client = ctypes.c_void_p()
        names = (ctypes.c_char_p * len(places))(*[place.encode() for place in places])
        self("open", names, ctypes.c_size_t(len(places)), None, ctypes.c_double(deadline), ctypes.byref(self.client), of=())

    def __call__(self, name, *arguments, of=None):
        code = getattr(self.library, f"tessera_ps_{name}")(*(of if of is not None else (self.client,)), *arguments)
        if code != 0:
            raise RuntimeError(f"{code}: {self.library.tessera_ps_last_error().decode()}")

    def table(self, **description):
        table = ctypes.c_uint64()
        self("open_table", json.dumps(description).encode(), ctypes.byref(table))
        return table

    def pull(self, table, keys, create=True):
        values = torch.empty(len(keys), DIM)
        self("pull", table, words(keys), ctypes.c_size_t(len(keys)), ctypes.c_void_p(values.data_ptr()), ctypes.c_int(create))
        return values

    def push(self, table, keys, gradients):
        refused, gradients = ctypes.c_uint64(99), gradients.contiguous()
        self("push", table, words(keys), ctypes.c_size_t(len(keys)), ctypes.c_void_p(gradients.data_ptr()), ctypes.byref(refused))
        return refused.value

    def status(self):
        out = ctypes.c_char_p()
        self("status", ctypes.byref(out))
        return json.loads(out.value)

    def close(self):
        self.library.tessera_ps_close(self.client)


def words(keys):
    return (ctypes.c_uint64 * len(keys))(*keys)


@pytest.fixture
def client(tessera):
    process, places = serving(tessera, "--listen", place_with_a_free_neighbour(), "--threads", "2")
    try:
        one = Client(*places)
        yield one
        one.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()


@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
def test_an_embedding_on_servers_trains_as_pytorchs_own(client, rule):
    table = client.table(name="words", dimension=DIM, initializer={"scale": 0.5},
                         optimizer={"rule": rule, "learning_rate": 0.1, "epsilon": 1e-10})
    key = [0x9E3779B97F4A7C15 * (row + 1) % 2**64 for row in range(ROWS)]
    own = torch.nn.Embedding(ROWS, DIM)
    own.weight.data = client.pull(table, key)
    assert own.weight.abs().max() > 0.1
    first = own.weight.detach().clone()
    step = torch.optim.SGD(own.parameters(), lr=0.1) if rule == "sgd" else torch.optim.Adagrad(own.parameters(), lr=0.1, eps=1e-10)
    generator = torch.Generator().manual_seed(3)
    target = torch.randn(ROWS, DIM, generator=generator)
    for _ in range(STEPS):
        words_of_batch = torch.randint(ROWS, (16,), generator=generator)
        rows = client.pull(table, [key[word] for word in words_of_batch]).requires_grad_(True)
        ours = ((rows - target[words_of_batch]) ** 2).sum()
        ours.backward()
        assert client.push(table, [key[word] for word in words_of_batch], rows.grad) == 0
        step.zero_grad()
        theirs = ((own(words_of_batch) - target[words_of_batch]) ** 2).sum()
        theirs.backward()
        step.step()
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    assert torch.allclose(client.pull(table, key), own.weight, atol=1e-5)
    assert (own.weight - first).abs().max() > 0.1
    tables = [server["tables"][0] for server in client.status()]
    assert len(tables) == 2 and sum(one["rows"] for one in tables) == ROWS


def test_shows_and_clicks_admit_grow_and_keep_rows(client):
    life = {"decay": 0.5, "admission": {"after": 2}, "eviction": {"below": 0.5}, "waiting_keys": 1000, "growth": [{"seen": 0, "dimension": 1},
            {"seen": 4, "dimension": DIM}], "slots": [{"slot": 1, "admission": {"probability": 1}}]}
    table = client.table(name="ads", dimension=DIM, optimizer={"rule": "add"}, initializer={"kind": "zero"}, lifecycle=life)
    ones = torch.ones(4, DIM)

    def push(keys, *told):
        refused = ctypes.c_uint64(99)
        shown = (ctypes.c_float * (2 * len(told)))(*[number for one in told for number in one])
        client("push_impressions", table, words(keys), ctypes.c_size_t(len(keys)), ctypes.c_void_p(ones.data_ptr()), shown, ctypes.byref(refused))
        return refused.value

    slot, short, grown, clicked = 1 << 48, 2, 3, 4
    assert push([slot, short, grown, clicked], (1, 0), (1, 0), (4, 0), (2, 2)) == 0
    assert client.pull(table, [slot, short, grown, clicked]).tolist() == [[1, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]]
    assert push([slot, short, grown, clicked], (1, 0), (1, 0), (0, 0), (float("nan"), 0)) == 1
    assert client.pull(table, [slot, short, grown, clicked]).tolist() == [[2, 0, 0], [1, 0, 0], [2, 1, 1], [1, 0, 0]]
    went = ctypes.c_uint64(99)
    client("end_period", table, ctypes.byref(went))
    assert went.value == 3  # scores of 0.1, 0.05 and 0.2; that of the one that was clicked is 1
    tables = [server["tables"][0] for server in client.status()]
    assert sum(one["rows"] for one in tables) == 1 and all(one["lifecycle"]["period"] == 1 for one in tables)
    assert client.pull(table, [clicked], create=False).tolist() == [[1, 0, 0]]
    for wrong, what in ((dict(life, decay=2), "decay"), (dict(life, growth=[{"seen": 0, "dimensions": 1}]), "dimension"),
                        (dict(life, slots=[{"slot": 1, "admision": {}}]), "lifecycle.slots.admision")):
        with pytest.raises(RuntimeError, match=f"1: .*{what}"):
            client.table(name="others", dimension=DIM, lifecycle=wrong)
    table = client.table(name="words", dimension=DIM)
    with pytest.raises(RuntimeError, match="1: .*has no lifecycle"):
        push([1], (1, 0))


def test_what_is_wrong_is_said_and_ends_nothing(client):
    table = client.table(name="t", dimension=DIM)
    for description, what in (({"name": "u", "dimension": 0}, "dimension"), ({"name": "u", "dimension": 2, "type": "fp8"}, "fp8"),
                              ({"name": "u", "dimension": 2, "optimizer": {"lr": 1}}, "optimizer.lr"), ({"name": "u"}, "dimension"),
                              ({"name": "t", "dimension": DIM + 1}, "is there already")):
        with pytest.raises(RuntimeError, match=f"1: .*{what}"):
            client.table(**description)
    with pytest.raises(RuntimeError, match="2: .*has not opened a table 7"):
        client.pull(ctypes.c_uint64(7), [1])
    assert client.push(table, [1, 2], torch.tensor([[float("nan")] * DIM, [1.0] * DIM])) == 1
    assert client.pull(table, [3], create=False).eq(0).all()
    with pytest.raises(RuntimeError, match="1: .*no worker"):
        client("end_step")
    assert client.pull(table, [2]).abs().max() > 0


def test_another_secret_is_refused(tessera, monkeypatch):
    tessera.environment["TESSERA_SECRET"] = "a" * 64
    process, places = serving(tessera, "--listen", free_place())
    try:
        monkeypatch.setenv("TESSERA_SECRET", "b" * 64)
        with pytest.raises(RuntimeError, match="1: .*do not have the same secret"):
            Client(*places)
        monkeypatch.setenv("TESSERA_SECRET", "a" * 64)
        Client(*places).close()
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0


def test_the_header_is_c_and_nothing_else_is_exported(tmp_path):
    program = tmp_path / "uses.c"
    program.write_text('#include "tessera_ps.h"\nint main(void) { return tessera_ps_last_error()[0]; }\n')
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-std=c99", "-pedantic", "-Wall", "-Werror", f"-I{REPOSITORY / 'src' / 'ps'}", program, f"-L{BINARIES}", "-ltessera_ps",
                    f"-Wl,-rpath,{BINARIES}", "-o", tmp_path / "uses"], check=True)
    subprocess.run([tmp_path / "uses"], check=True)
    exported = subprocess.run(["nm", "-D", "--defined-only", BINARIES / "libtessera_ps.so"], check=True, capture_output=True, text=True).stdout
    assert all(line.split()[-1].startswith("tessera_ps_") for line in exported.splitlines()), exported


def open_table(place):
    one = Client(place)
    one.table(name="ads", dimension=DIM)
    one.close()


def test_a_server_keeps_on_disk_what_its_memory_has_no_room_for(tessera):
    limit = ("--disk", "rows", "--memory", "4MiB")
    process, places = serving(tessera, "--listen", place_with_a_free_neighbour(), "--threads", "2", *limit)
    try:
        one = Client(*places)
        table = one.table(name="ads", dimension=DIM, optimizer={"rule": "add"}, initializer={"kind": "zero"})
        keys = list(range(400_000))
        gradients = torch.arange(len(keys) * DIM, dtype=torch.float32).view(-1, DIM)
        assert one.push(table, keys, gradients) == 0
        for status in json.loads(tessera("ps", "status", *places, "--json").stdout):
            assert status["disk_bytes"] > 0 and status["index_bytes"] + status["row_bytes"] <= 4 << 20
        torch.testing.assert_close(one.pull(table, keys), gradients, rtol=0, atol=0)
        one.close()
        small = tessera("ps", "serve", "--listen", free_place(), "--disk", "rows", check=False)
        assert small.returncode == 2 and "--memory" in small.stderr
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    assert list((tessera.folder / "rows").iterdir()) == [], "what lies there goes with the process"


def test_a_leader_says_whether_it_has_a_backup(tessera):
    first, second, page = free_place(), free_place(), free_place()
    leader, _ = serving(tessera, "--listen", first, "--backup", second, "--metrics", page)
    standby, _ = serving(tessera, "--listen", second, "--backup-of", first)
    gauge = f'tessera_ps_has_backup{{server="{first}"}}'
    alone, (other,) = serving(tessera, "--listen", free_place(), "--metrics", lonely := free_place())
    try:
        open_table(f"{first}/{second}")
        open_table(other)
        wait_until(lambda: metrics_of(page).get(gauge) == 1)
        assert not any("has_backup" in name for name in metrics_of(lonely))
        (table,) = json.loads(tessera("ps", "status", first, "--json").stdout)
        assert table["backup"] == second
        lines = tessera("ps", "status", first, other).stdout.splitlines()
        assert lines[0].split()[-1] == "backup" and lines[-2].split()[-1] == second and lines[-1].split()[-1] == "-"
        standby.kill()
        standby.wait()
        # The leader notices when it has something to hand on.
        open_table(first)
        wait_until(lambda: metrics_of(page).get(gauge) == 0)
        assert json.loads(tessera("ps", "status", first, "--json").stdout)[0]["backup"] == ""
        assert tessera("ps", "status", first).stdout.splitlines()[-1].split()[-1] == "none"
        assert json.loads(tessera("ps", "status", other, "--json").stdout)[0]["backup"] is None
        assert "backup" not in tessera("ps", "status", other).stdout
    finally:
        for process in (leader, standby, alone):
            process.kill()
            process.wait()
