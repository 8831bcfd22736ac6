"""Ranks on several hosts by one command: over real ssh, to hosts that are addresses of the loopback, and by MPI's and Slurm's launchers."""

import importlib.machinery
import importlib.util
import json
import os
import pty
import re
import shlex
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

import hosts as made
from conftest import BINARIES, REPOSITORY, SHAKESPEARE, wait_for_step

pytestmark = pytest.mark.skipif(bool(made.missing()), reason=made.missing())

CLUSTER = """name: two
groups:
  - {name: hosts, device: 'cpu:zen4', nodes: 2, cores: 2, memory: 8 GiB, devices_per_node: 2, inside: shm, network: tcp-10g}
"""
JOB = f"""name: job
model: {{arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128, seq: 32, vocab: 512}}
data: {{source: {SHAKESPEARE}, tokenizer: {{kind: bpe, vocab: 512}}}}
train: {{steps: 4, global_batch: 8, optimizer: {{kind: adamw, lr: 1.0e-3}}, eval: {{sequences: 4}}}}
cluster: two.yaml
parallel: {{dp: 2, pp: 1, tp: 1}}
"""
LONG = ["--set", "train.steps=100000"]
MPIRUN = "mpirun --oversubscribe --bind-to none"
TRY_AGAIN, PEER_LOST = 75, 6
# What is left of a run must be gone after so many seconds.
SOON = 15
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="hiding a folder from a host needs root")
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun (package openmpi-bin)")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    two = made.Hosts(tmp_path_factory.mktemp("hosts") / "two")
    yield two
    two.close()


@pytest.fixture
def job(tessera, hosts):
    """The job's file, with the plan that puts a rank on each of two hosts in plan.json."""
    tessera.folder = Path(tessera.folder).resolve()
    tessera.environment.update(TESSERA_SSH=hosts.ssh, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    tessera.write("two.yaml", CLUSTER)
    yaml = tessera.write("job.yaml", JOB)
    tessera("plan", yaml, "--set", "cluster=two.yaml", "-o", "plan.json")
    place(tessera, [(0, 0), (1, 0)])
    yield yaml
    for pid in made.processes(tessera.folder):
        os.kill(pid, signal.SIGKILL)


def place(tessera, places, name="plan.json"):
    """Puts the plan's ranks on (node, device)."""
    path = Path(tessera.folder) / name
    plan = json.loads(path.read_text())
    plan.pop("predicted", None)
    for rank, (node, device) in zip(plan["ranks"], places, strict=True):
        rank.update(node=node, device=device, threads=1)
    path.write_text(json.dumps(plan))


def train(job, *how, **options):
    return ["train", job, "--plan", "plan.json", *how]


def trained(tessera, run="job"):
    """What a run came to, to the last bit."""
    folder = Path(tessera.folder) / "runs" / run
    steps = [(line["loss"], line["grad_norm"]) for line in tessera.metrics(run)]
    newest = sorted((folder / "checkpoints").glob("step-*"))[-1]
    return steps, {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


def gone(folder, seconds=SOON):
    """What is still there of a run after some seconds: nothing, it is to be hoped."""
    until = time.monotonic() + seconds
    while (left := made.processes(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def started(tessera, job, *how):
    process = tessera.start(*train(job, *how, *LONG))
    wait_for_step(tessera, "job", 3, process)
    return process


def test_over_ssh_a_run_is_the_same_as_on_one_host(tessera, hosts, job):
    tessera(*train(job, "--set", "name=here"))
    shown = tessera(*train(job, "--hosts", hosts.file())).stderr
    assert trained(tessera) == trained(tessera, "here")
    assert "all its workers on this one" not in shown and "runs/job is complete" in shown, shown
    assert not gone(tessera.folder, 0)
    assert [path.name for path in (tessera.folder / "runs").iterdir() if path.name.startswith(".")] == []


@needs_mpirun
@pytest.mark.parametrize("processes", [2, 4], ids=["one a host", "one a rank"])
def test_by_a_launcher_a_run_is_the_same_as_on_one_host(tessera, job, processes):
    tessera("plan", job, "--set", "parallel.dp=4", "-o", "plan.json")
    place(tessera, [(0, 0), (0, 1), (1, 0), (1, 1)])
    tessera(*train(job, "--set", "name=here"))
    tessera(*train(job, "--launcher", f"{MPIRUN} -n {processes}"))
    assert trained(tessera) == trained(tessera, "here")
    assert not gone(tessera.folder, 5)


@needs_mpirun
def test_a_launcher_that_starts_another_number_is_told_what_is_wanted(tessera, job):
    wrong = tessera(*train(job, "--launcher", f"{MPIRUN} -n 3"), check=False)
    assert wrong.returncode == 2 and "started 3 processes; expected 2, one for each rank of the plan, or 2, one for each of its hosts" in wrong.stderr
    nothing = tessera(*train(job, "--overwrite", "--launcher", "false"), check=False)
    assert nothing.returncode == PEER_LOST and "`false` ended before all the processes" in nothing.stderr, nothing.stderr
    absent = tessera(*train(job, "--overwrite", "--launcher", "no-such-launcher -n 2"), check=False)
    assert "no-such-launcher: not found" in absent.stderr, absent.stderr
    assert not gone(tessera.folder)


@pytest.mark.parametrize("how", ["hosts", pytest.param("launcher", marks=needs_mpirun)])
def test_what_is_measured_planned_and_trained_in_one_go(tessera, hosts, job, tmp_path, how):
    where = ["--hosts", hosts.file()] if how == "hosts" else ["--launcher", f"{MPIRUN} -n 2"]
    tessera.environment["TESSERA_CACHE"] = str(tmp_path / "cache")
    # One shape of workers a host, so that the measuring is short.
    tessera.write("two.yaml", CLUSTER.replace("devices_per_node: 2, inside: shm", "devices_per_node: 1").replace("cores: 2", "cores: 1"))
    shown = tessera("train", job, "--set", "parallel=auto", *where).stderr
    assert "measuring 2 hosts with 1 worker of 1 thread" in shown and "runs/job is complete" in shown, shown
    (profile,) = [json.loads(path.read_text()) for path in (tmp_path / "cache").glob("profile-*.json")]
    assert any(sample["link"] == "tcp-10g" for sample in profile["communication"])
    again = tessera("train", job, "--set", "parallel=auto", *where, "--overwrite").stderr
    assert "measuring" not in again, again
    assert not gone(tessera.folder) and not list((tessera.folder / "runs").glob(".*"))


def test_hosts_are_asked_what_they_have(tessera, hosts, job):
    shown = tessera("train", job, "--set", "cluster=auto", "--no-measure", "--hosts", hosts.file()).stderr
    cores = len(os.sched_getaffinity(0))
    assert re.search(rf"host node-1: \d+ cores? of \S+, .*\nhost node-2: \d+ cores? of", shown) and cores, shown
    cluster = (tessera.folder / "runs" / "job" / "cluster.yaml").read_text()
    assert "nodes: 2" in cluster, cluster
    local = tessera("train", job, "--set", "cluster={local: {devices: 2}}", "--overwrite", "--hosts", hosts.file(), check=False)
    assert local.returncode == 2 and "cluster.local is this host alone" in local.stderr


@pytest.mark.parametrize("victim", ["rank", "agent", "ssh", "sshd"])
def test_when_something_is_killed_nothing_is_left_anywhere(tessera, hosts, job, victim):
    process = started(tessera, job, "--hosts", hosts.file())
    if victim == "rank":
        os.kill(made.ranks(tessera.folder)[1], signal.SIGKILL)
    elif victim == "sshd":
        (session,) = subprocess.run(["pgrep", "-P", str(hosts.servers["node-2"].pid)], capture_output=True, text=True, check=True).stdout.split()
        os.kill(int(session), signal.SIGKILL)
    else:
        of_node_2 = [pid for pid, words in made.processes(tessera.folder, "launch-agent").items() if (words[0].endswith("ssh")) == (victim == "ssh")
                     and (victim == "agent" or "node-2" in words)]
        os.kill(of_node_2[-1], signal.SIGKILL)
    _, message = process.communicate(timeout=60)
    assert process.returncode == PEER_LOST, message
    if victim == "rank":
        assert "rank 1 on node-2 was ended by signal 9 (Killed)" in message, message
        assert "ended by signal 9" in (tessera.folder / "runs" / "job" / "logs" / "rank-001.txt").read_text()
    elif victim != "agent":
        assert "the connection to host node-2 is lost, and with it rank 1" in message, message
    else:
        assert re.search(r"the connection to host node-\d is lost, and with it rank \d", message), message
    assert "start over with --overwrite" in message, message
    assert not gone(tessera.folder)


@pytest.mark.parametrize("how", ["hosts", pytest.param("launcher", marks=needs_mpirun)])
def test_when_the_launcher_is_killed_the_far_ranks_end(tessera, hosts, job, how):
    where = ["--hosts", hosts.file()] if how == "hosts" else ["--launcher", f"{MPIRUN} -n 2"]
    process = started(tessera, job, *where)
    process.kill()
    process.communicate()
    assert not gone(tessera.folder)


@needs_mpirun
def test_when_another_launcher_is_killed_its_ranks_end(tessera, job):
    process = started(tessera, job, "--launcher", f"{MPIRUN} -n 2")
    (mpirun,) = [pid for pid, words in made.processes(tessera.folder, "launch-agent").items() if words[0] == "mpirun"]
    os.kill(mpirun, signal.SIGKILL)
    _, message = process.communicate(timeout=60)
    assert process.returncode == PEER_LOST and f"`{MPIRUN} -n 2` was ended by signal 9 before its ranks" in message, message
    assert not gone(tessera.folder)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("how", ["hosts", pytest.param("launcher", marks=needs_mpirun)])
def test_a_run_that_is_stopped_goes_on_where_it_was(tessera, hosts, job, how, stop):
    where = ["--hosts", hosts.file()] if how == "hosts" else ["--launcher", f"{MPIRUN} -n 2"]
    process = started(tessera, job, *where)
    process.send_signal(stop)
    time.sleep(0.02)
    process.send_signal(stop)  # as `timeout` and resource managers do, who signal a process and its group
    _, message = process.communicate(timeout=60)
    assert process.returncode == TRY_AGAIN, message
    made_steps = len(tessera.metrics("job"))
    assert f"stopped after step {made_steps} of 100000" in message and "error" not in message, message
    assert not gone(tessera.folder)
    # The command leads to the same hosts.
    (command,) = re.findall(r"go on from the last checkpoint with: tessera (.*)", message)
    tessera(*shlex.split(command), "--set", f"train.steps={made_steps + 2}")
    assert [line["step"] for line in tessera.metrics("job")] == list(range(made_steps + 2))


def test_one_far_rank_that_is_asked_to_stop_stops_all(tessera, hosts, job):
    process = started(tessera, job, "--hosts", hosts.file())
    os.kill(made.ranks(tessera.folder)[1], signal.SIGTERM)
    _, message = process.communicate(timeout=60)
    assert process.returncode == TRY_AGAIN and "stopped after step" in message, message
    assert not gone(tessera.folder)


def test_asked_twice_a_run_ends_at_once(tessera, hosts, job):
    process = started(tessera, job, "--hosts", hosts.file())
    # A rank that cannot answer must not keep the user waiting.
    os.kill(made.ranks(tessera.folder)[1], signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=30)
    assert process.returncode == TRY_AGAIN and "ended at once, as asked twice" in message, message
    assert not gone(tessera.folder)


def test_a_stop_before_all_hosts_have_answered(tessera, hosts, job):
    silent = tessera.write("silent", "#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    tessera.environment["TESSERA_SSH"] = str(silent)
    process = tessera.start(*train(job, "--hosts", hosts.file()))
    while not made.processes(tessera.folder, "600"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=30)
    assert process.returncode == TRY_AGAIN and "stopped before all hosts had answered" in message, message
    assert not gone(tessera.folder)


@pytest.mark.parametrize("how", ["hosts", pytest.param("launcher", marks=needs_mpirun)])
def test_the_secret_is_on_no_command_line(tessera, hosts, job, how):
    # What the launcher's command is started with, and who may read the file that it names.
    spy = tessera.write("spy", "#!/bin/sh\nfor word; do last=$word; done\ncp \"$last\" copied; stat -c %a \"$last\" > mode\nexec \"$@\"\n")
    spy.chmod(0o755)
    where = ["--hosts", hosts.file()] if how == "hosts" else ["--launcher", f"./spy {MPIRUN} -n 2"]
    process = started(tessera, job, *where)
    secrets = set()
    for pid in made.ranks(tessera.folder).values():
        (secret,) = [variable.split(b"=", 1)[1] for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                     if variable.startswith(b"TESSERA_SECRET=")]
        secrets.add(secret)
    (secret,) = secrets
    assert len(secret) == 64
    lines = made.command_lines().values()
    assert len(lines) > 4 and not any(secret in line for line in lines)
    if how == "launcher":
        assert (tessera.folder / "mode").read_text() == "600\n"
        assert (tessera.folder / "copied").read_bytes() == secret
        assert not list((tessera.folder / "runs").glob(".launch-*/secret"))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    kept = b"".join(path.read_bytes() for path in (tessera.folder / "runs").rglob("*") if path.is_file() and path.suffix in (".txt", ".yaml", ".json"))
    assert secret not in kept


def test_what_ranks_write_is_shown_behind_their_names_and_kept(tessera, hosts, job):
    tessera.environment["UCX_LOG_LEVEL"] = "info"  # each rank then writes some lines
    result = tessera(*train(job, "--hosts", hosts.file(), "--json"))
    shown = re.findall(r"^\[rank 1 @ node-2\] (.*UCX.*)", result.stderr, re.MULTILINE)
    logs = tessera.folder / "runs" / "job" / "logs"
    assert sorted(path.name for path in logs.iterdir()) == ["rank-000.txt", "rank-001.txt"]
    assert shown and all(line in (logs / "rank-001.txt").read_text().splitlines() for line in shown), result.stderr
    assert "[rank 0" not in result.stderr
    steps = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [line["step"] for line in steps if "loss" in line and "seconds" in line] == [0, 1, 2, 3]
    assert all(line in (tessera.folder / "runs" / "job" / "log.txt").read_text() for line in shown)


def test_a_terminal_has_one_line_that_renews_itself(tessera, hosts, job):
    master, slave = pty.openpty()
    environment = dict(tessera.environment, TERM="xterm")
    process = subprocess.Popen([BINARIES / "tessera", *map(str, train(job, "--hosts", hosts.file(), "--set", "train.steps=60"))], cwd=tessera.folder,
                               env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:
        pass  # the end of a terminal
    assert process.wait(timeout=60) == 0, shown.decode()
    assert shown.count(b"\r\x1b[K") > 3 and b"[rank" not in shown, shown.decode()
    kept = (tessera.folder / "runs" / "job" / "logs" / "rank-000.txt").read_text()
    assert "\x1b" not in kept and "\r" not in kept and "checkpoint of step 60" in kept, kept


def test_a_host_that_cannot_be_reached_is_named(tessera, hosts, job):
    file = tessera.write("hosts", "node-1\nno-such-host.invalid slots=4\n")
    result = tessera(*train(job, "--hosts", file), check=False)
    assert result.returncode == PEER_LOST, result.stderr
    assert re.search(r"hosts:2: host no-such-host.invalid cannot be reached: ssh: Could not resolve hostname", result.stderr), result.stderr
    config = hosts.folder / "refusing"
    config.write_text((hosts.folder / "config").read_text().replace(f"IdentityFile {hosts.folder}/key", "IdentityFile /nowhere"))
    tessera.environment["TESSERA_SSH"] = f"ssh -F {config}"
    result = tessera(*train(job, "--overwrite", "--hosts", hosts.file()), check=False)
    assert result.returncode == PEER_LOST and re.search(r"host node-\d cannot be reached: .*Permission denied", result.stderr), result.stderr
    tessera.environment["TESSERA_SSH"] = "/nowhere/ssh"
    result = tessera(*train(job, "--overwrite", "--hosts", hosts.file()), check=False)
    assert result.returncode == 3 and "there is no '/nowhere/ssh' on this host" in result.stderr and "openssh-client" in result.stderr, result.stderr
    assert not gone(tessera.folder)


def test_what_answers_and_is_no_agent_of_this_version_is_refused(tessera, hosts, job):
    def said_by(script):
        wrapper = tessera.write("wrapper", script)
        wrapper.chmod(0o755)
        tessera.environment["TESSERA_SSH"] = str(wrapper)
        result = tessera(*train(job, "--overwrite", "--hosts", hosts.file()), check=False)
        assert not gone(tessera.folder)
        return result
    loud = said_by(f'#!/bin/sh\necho Welcome to the lab\nexec {hosts.ssh} "$@"\n')
    assert loud.returncode == 3 and re.search(r"what answers on node-\d does not speak as an agent of Tessera", loud.stderr), loud.stderr
    assert "make .bashrc silent there" in loud.stderr, loud.stderr
    hello = json.dumps({"kind": "hello", "version": "9.9", "host": "old", "node": "", "address": "127.0.0.9", "port": 1, "index": 0, "count": 1, "cluster": ""})
    (tessera.folder / "hello").write_bytes(len(hello).to_bytes(4, "little") + hello.encode())
    other = said_by("#!/bin/sh\ncat hello -\n")
    assert other.returncode == 2 and "host old has version 9.9 of Tessera, and this is" in other.stderr, other.stderr


def test_hosts_that_are_too_few_and_files_that_are_wrong_are_refused(tessera, hosts, job):
    def refused(content):
        result = tessera(*train(job, "--overwrite", "--hosts", tessera.write("hosts", content)), check=False)
        assert result.returncode == 2, result.stderr
        return result.stderr
    assert "hosts: 1 host is listed, and the plan is for 2; expected at least 2 hosts" in refused("node-1\n")
    wrong = refused("node-1 slot=2\nnode-1 gpus=4\n\n# a comment\n-oProxyCommand=x\nnode-2 slots=none\n")
    for line in ("hosts:1: 'slot=2'", "did you mean slots=...?", "hosts:2: 'gpus=4'", "hosts:5: '-oProxyCommand=x' is no name of a host",
                 "hosts:6: slots=none", "expected HOST [slots=N] [address=ADDRESS]"):
        assert line in wrong, wrong
    place(tessera, [(1, 0), (1, 1)])
    assert "hosts:2: the plan puts 2 ranks on node-2, which has slots=1; expected slots=2 or more" in refused("node-1\nnode-2 slots=1 # few\n")


@needs_root
def test_a_host_without_tessera_or_the_folder_is_told_apart(tessera, hosts, job, tmp_path_factory):
    for hidden, code, words in [(BINARIES.resolve(), 3, r"host node-2 has no Tessera to run: .*not found"),
                                (tessera.folder, 3, rf"host \S+ does not see {tessera.folder}/runs/job/train.yaml, which its ranks need; expected the "
                                                    rf"folder {tessera.folder} on a file system that all hosts share")]:
        half = made.Hosts(tmp_path_factory.mktemp("hosts") / "half", hidden=hidden)
        try:
            tessera.environment["TESSERA_SSH"] = half.ssh
            result = tessera(*train(job, "--overwrite", "--hosts", half.file()), check=False)
            assert result.returncode == code and re.search(words, result.stderr), result.stderr
        finally:
            half.close()
    assert not gone(tessera.folder)


@needs_root
def test_a_host_without_the_text_says_so(tessera, hosts, job, tmp_path_factory):
    texts = tmp_path_factory.mktemp("texts").resolve()
    (texts / "plays.txt").write_text(SHAKESPEARE.read_text()[:200_000])
    half = made.Hosts(tmp_path_factory.mktemp("hosts") / "half", hidden=texts)
    try:
        tessera.environment["TESSERA_SSH"] = half.ssh
        result = tessera(*train(job, "--set", f"data.source={texts}/plays.txt", "--hosts", half.file()), check=False)
    finally:
        half.close()
    assert result.returncode == 3, result.stderr
    assert f"{texts}/plays.txt" in result.stderr and "this is what rank 1 on node-2 found" in result.stderr, result.stderr
    assert stat.S_ISDIR(os.stat(texts).st_mode) and not gone(tessera.folder)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    cluster = made.Slurm(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.close()


@pytest.mark.skipif(bool(made.Slurm.missing()), reason=made.Slurm.missing())
def test_slurm_starts_the_ranks_and_cancels_them(tessera, slurm, job):
    tessera.environment.update(slurm.environment)
    tessera(*train(job, "--set", "name=here"))
    tessera(*train(job, "--launcher", "srun --nodes 2 --ntasks-per-node 1"))
    assert trained(tessera) == trained(tessera, "here")
    # A host that the plan leaves without work may be among those that are started.
    place(tessera, [(1, 0), (1, 1)])
    shown = tessera(*train(job, "--overwrite", "--launcher", "srun --nodes 2 --ntasks-per-node 1"), check=False)
    assert shown.returncode == 0 and trained(tessera) == trained(tessera, "here"), shown.stderr
    process = tessera.start(*train(job, "--overwrite", "--launcher", "srun --nodes 2 --ntasks-per-node 1", *LONG))
    # The run of the same name that is replaced has its steps until then.
    while len(made.ranks(tessera.folder)) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    wait_for_step(tessera, "job", 5, process)
    slurm("scancel", *slurm("squeue", "--noheader", "--format=%i").stdout.split())
    _, message = process.communicate(timeout=90)
    assert process.returncode == TRY_AGAIN and "stopped after step" in message, message
    assert "[launcher] srun: " in message, message
    assert not gone(tessera.folder)


def load_netlab():
    loader = importlib.machinery.SourceFileLoader("netlab", str(REPOSITORY / "tools" / "netlab"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("netlab", loader))
    loader.exec_module(module)
    return module


netlab = load_netlab()
needs_lab = pytest.mark.skipif(bool(netlab.missing()), reason=netlab.missing())

# Starts its words on hosts 1 and 2 of a lab, as a launcher that reaches them would.
LAUNCHER = """#!/bin/sh
trap 'kill $(jobs -p)' TERM
export WORLD_SIZE=2
for rank in 0 1; do RANK=$rank ip netns exec {tag}h$((rank + 1)) unshare --uts sh -c 'hostname '"lab-$rank"'; exec "$@"' sh "$@" & done
wait
"""


@pytest.fixture
def lab(tessera, job, tmp_path_factory):
    """Three hosts with networks of their own: the user's, and two with sshd."""
    with netlab.Lab(3, gbit=[10]) as three:
        two = made.Hosts(tmp_path_factory.mktemp("lab") / "hosts", lab=three)
        tessera.environment.update(TESSERA_SSH=two.ssh, UCX_TLS="tcp")
        launcher = tessera.write("launcher", LAUNCHER.format(tag=three.tag))
        launcher.chmod(0o755)
        two.lab = three
        yield two
        two.close()


@needs_lab
@pytest.mark.parametrize("how", ["hosts", "launcher"])
def test_over_real_networks_ranks_meet_where_all_reach_rank_0(tessera, lab, job, how):
    tessera(*train(job, "--set", "name=here"))
    where = ["--hosts", lab.file()] if how == "hosts" else ["--launcher", "./launcher"]
    process = tessera.start(*train(job, *where), inside=lab.here)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 0, message
    assert trained(tessera) == trained(tessera, "here")
    assert not gone(tessera.folder)


@needs_lab
@pytest.mark.parametrize("how", ["hosts", "launcher"])
def test_when_a_network_goes_away_the_ranks_behind_it_end_themselves(tessera, lab, job, how):
    where = ["--hosts", lab.file()] if how == "hosts" else ["--launcher", "./launcher"]
    process = tessera.start(*train(job, *where, *LONG), inside=lab.here)
    wait_for_step(tessera, "job", 3, process)
    subprocess.run(["ip", "-n", lab.lab.namespace(2), "link", "set", "eth0", "down"], check=True)
    _, message = process.communicate(timeout=120)
    assert process.returncode == PEER_LOST, message
    assert "rank 1" in message, message
    # Its agent gives the launcher up after a minute without a word; nobody can tell it anything.
    assert not gone(tessera.folder, 90)
