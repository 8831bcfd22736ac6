"""A real sample of Criteo's display advertising log: 200 lines to train on and 200 to test on, which xLearn ships in its source distribution."""

import json
import subprocess
import sys
import tarfile

import pytest
from conftest import REPOSITORY

NO_KEY = 2**64 - 1
XLEARN = "xlearn==0.40a1"
INSIDE = "xlearn-0.40a1/compile/demo/classification/criteo_ctr/"
FIELDS, IDS = 18, 11  # of a field at most


@pytest.fixture(scope="session")
def sample():
    """The lines of the two files. They are Criteo's, and come from the package index, once."""
    folder = REPOSITORY / ".cache" / "xlearn"
    if not any(folder.glob("xlearn-*.tar.gz")):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
        fetched = subprocess.run([*pip, "--dest", str(folder), XLEARN], capture_output=True, text=True, timeout=300)
        if fetched.returncode != 0:
            pytest.skip(f"the package index gives no {XLEARN}: {fetched.stderr.strip().splitlines()[-1]}")
    with tarfile.open(next(folder.glob("xlearn-*.tar.gz"))) as archive:
        return [archive.extractfile(INSIDE + f"small_{part}.txt").read().decode() for part in ("train", "test")]


def test_a_real_sample_of_criteo_is_read_and_trained_on(tessera, sample):
    (tessera.folder / "criteo").mkdir()
    for name, lines in zip(("1_train.txt", "2_test.txt"), sample):
        tessera.write(f"criteo/{name}", lines)
    yaml = tessera.write("train.yaml", {
        "name": "criteo", "model": {"arch": "deepfm", "tables": FIELDS, "lookups": IDS, "dense": 0, "dim": 4, "hidden": [16]},
        "data": {"source": "criteo", "format": "libffm", "split": {"train": 0.5}},
        "train": {"steps": 100, "global_batch": 20, "seed": 1, "optimizer": {"kind": "adamw", "lr": 0.003}, "eval": {"sequences": 200}},
        "parameter_servers": {"optimizer": {"kind": "adagrad", "lr": 0.02}, "initializer": {"kind": "uniform", "scale": 0.01}},
        "cluster": {"local": {"devices": 2, "threads": 1}}, "parallel": {"dp": 2, "pp": 1, "tp": 1},
    })
    known = {}
    for line in sample[0].splitlines():
        label, *triples = line.split()
        ids = [[] for _ in range(FIELDS)]
        for field, index in (map(int, triple.split(":")[:2]) for triple in triples):
            ids[field].append(field << 48 | index)
        known.setdefault(tuple(key for of_field in ids for key in of_field + [NO_KEY] * (IDS - len(of_field))), set()).add(int(label))
    read = [json.loads(batch) for batch in tessera("data", "batch", yaml, "--count", 10, "--json").stdout.splitlines()]
    samples = [(tuple(keys), label) for batch in read for keys, label in zip(batch["keys"], batch["labels"])]
    assert len(samples) == 200 and {keys for keys, _ in samples} == set(known)
    assert all(label in known[keys] for keys, label in samples)

    tessera("train", yaml, "--no-measure")
    losses = [line["loss"] for line in tessera.metrics("criteo")]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    evaluation = tessera.evaluations("criteo")[-1]
    print(f"training loss {losses[0]:.3f}, then {losses[-1]:.3f}; on the other 200 lines {evaluation['validation_loss']:.3f}, AUC {evaluation['auc']:.3f}")
    # So few lines teach little of the others.
    assert 0 < evaluation["auc"] < 1 and 0 < evaluation["validation_loss"] < 2
