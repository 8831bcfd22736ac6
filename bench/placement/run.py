"""Trains a mixture of experts, spread over two emulated hosts, on two texts of different kinds: with samples where they are drawn, with samples placed, and
with samples and experts placed.

    python bench/placement/run.py [--bin build/release/bin] [--steps 160] [--gbit 0.5] [--json]

Two hosts of two ranks of one core's half each; the ranks of a host exchange through shared memory, so that the bytes counted for experts are those that cross.
Late steps are those of the last third of a run, of which medians and mean losses are shown; the whole run's bytes stand beside them. First the solvers alone,
on routing of a known locality (tessera_bench_placement). Needs root (tools/netlab).
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from lab import checked, netlab_or_exit  # noqa: E402

MODEL = {"arch": "mixtral", "hidden": 128, "layers": 4, "heads": 4, "kv_heads": 4, "ffn": 128, "experts": 16, "experts_per_token": 2, "seq": 128, "vocab": 1024}
HOSTS, PER_HOST, CPU, PORT = 2, 2, 1.0, 29500
KINDS = ["off", "samples", "samples_and_experts"]
CLUSTER = f"name: two\ngroups:\n  - {{name: hosts, device: 'cpu:zen4', cores: {PER_HOST}, memory: 8 GiB, nodes: {HOSTS}, inside: shm, network: tcp-1g}}\n"


def write_texts(folder):
    """Shakespeare, and as much of this project's own source."""
    plays = (ROOT / "examples" / "shakespeare" / "shakespeare.txt").read_text()
    sources = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.[hc]pp")))
    length = min(len(plays), len(sources))
    (folder / "plays.txt").write_text(plays[:length])
    (folder / "sources.txt").write_text(sources[:length])


def job_of(kind, steps, folder):
    placement = {} if kind == "off" else {"placement": {"kind": kind}}
    return {"name": "placement", "model": MODEL, "cluster": str(folder / "cluster.yaml"),
            "data": {"sources": [{"path": str(folder / "plays.txt"), "weight": 1}, {"path": str(folder / "sources.txt"), "weight": 1}],
                     "tokenizer": {"kind": "bpe", "vocab": MODEL["vocab"]}},
            "parallel": {"dp": 4, "tp": 1, "pp": 1, "ep": 4, "zero": 0, "threads": 1, "micro_batches": 1},
            "train": {"steps": steps, "global_batch": 32, "optimizer": {"kind": "adamw", "lr": 2e-3}, "schedule": {"kind": "constant"}, "eval": {"sequences": 64}, **placement}}


def trained(lab, tessera, kind, steps, stop, folder, environment):
    """Seconds of each step, the losses and traffic.json of a run of `stop` steps."""
    job, plan, run = folder / f"{kind}.yaml", folder / "plan.json", folder / "run"
    job.write_text(json.dumps(job_of(kind, steps, folder)))
    if not plan.exists():
        checked([tessera, "plan", job, "-o", plan], environment)
        chosen = json.loads(plan.read_text())
        for rank, place in enumerate(chosen["ranks"]):
            place.update(node=rank // PER_HOST, device=rank % PER_HOST)
        plan.write_text(json.dumps(chosen))
    shutil.rmtree(run, ignore_errors=True)
    words = [tessera, "worker", str(job), "--plan", str(plan), "--run", str(run), "--world", str(HOSTS * PER_HOST), "--set", f"train.steps={stop}",
             "--rendezvous", f"{lab.address(0)}:{PORT}"]
    with open(folder / "log", "w+") as log:
        ranks = [lab.popen(rank // PER_HOST, [*words, "--rank", str(rank)], {**environment, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)
                 for rank in range(HOSTS * PER_HOST)]
        if any([rank.wait() for rank in ranks]):
            log.seek(0)
            sys.exit(f"{kind}: {log.read()}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["seconds"] for line in lines], [line["loss"] for line in lines], json.loads((run / "traffic.json").read_text())


def row_of(lab, tessera, kind, steps, folder, environment):
    begin = steps - steps // 3
    _, _, early = trained(lab, tessera, kind, steps, begin, folder, environment)
    seconds, losses, traffic = trained(lab, tessera, kind, steps, steps, folder, environment)
    sent, before = traffic["dimensions"]["expert"]["bytes"], early["dimensions"]["expert"]["bytes"]
    placement = traffic.get("placement", {})
    return {"kind": kind, "expert_bytes_a_step": sent / steps, "expert_bytes_a_late_step": (sent - before) / (steps - begin), "late_step_s": statistics.median(seconds[begin:]),
            "late_loss": statistics.mean(losses[begin:]), "placement": placement, "placement_bytes_a_step": traffic["dimensions"].get("placement", {}).get("bytes", 0) / steps}


def main():
    parser = argparse.ArgumentParser(prog="./dev bench placement", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--gbit", type=float, default=0.5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    netlab = netlab_or_exit()
    solved = [json.loads(line) for line in checked([os.path.join(arguments.bin, "tessera_bench_placement")], dict(os.environ)).splitlines()]
    tessera = os.path.join(arguments.bin, "tessera")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder, environment = pathlib.Path(scratch), dict(os.environ, TESSERA_CACHE=os.path.join(scratch, "cache"))
        write_texts(folder)
        (folder / "cluster.yaml").write_text(CLUSTER)
        for kind in KINDS:
            with netlab.Lab(HOSTS, [arguments.gbit], [CPU]) as lab:
                rows.append(row_of(lab, tessera, kind, arguments.steps, folder, environment))
            print(f"{kind}: {rows[-1]['late_step_s']:.3f} s", file=sys.stderr)
    fixed = rows[0]
    if arguments.json:
        print(json.dumps({"gbit": arguments.gbit, "solved": solved, "rows": rows}))
        return
    print("the solvers alone: copies that cross of all")
    print(f"{'hosts':>5}{'samples':>9}{'blocks':>8}{'experts':>9}{'locality':>10}{'fixed':>8}{'samples':>9}{'both':>7}{'least':>7}{'ms samples':>12}{'ms experts':>12}")
    for row in solved:
        print(f"{row['hosts']:5}{row['samples']:9}{row['blocks']:8}{row['experts']:9}{row['locality']:10.1f}{row['fixed']:8.3f}{row['samples_placed']:9.3f}{row['both_placed']:7.3f}"
              f"{row['least']:7.3f}{1e3 * row['seconds_for_samples']:12.2f}{1e3 * row['seconds_for_experts_of_a_block']:12.3f}")
    print(f"\n{HOSTS} hosts of {PER_HOST} ranks, {arguments.gbit:g} Gbit/s, ep 4, {arguments.steps} steps; MB that cross for experts in a step, of all steps and of the last third")
    print(f"{'placed':<22}{'all':>7}{'late':>7}{'less':>7}{'step s':>9}{'faster':>8}{'predicted / counted':>21}{'solving ms':>12}{'moves':>7}{'loss':>8}")
    for row in rows:
        placement = row["placement"]
        steps = max(1, placement.get("placed_steps", 0))
        ratio = placement["predicted_bytes"] / placement["crossed_bytes_placed"] if placement.get("crossed_bytes_placed") else float("nan")
        print(f"{row['kind']:<22}{row['expert_bytes_a_step'] / 1e6:7.2f}{row['expert_bytes_a_late_step'] / 1e6:7.2f}"
              f"{1 - row['expert_bytes_a_late_step'] / fixed['expert_bytes_a_late_step']:7.1%}{row['late_step_s']:9.3f}{1 - row['late_step_s'] / fixed['late_step_s']:8.1%}"
              f"{ratio:21.3f}{1e3 * placement.get('solving_seconds', 0) / steps:12.2f}{placement.get('moved_experts', 0):7}{row['late_loss']:8.3f}")


if __name__ == "__main__":
    main()
