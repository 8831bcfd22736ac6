"""Compares Tessera's search with Hetu-Galvatron's on Galvatron's own inputs, by Galvatron's own cost model.

    python bench/planner/run.py [--bin build/release/bin] [--full] [--only N ...] [--json]

Galvatron 2.4.0 comes from the package index into .cache/galvatron-2.4.0 (its search only: no torch, no accelerator). Both run one
setting at a time and at the same priority. Its plan is priced by Tessera's formulas and Tessera's by Galvatron's code: both differences
are printed. --full adds the settings that take Galvatron ten minutes and more. A second table holds recorded answers of
Galvatron's YAML-configured release, which the package index does not have, and says how they came about (answers_2.4.1.json).
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from packages import environment  # noqa: E402

COMMON = ["SEQ_LENGTH=2048", "search_engine.profiling_info.time_profile_mode=static"]
# nodes, devices per node, GB, batch, micro-batches (None: searched), Ulysses beside tensor parallelism
SETTINGS = [(1, 4, 38, 16, 8, True), (1, 8, 16, 32, 16, True), (1, 8, 20, 16, 4, True), (1, 8, 24, 64, 32, False), (2, 8, 24, 64, 16, False),
            (1, 8, 38, 64, 16, False), (1, 8, 38, 128, 32, False)]
RECORDED = json.loads((HERE / "answers_2.4.1.json").read_text())
FULL = [(1, 8, 38, 64, None, False), (1, 8, 38, 64, None, True)]


def install():
    # Its dependencies (torch, transformers, ...) are for training; the search needs none of them.
    return environment("galvatron-2.4.0", ["numpy", "scipy", "tqdm"], ["--no-deps", "hetu-galvatron==2.4.0"])


def copy_inputs(folder):
    """The shipped inputs; collective times by message size were shipped for 8 devices alone, and stand in for the others."""
    shutil.copytree(HERE / "inputs", folder)
    for other in ("1nodes_4gpus", "2nodes_8gpus"):
        shutil.copy(folder / "sp_time_1nodes_8gpus_per_node.json", folder / f"sp_time_{other}_per_node.json")


def galvatron(python, folder, setting, **more):
    nodes, devices, memory, batch, chunks, ulysses = setting
    with tempfile.TemporaryDirectory() as log:
        settings = {"num_nodes": nodes, "num_gpus_per_node": devices, "memory_constraint": memory, "settle_bsz": batch,
                    "settle_chunk": chunks or -1, "sp_space": "tp+sp" if ulysses else "tp"}
        job = pathlib.Path(log) / "job.json"
        job.write_text(json.dumps({"folder": f"{folder}/", "log": f"{log}/out", "settings": settings, **more}))
        result = subprocess.run([str(python), str(HERE / "peer.py"), str(job)], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"Galvatron failed on {setting}:\n{result.stderr}")
    return json.loads(result.stdout)


def tessera(binary, folder, setting, *more, release="2.4.0"):
    nodes, devices, memory, batch, chunks, ulysses = setting
    words = [f"NUM_NODES={nodes}", f"NUM_GPUS_PER_NODE={devices}", f"MEMORY_CONSTRAINT={memory}", f"settle_bsz={batch}"]
    words += [f"settle_chunk={chunks}"] if chunks else []
    words += [] if ulysses else ["disable_sp=1"]
    command = [str(binary), "plan", "--galvatron", str(folder / "search_dist.yaml"), *COMMON, *words, "--galvatron-release", release, "--json", *more]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
    return json.loads(result.stdout)


def searched(binary, folder, setting, release):
    answers = [tessera(binary, folder, setting, release=release) for _ in range(5)]
    return {**answers[0], "search_s": statistics.median(answer["search_s"] for answer in answers)}


def name_of(setting):
    nodes, devices, memory, batch, chunks, ulysses = setting
    return f"{nodes}x{devices} devices, {memory} GB, batch {batch}, {chunks or 'any'} micro-batches, tp{'+ulysses' if ulysses else ''}"


def compare(python, binary, folder, setting):
    ours = searched(binary, folder, setting, "2.4.0")
    theirs = galvatron(python, folder, setting)
    row = {"setting": name_of(setting), "tessera_s": ours["cost_s"], "tessera_search_s": ours["search_s"], "galvatron_s": theirs.get("cost_s"),
           "galvatron_search_s": theirs["search_s"]}
    priced = galvatron(python, folder, setting, evaluate=[{**ours["plan"], "counted_split": ours["counted_split"]}])["evaluated"][0]
    row["tessera_plan_by_galvatron_s"] = priced["seconds"]
    row["difference_on_tessera_plan"] = abs(priced["seconds"] / ours["cost_s"] - 1)
    if theirs.get("config"):
        path = folder / "answer.json"
        path.write_text(json.dumps(theirs["config"]))
        row["galvatron_plan_by_tessera_s"] = tessera(binary, folder, setting, "--evaluate", str(path))["cost_s"]
        row["difference_on_galvatron_plan"] = abs(row["galvatron_plan_by_tessera_s"] / theirs["cost_s"] - 1)
    return row


def recorded(binary, folder):
    rows = []
    for answer in RECORDED["answers"]:
        setting = (answer["nodes"], answer["devices_per_node"], answer["memory_gb"], answer["batch"], None, True)
        ours = searched(binary, folder, setting, "2.4.1")
        rows.append({"setting": name_of(setting), "galvatron_s": answer["cost_s"], "galvatron_search_s": answer["search_s"], "tessera_s": ours["cost_s"],
                     "tessera_search_s": ours["search_s"]})
    return rows


def print_rows(title, rows):
    print(f"\n{title}\n{'':<62}{'Galvatron':>20}{'Tessera':>22}{'ratio':>8}")
    for row in rows:
        theirs = f"{row['galvatron_s']:.4f} s" if row["galvatron_s"] else "nothing fits"
        ratio = f"{row['tessera_s'] / row['galvatron_s']:.4f}" if row["galvatron_s"] else ""
        print(f"{row['setting']:<62}{theirs:>11}{row['galvatron_search_s']:>7.1f} s{row['tessera_s']:>11.4f} s{row['tessera_search_s'] * 1e3:>6.1f} ms{ratio:>8}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--full", action="store_true", help="also the settings that take Galvatron ten minutes and more")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of settings, from 0")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    binary = pathlib.Path(arguments.bin).resolve() / "tessera"
    settings = SETTINGS + (FULL if arguments.full else [])
    settings = [settings[i] for i in arguments.only] if arguments.only else settings
    python = install()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / "inputs"
        copy_inputs(folder)
        rows = []
        for setting in settings:
            print(f"{name_of(setting)} ...", file=sys.stderr)
            rows.append(compare(python, binary, folder, setting))
        out = {"cores": os.cpu_count(), "galvatron_2_4_0": rows, "galvatron_2_4_1_recorded": recorded(binary, folder),
               "recorded_source": RECORDED["source"]}
    if arguments.json:
        print(json.dumps(out))
        return
    print(f"Llama-2-7B, sequence length 2048, bf16, ZeRO-2 by default; {out['cores']} cores; seconds of a step, and of the search")
    print_rows("Galvatron 2.4.0, run now", rows)
    worst = max(row.get(key, 0) for row in rows for key in ("difference_on_tessera_plan", "difference_on_galvatron_plan"))
    print(f"the two implementations of the cost model differ by at most {worst:.1e} on these {len(rows)} plans of each")
    print_rows("Galvatron 2.4.1: recorded answers, beside Tessera's search run now", out["galvatron_2_4_1_recorded"])
    print(f"recorded: {out['recorded_source']}")


if __name__ == "__main__":
    main()
