"""Documents of very different lengths, each a sample, through the commands."""
import json
import random


def job(tessera, name, **parallel):
    drawn = random.Random(1)
    lines = [json.dumps({"text": "".join(drawn.choices("abc de", k=500 if drawn.random() < 0.1 else drawn.randint(5, 90)))}) for _ in range(300)]
    return tessera.write(f"{name}.yaml", {
        "name": name, "model": {"arch": "llama", "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 4, "ffn": 96, "seq": 256, "vocab": 300},
        "data": {"source": str(tessera.write("texts.jsonl", "\n".join(lines) + "\n")), "tokenizer": {"kind": "bytes"}, "lengths": "documents"},
        "train": {"steps": 4, "global_batch": 16, "eval": {"sequences": 8}},
        "cluster": {"local": {"devices": 4, "threads": 1}}, "parallel": parallel})


def test_groups_that_fit_the_lengths_train_the_model_of_one_device(tessera):
    yaml = job(tessera, "fitting", dp=2, cp=2, micro_batches=8)
    checked = json.loads(tessera("verify", yaml, "--steps", 3, "--json").stdout)
    assert checked["agrees"] and checked["steps"] == 3


def test_a_run_goes_on_with_the_samples_of_its_step(tessera):
    whole, halves = (job(tessera, name, dp=1, cp=4, micro_batches=16) for name in ("whole", "halves"))
    tessera("train", whole, "--no-measure")
    tessera("train", halves, "--no-measure", "--set", "train.steps=2")
    tessera("train", halves, "--no-measure", "--resume")
    assert [row["tokens"] for row in tessera.metrics("whole")] == [row["tokens"] for row in tessera.metrics("halves")]
    assert len({row["tokens"] for row in tessera.metrics("whole")}) > 1
    plan = json.loads((tessera.folder / "runs" / "whole" / "plan.json").read_text())
    assert [group["degree"] for group in plan["lengths"]["groups"]] == [1, 2, 4]
    traffic = json.loads((tessera.folder / "runs" / "whole" / "traffic.json").read_text())
    assert traffic["dimensions"]["context"]["messages"] > 0
    assert all("planned" not in sent for sent in traffic["dimensions"].values())


def test_a_plan_is_chosen_for_the_lengths_of_the_documents(tessera):
    yaml = job(tessera, "chosen", dp=1)
    auto = ("--set", "parallel=auto")
    # Without a profile, prices are a data sheet's at the processor's frequency, which is another one a second later.
    tessera("profile", yaml, "--seconds", "1")
    plan = json.loads(tessera("plan", yaml, *auto, "--json").stdout)["plan"]
    # Nine of ten have 5 to 90 letters, the others 256, and each an end.
    assert 50 < plan["lengths"]["mean_tokens"] < 90
    known = tessera("plan", yaml, *auto).stdout
    assert f"of samples of {plan['lengths']['mean_tokens']:.0f} tokens on average" in known
    elsewhere = tessera("plan", yaml, *auto, "--set", "data.source=elsewhere.jsonl")
    assert "plans are priced as if all samples had 256 tokens" in elsewhere.stderr and "were all samples 256 tokens long" in elsewhere.stdout
    trained = tessera("train", yaml, *auto, "--no-measure")
    assert "predicted: " in trained.stderr and len(tessera.metrics("chosen")) == 4
    priced = json.loads((tessera.folder / "runs/chosen/plan.json").read_text())["lengths"]
    assert priced == plan["lengths"]


def test_what_cannot_be_dealt_is_refused(tessera):
    refused = tessera("train", job(tessera, "refused", tp=2), "--no-measure", check=False)
    assert refused.returncode != 0 and "tp 2 with data.lengths" in refused.stderr
