"""Plans whose stages, and blocks within a stage, are cut differently, from the commands."""

import json
from pathlib import Path

import pytest

from conftest import SHAKESPEARE

JOB = f"""name: layouts
model: {{arch: llama, hidden: 64, layers: 4, heads: 4, kv_heads: 2, ffn: 128, seq: 32, vocab: 512}}
data: {{source: {SHAKESPEARE}, tokenizer: {{kind: bpe, vocab: 512}}}}
train: {{steps: 6, global_batch: 8, optimizer: {{kind: adamw, lr: 1.0e-3}}, eval: {{every: 3, sequences: 12}}}}
parallel: {{dp: 4, pp: 1, tp: 1, micro_batches: 2}}
cluster: {{local: {{devices: 4, threads: 1}}}}
"""
ONE = ("--set", "parallel={dp: 1, pp: 1, tp: 1}", "--set", "cluster={local: {devices: 1, threads: 1}}")

# Two replicas before stages of one rank each.
STAGES = [{"ranks": [0, 1], "blocks": [{"first": 0, "last": 3, "dp": 2, "tp": 1, "zero": 1, "recompute": "none"}]},
          {"ranks": [2], "blocks": [{"first": 3, "last": 4, "dp": 1, "tp": 1, "zero": 0, "recompute": "none"}]},
          {"ranks": [3], "blocks": [{"first": 4, "last": 6, "dp": 1, "tp": 1, "zero": 0, "recompute": "none"}]}]
RUNS = [{"ranks": [0, 1], "shares": [{"ranks": 1, "samples": 3}, {"ranks": 1, "samples": 1}],
         "blocks": [{"first": 0, "last": 3, "dp": 2, "tp": 1, "zero": 1, "recompute": "none"}]},
        {"ranks": [2, 3], "blocks": [{"first": 3, "last": 4, "dp": 2, "tp": 1, "zero": 2, "recompute": "none"},
                                     {"first": 4, "last": 6, "dp": 1, "tp": 2, "zero": 0, "recompute": "full"}]}]


def losses(tessera, run):
    return [line["loss"] for line in tessera.metrics(run)]


@pytest.mark.parametrize("stages", [STAGES, RUNS], ids=["widths", "runs"])
def test_a_plan_that_cuts_stages_differently_trains_evaluates_and_goes_on(tessera, stages):
    yaml = tessera.write("train.yaml", JOB)
    tessera("train", yaml, "--no-measure", *ONE, "--set", "name=one")
    tessera("plan", yaml, "-o", "plan.json")
    plan = json.loads((Path(tessera.folder) / "plan.json").read_text())
    del plan["predicted"]
    tessera.write("uneven.json", {**plan, "stages": stages})
    assert "step" in tessera("simulate", yaml, "--plan", "uneven.json").stdout

    tessera("train", yaml, "--no-measure", "--plan", "uneven.json")
    assert losses(tessera, "layouts") == pytest.approx(losses(tessera, "one"), rel=1e-5)
    evaluated = [[line["validation_loss"] for line in tessera.evaluations(run)] for run in ("layouts", "one")]
    assert len(evaluated[0]) == 2 and evaluated[0] == pytest.approx(evaluated[1], rel=1e-5)

    # What was saved under the plan is evaluated and generated from by one process, and goes on under any plan.
    said = [json.loads(tessera("eval", f"runs/{run}", "--json").stdout)["loss"] for run in ("layouts", "one")]
    assert said[0] == pytest.approx(said[1], rel=1e-5)
    assert len(tessera("generate", "runs/layouts", "--prompt", "To be", "--max-tokens", 8).stdout) > len("To be")
    for run, words in (("one", ONE), ("layouts", ("--set", "parallel={dp: 2, pp: 2, tp: 1}"))):
        tessera("train", yaml, "--no-measure", "--resume", *words, "--set", f"name={run}", "--set", "train.steps=8")
    assert len(losses(tessera, "layouts")) == 8 and losses(tessera, "layouts") == pytest.approx(losses(tessera, "one"), rel=1e-4)
