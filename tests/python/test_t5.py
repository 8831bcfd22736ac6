"""T5: from transformers and back, with the losses and the weights of its T5ForConditionalGeneration over steps of SGD, under any plan."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5ForConditionalGeneration

from conftest import SHAKESPEARE

VOCAB, SEQ, WRITTEN = 512, 160, 40
RATE, STEPS = 0.05, 3
SHAPE = dict(vocab_size=VOCAB, d_model=96, d_kv=24, d_ff=160, num_layers=2, num_decoder_layers=3, num_heads=4, dropout_rate=0)
MODEL = {"arch": "t5", "hidden": 96, "head_dim": 24, "ffn": 160, "layers": 2, "decoder_layers": 3, "heads": 4, "vocab": VOCAB, "seq": SEQ,
         "decoder_seq": WRITTEN, "dropout": 0}
# T5, and T5 v1.1, whose head has a table of its own.
FORMS = {"t5": (T5Config(**SHAPE), {}), "v1.1": (T5Config(**SHAPE, feed_forward_proj="gated-gelu", tie_word_embeddings=False), {"gated": True, "tied": False})}


def model_of(form):
    """A model all of whose parameters matter: norms are not one. transformers 5 ties the head of v1.1, too, until it reads one."""
    torch.manual_seed(3)
    model = T5ForConditionalGeneration(FORMS[form][0]).float().eval()
    if form == "v1.1":
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight).normal_(0, 0.2))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" in name:
                parameter.normal_(1, 0.1)
            elif "shared" not in name and "lm_head" not in name:
                parameter.normal_(0, 0.08)
    return model


def job(name, form, parallel, **train):
    ranks = math.prod(parallel.get(degree, 1) for degree in ("dp", "pp"))
    return {
        "name": name,
        "model": {**MODEL, **FORMS[form][1]},
        "data": {"source": str(SHAKESPEARE), "tokenizer": {"kind": "bpe", "vocab": 480}},
        "train": {"steps": STEPS, "global_batch": 8, "optimizer": {"kind": "sgd", "lr": RATE, "momentum": 0, "weight_decay": 0, "clip": 0},
                  "schedule": {"kind": "constant"}, "eval": {"sequences": 8}, **train},
        "cluster": {"local": {"devices": ranks, "threads": 1}},
        "parallel": parallel,
    }


def exported(tessera, run):
    tessera("export", run, "--to", "hf", f"{run}-hf")
    return tessera.folder / f"{run}-hf"


@pytest.fixture(scope="module")
def imported(shared_tessera):
    """The runs `theirs-FORM` are transformers' models."""
    for form, (config, _) in FORMS.items():
        folder = shared_tessera.folder / f"theirs-{form}"
        folder.mkdir()
        shared_tessera.write(folder / "config.json", {**T5Config(**SHAPE).to_dict(), "n_positions": SEQ, "feed_forward_proj": config.feed_forward_proj,
                                                      "tie_word_embeddings": form == "t5", "scale_decoder_outputs": form == "t5"})
        save_file(dict(model_of(form).named_parameters()), folder / "model.safetensors")
        shared_tessera("import", folder)
    return shared_tessera


@pytest.fixture(scope="module")
def stepped(imported):
    """By form: transformers' loss of each step, weights before the first, after the last."""
    out = {}
    for form in FORMS:
        model = model_of(form)
        before = {name: values.clone() for name, values in model.named_parameters()}
        yaml = imported.write("batch.yaml", job("batch", form, {"dp": 1, "pp": 1}))
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        losses = []
        for line in imported("data", "batch", yaml, "--count", STEPS, "--json").stdout.splitlines():
            batch = {name: torch.tensor(values) for name, values in json.loads(line).items() if name in ("tokens", "decoder_tokens", "targets")}
            logits = model(input_ids=batch["tokens"], decoder_input_ids=batch["decoder_tokens"]).logits.flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, batch["targets"].flatten(), ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        out[form] = losses, before, dict(model.named_parameters())
    return out


# Of 9 blocks: embedding, 2 layers and the norm of the encoder, embedding and 3 layers of the decoder, head.
PLANS = [{"dp": 1, "pp": 1}, {"dp": 2, "zero": 1}, {"dp": 2, "zero": 3, "micro_batches": 2, "recompute": "full"}, {"pp": 2, "micro_batches": 4},
         {"pp": 3, "micro_batches": 4, "schedule": "zb-h1"}, {"dp": 2, "pp": 2, "zero": 1, "micro_batches": 2, "recompute": "full"}]


@pytest.mark.parametrize("form, parallel", [*(("t5", parallel) for parallel in PLANS), ("v1.1", PLANS[0]), ("v1.1", PLANS[4])])
def test_steps_have_transformers_losses_and_weights_under_every_plan(imported, stepped, form, parallel):
    losses, before, after = stepped[form]
    name = "-".join([form, *(f"{key}{value}" for key, value in parallel.items())])
    imported("train", imported.write(f"{name}.yaml", job(name, form, parallel, init=f"theirs-{form}")), "--no-measure")
    assert [line["loss"] for line in imported.metrics(name)] == pytest.approx(losses, rel=1e-5)
    weights = load_file(exported(imported, name) / "model.safetensors")
    assert set(weights) == set(after)
    for parameter, values in after.items():
        moved = (values - before[parameter]).norm().item()
        assert moved > 1e-4, parameter
        assert (weights[parameter] - values).norm().item() < 1e-4 * moved + 1e-6, parameter


def test_what_is_dropped_does_not_depend_on_the_plan(imported):
    curves = []
    for name, plan in [("alone", {"dp": 1, "pp": 1}), ("dropping", {"dp": 2, "pp": 2, "micro_batches": 2, "recompute": "full"})]:
        imported("train", imported.write(f"{name}.yaml", job(name, "t5", plan)), "--no-measure", "--set", "model.dropout=0.2")
        curves.append([line["loss"] for line in imported.metrics(name)])
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_transformers_loads_an_export_with_the_same_logits(imported, form):
    again, report = T5ForConditionalGeneration.from_pretrained(exported(imported, f"theirs-{form}"), output_loading_info=True, dtype=torch.float32)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokens = torch.arange(SEQ).unsqueeze(0)
    with torch.no_grad():
        ours, theirs = (model(input_ids=tokens, decoder_input_ids=tokens[:, :WRITTEN]).logits for model in (again.eval(), model_of(form)))
    assert (ours - theirs).abs().max().item() < 1e-5


def test_profile_times_both_sides_and_plan_takes_the_times(imported):
    yaml = imported.write("timed.yaml", {**job("timed", "t5", {}), "parallel": "auto", "cluster": {"local": {"devices": 2, "threads": 1}}})
    imported("profile", yaml, "-o", "timed.json", "--seconds", 2)
    timed = json.loads((imported.folder / "timed.json").read_text())["blocks"]
    assert {block["kind"].split()[0] for block in timed} == {"position_embedding", "encoder_layer", "final_norm", "decoder_layer", "language_head"}
    assert len({block["kind"] for block in timed}) == 6
    assert json.loads(imported("plan", yaml, "--profile", "timed.json", "--json").stdout)


def test_a_run_does_not_go_on_with_a_text(imported):
    refused = imported("generate", "theirs-t5", "--prompt", "To be", check=False)
    assert refused.returncode == 2 and "the run's model (t5) does not predict the next token" in refused.stderr, refused.stderr


@pytest.mark.parametrize("changes, words", [
    ({"feed_forward_proj": "gated-silu"}, "feed_forward_proj is gated-silu"), ({"scale_decoder_outputs": False}, "the head's input is scaled"),
    ({"relative_attention_num_buckets": 2}, "at least 4")])
def test_what_would_be_computed_otherwise_is_refused_by_name(tessera, changes, words):
    tessera.write("other/config.json", {**T5Config(**SHAPE).to_dict(), **changes})
    refused = tessera("import", "other", check=False)
    assert refused.returncode == 2 and "config.json" in refused.stderr and words in refused.stderr, refused.stderr


@pytest.mark.parametrize("parallel, words", [
    ({"tp": 2}, "which the trainer keeps whole"), ({"cp": 2}, "take the whole in the trainer"), ({"dp": 2, "recompute": "selective"}, "none or full")])
def test_plans_that_cut_its_blocks_are_refused(tessera, parallel, words):
    yaml = tessera.write("cut.yaml", {**job("cut", "t5", {}), "parallel": parallel, "cluster": {"local": {"devices": 2, "threads": 1}}})
    refused = tessera("plan", yaml, check=False)
    assert refused.returncode == 2 and words in refused.stderr, refused.stderr
