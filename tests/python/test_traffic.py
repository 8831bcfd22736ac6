"""A run writes what its ranks have sent beside what its plan says."""
import json

from conftest import SHAKESPEARE


def test_a_run_says_what_it_has_sent_beside_what_its_plan_says(tessera):
    yaml = tessera.write("train.yaml", {
        "name": "sent", "model": {"arch": "llama", "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 4, "ffn": 96, "seq": 32, "vocab": 300},
        "data": {"source": str(SHAKESPEARE), "tokenizer": {"kind": "bytes"}}, "train": {"steps": 3, "global_batch": 8, "eval": {"sequences": 4}},
        "cluster": {"local": {"devices": 4, "threads": 1}}, "parallel": {"dp": 2, "pp": 2, "tp": 1, "micro_batches": 2}})
    tessera("train", yaml, "--no-measure")
    traffic = json.loads((tessera.folder / "runs" / "sent" / "traffic.json").read_text())
    assert traffic["steps"] == 3
    assert set(traffic["dimensions"]) == {"data", "pipeline"}
    for name, sent in traffic["dimensions"].items():
        assert (sent["messages"], sent["collectives"]) == (sent["planned"]["messages"], sent["planned"]["collectives"]), name
        assert sent["planned"]["bytes"] > 0
        assert sent["bytes"] == 0, "ranks of one host exchange through shared memory"
    # Two micro-batches, forward and backward, of two replicas, in three steps.
    assert traffic["dimensions"]["pipeline"]["messages"] == 24
