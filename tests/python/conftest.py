"""What the end-to-end tests share: the built commands, and scratch folders that go away."""

import json
import os
import signal
import socket
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

# What a shell starts in the background ignores Ctrl-C, and so would every program that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[2]
BINARIES = Path(os.environ.get("TESSERA_BIN", REPOSITORY / "build" / "release" / "bin"))
SHAKESPEARE = REPOSITORY / "examples" / "shakespeare" / "shakespeare.txt"


class Tessera:
    """Runs the commands in a folder of their own, with a token cache that all tests share."""

    def __init__(self, folder, cache):
        self.folder = folder
        self.environment = dict(os.environ, TESSERA_CACHE=str(cache), NO_COLOR="1")

    def __call__(self, *arguments, program="tessera", check=True, timeout=900, text=None):
        result = subprocess.run(
            [str(BINARIES / program), *map(str, arguments)],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=timeout, input=text,
        )
        if check and result.returncode != 0:
            raise AssertionError(f"tessera {' '.join(map(str, arguments))}: exit {result.returncode}\n{result.stdout}\n{result.stderr}")
        return result

    def start(self, *arguments, ignored=(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, inside=lambda words: words):
        """`inside`: makes the words that run these words somewhere else, such as on a host of a lab."""
        def signals():
            # What a script runs in the background ignores Ctrl-C, or under nohup a hangup, and so does what that starts.
            for one in (signal.SIGINT, signal.SIGHUP):
                signal.signal(one, signal.SIG_DFL)
            for one in ignored:
                signal.signal(one, signal.SIG_IGN)
        return subprocess.Popen(inside([str(BINARIES / "tessera"), *map(str, arguments)]), cwd=self.folder, env=self.environment,
                                stdout=stdout, stderr=stderr, text=True, preexec_fn=signals)

    def write(self, name, content):
        path = Path(self.folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def metrics(self, run):
        return [json.loads(line) for line in (Path(self.folder) / "runs" / run / "metrics.jsonl").read_text().splitlines()]

    def evaluations(self, run):
        return [json.loads(line) for line in (Path(self.folder) / "runs" / run / "evaluations.jsonl").read_text().splitlines()]


VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Holds every element to its end tag, and keeps ids and the data, which the element `data_id` holds."""

    def __init__(self, data_id):
        super().__init__()
        self.data_id, self.open, self.ids, self.data = data_id, [], [], ""

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        assert not {"src", "href"} & set(attributes), (tag, attributes)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag not in VOID:
            self.open.append((tag, attributes.get("id")))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, f"</{tag}> in {self.open}"
        self.open.pop()

    def handle_data(self, text):
        if self.open and self.open[-1] == ("script", self.data_id):
            self.data += text

    def close(self):
        super().close()
        assert not self.open
        assert len(self.ids) == len(set(self.ids))


def workers_of(launcher):
    """Process ids of the launcher's children, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int(entry.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1])
            words = entry.joinpath("cmdline").read_text().split("\0")
        except (OSError, IndexError):
            continue
        if parent == launcher and "--rank" in words:
            found[int(words[words.index("--rank") + 1])] = int(entry.name)
    return found


def wait_until(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    pytest.fail("it did not happen within a minute")


def wait_for_step(tessera, run, step, process):
    path = Path(tessera.folder) / "runs" / run / "metrics.jsonl"
    for _ in range(6000):
        if path.exists() and len(path.read_text().splitlines()) > step:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError(f"{run} did not reach step {step}")


def wait_for_checkpoint(tessera, run, process):
    """Until the run has one that is whole: they are written beside the steps."""
    folder = Path(tessera.folder) / "runs" / run / "checkpoints"
    for _ in range(6000):
        if any(entry.suffix == "" for entry in folder.glob("step-*")):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError(f"{run} has no checkpoint")


def free_place(address="127.0.0.1"):
    """HOST:PORT that nothing listens at, at an address of the loopback."""
    with socket.socket() as free:
        free.bind((address, 0))
        return f"{address}:{free.getsockname()[1]}"


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tessera(tmp_path, cache):
    return Tessera(tmp_path, cache)


@pytest.fixture(scope="module")
def shared_tessera(tmp_path_factory, cache):
    """One folder for all tests of a module."""
    return Tessera(tmp_path_factory.mktemp("work"), cache)
