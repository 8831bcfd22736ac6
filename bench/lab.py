"""The emulated hosts of tools/netlab, for benchmarks that run over links."""
import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def load_netlab():
    loader = importlib.machinery.SourceFileLoader("netlab", str(ROOT / "tools" / "netlab"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("netlab", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


def netlab_or_exit():
    """The module, where hosts can be emulated."""
    netlab = load_netlab()
    problem = netlab.missing()
    if problem:
        sys.exit(f"emulated hosts are not possible here: {problem}")
    return netlab


def checked(words, environment, folder=None):
    """What a command prints, run in the folder; where it fails, this program ends with its errors."""
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return done.stdout


def planned(tessera, folder, name, job, environment, profile=None):
    """Writes a job (a dictionary) into the folder and lets Tessera plan it: the paths of both files."""
    path, plan = folder / f"{name}.yaml", folder / f"{name}.json"
    path.write_text(json.dumps(job))
    checked([tessera, "plan", path, "-o", plan, *(["--profile", profile] if profile else [])], environment)
    return path, plan


def trained(tessera, job, plan, environment):
    """Trains under the plan on this host, in place of an earlier run: the run's folder, beside the job's file."""
    checked([tessera, "train", job, "--plan", plan, "--no-measure", "--overwrite"], environment, job.parent)
    return job.parent / "runs" / json.loads(job.read_text())["name"]


def cluster_of_hosts(path, hosts, gbit):
    """Writes the file of a cluster of hosts of one core each, of which profiles say how fast they are."""
    link = {"name": "lab", "bandwidth": f"{gbit:g} Gbit/s", "latency": "100 us", "shared": True}
    path.write_text(json.dumps({"name": path.stem, "groups": [{"name": "hosts", "nodes": hosts, "devices_per_node": 1, "inside": "shm", "network": link, "device": {
        "name": "host", "vendor": "cpu", "peak": {"fp32": "50 GFLOP/s"}, "memory": "8 GiB", "memory_bandwidth": "10 GB/s", "cores": 1}}]}))
    return str(path)


def profiled(tessera, path, job, seconds, environment, lab=None):
    """Measures on emulated hosts what the plans of a job (a dictionary) are predicted from, into `path`, unless it is there. `lab`: `hosts`, `gbit` and `cpu` as tools/netlab
    takes them, where the job does not say so itself."""
    lab = lab or job["cluster"]["lab"]
    if not path.exists():
        yaml = path.with_suffix(".yaml")
        yaml.write_text(json.dumps({key: value for key, value in job.items() if key != "parallel"}))
        launcher = f"{sys.executable} {ROOT / 'tools' / 'netlab'} --hosts {lab['hosts']} --gbit {lab['gbit']} --cpu {lab['cpu']} --"
        print(checked([tessera, "profile", yaml, "--seconds", seconds, "--launcher", launcher, "-o", path], environment), file=sys.stderr)
    return path


def simulated(tessera, job, plan, profile, environment):
    """The trace of one step against a clock."""
    trace = plan.with_suffix(".trace.json")
    checked([tessera, "simulate", job, "--plan", plan, "--profile", profile, "--trace", trace], environment)
    return json.loads(trace.read_text())


PORT = 29500


def worker_words(tessera, job, plan, run, steps):
    return [tessera, "worker", str(job), "--plan", str(plan), "--run", str(run), "--set", f"train.steps={steps}"]


def seconds_of(ranks, log, run):
    """Waits for the ranks of a run: seconds of each step."""
    if any([rank.wait() for rank in ranks]):
        log.seek(0)
        sys.exit(f"{run}: {log.read()}")
    return [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def train_on_hosts(lab, tessera, job, plan, run, steps, environment, more=(), hosts=None):
    """Trains with one rank on each of these hosts of the lab, or on all, one thread each; `run` is made anew and keeps the memory of its ranks. Seconds of each step."""
    hosts = range(lab.hosts) if hosts is None else hosts
    words = [*worker_words(tessera, job, plan, run, steps), "--world", str(len(hosts)), "--rendezvous", f"{lab.address(hosts[0])}:{PORT}", *more]
    log = open(f"{run}.log", "w+")
    shutil.rmtree(run, ignore_errors=True)
    ranks = [lab.popen(host, [*words, "--rank", str(rank)], {**environment, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log) for rank, host in enumerate(hosts)]
    return seconds_of(ranks, log, run)


def train_alone_on_hosts(lab, tessera, job, plan, run, steps, environment):
    """Trains on all hosts of the lab at once, on each by itself in a folder of `run`, with one thread. Seconds of each host's steps."""
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    started = []
    for host in range(lab.hosts):
        own, log = run / str(host), open(run / f"{host}.log", "w+")
        words = [*worker_words(tessera, job, plan, own, steps), "--world", "1", "--rank", "0", "--rendezvous", f"{lab.address(host)}:{PORT}"]
        started.append(([lab.popen(host, words, {**environment, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)], log, own))
    return [seconds_of(*of) for of in started]


class Failed(SystemExit):
    """What a program on the hosts said as it failed. Where nobody takes it, this program ends with those words."""


ALLOCATOR = {"LD_PRELOAD": "libjemalloc.so.2", "MALLOC_CONF": "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1,lg_extent_max_active_fit:64"}  # as nn/memory.cpp has it


def python_on_hosts(lab, words, log, environment=None):
    """Runs a program of PyTorch's with one rank on each host of the lab, one thread and Tessera's allocator each: what rank 0 prints. Raises Failed."""
    log = open(log, "w+")
    extra = {**ALLOCATOR, **(environment or {}), "WORLD_SIZE": str(lab.hosts), "MASTER_ADDR": lab.address(0), "MASTER_PORT": str(PORT), "OMP_NUM_THREADS": "1"}
    ranks = [lab.popen(rank, [sys.executable, *map(str, words)], {**extra, "RANK": str(rank)}, stdout=subprocess.PIPE if rank == 0 else log, stderr=log, text=True)
             for rank in range(lab.hosts)]
    output = ranks[0].communicate()[0]
    if any([rank.wait() for rank in ranks]):
        log.seek(0)
        raise Failed(f"{words[0]}: {log.read()}")
    return output
