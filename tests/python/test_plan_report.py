"""The page of a plan: well-formed, whole, and on its own."""

import json
import re

import pytest

from conftest import Page

JOB = """name: job
model: {arch: llama, hidden: 1024, layers: 8, heads: 8, kv_heads: 8, ffn: 4096, seq: 512, vocab: 8192}
data: {source: synthetic}
train: {global_batch: 64, precision: bf16}
"""
CLUSTER = """name: "<b>&</script>"
groups:
  - {name: gpu, device: a100-80, nodes: 2, devices_per_node: 4, inside: nvlink3, network: rdma-100g}
"""
def page_of(tessera, *arguments):
    job, cluster = tessera.write("train.yaml", JOB), tessera.write("cluster.yaml", CLUSTER)
    tessera("plan", job, "--cluster", cluster, "--html", "plan.html", *arguments)
    text = (tessera.folder / "plan.html").read_text()
    page = Page("plan")
    page.feed(text)
    page.close()
    return text, page, json.loads(page.data)


@pytest.mark.parametrize("parallel", ["auto", "{dp: 8}", "{pp: 4, dp: 2, micro_batches: 32, schedule: 1f1b}"])
def test_page_holds_every_rank_and_stage(tessera, parallel):
    text, page, data = page_of(tessera, "--set", f"parallel={parallel}", "-o", "plan.json")
    plan = json.loads((tessera.folder / "plan.json").read_text())
    assert data["facts"]["workers"] == len(plan["ranks"]) == sum(column["count"] for column in data["mosaic"]["columns"])
    assert sum(row["count"] for row in data["memory"]) == len(plan["ranks"])
    stages = set(range(len(plan["stages"])))
    assert {row["stage"] for row in data["mosaic"]["rows"]} == stages
    assert {stage for row in data["timeline"]["rows"] for stage in row["stages"]} == stages
    assert sum(row["blocks"] for row in data["mosaic"]["rows"]) == 10
    for row in data["memory"]:
        assert sum(size for _, size in row["parts"]) == row["bytes"]
    assert data["facts"]["step"] == plan["predicted"]["step_seconds"]
    # What the script draws into is there.
    used = set(re.findall(r"(?:at|chart)\('([a-z-]+)'", text))
    assert used and used <= set(page.ids)


def test_page_stands_alone(tessera):
    text, _, data = page_of(tessera)
    assert data["facts"]["cluster"] == "<b>&</script>"
    assert set(re.findall(r"https?://[^\s'\"]*", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text and "url(" not in text


def test_many_micro_batches_are_cut_short(tessera):
    _, _, data = page_of(tessera, "--set", "parallel={pp: 4, dp: 2, micro_batches: 32, schedule: 1f1b}")
    begin, end = data["timeline"]["cut"]
    assert 0 < begin < end < 1
    for row in data["timeline"]["rows"]:
        assert row["spans"]
        assert not any(begin < span[1] and span[2] < end for span in row["spans"])


def test_page_that_cannot_be_written(tessera):
    job, cluster = tessera.write("train.yaml", JOB), tessera.write("cluster.yaml", CLUSTER)
    result = tessera("plan", job, "--cluster", cluster, "--html", "train.yaml/plan.html", check=False)
    assert result.returncode == 4
    assert "cannot write train.yaml/plan.html: Not a directory" in result.stderr
