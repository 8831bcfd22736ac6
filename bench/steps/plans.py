"""Plans of every kind: what of `parallel` is not the default, and what is changed in the plan's file afterwards."""
import copy

LLAMA = {"arch": "llama", "hidden": 256, "layers": 8, "heads": 4, "kv_heads": 4, "ffn": 768, "seq": 256, "vocab": 4096}
GPT = {"arch": "gpt", "hidden": 256, "layers": 8, "heads": 4, "ffn": 1024, "seq": 256, "vocab": 4096}
# Each token goes to every expert, so that no message depends on what the router has learned.
MIXTRAL = {"arch": "mixtral", "hidden": 256, "layers": 4, "heads": 4, "kv_heads": 4, "ffn": 256, "experts": 4, "experts_per_token": 4, "seq": 256, "vocab": 4096}
DEFAULT = {"dp": 1, "pp": 1, "tp": 1, "cp": 1, "ep": 1, "zero": 0, "micro_batches": 1, "recompute": "none"}


def sharded_over(ranks):
    def change(plan):
        for stage in plan["stages"]:
            for run in stage["blocks"]:
                run["shards"] = ranks
    return change


def second_half(**strategy):
    """Of a plan with one stage."""
    def change(plan):
        runs = plan["stages"][0]["blocks"]
        last = copy.deepcopy(runs[-1])
        runs[-1]["last"] = last["first"] = (last["first"] + last["last"]) // 2
        runs.append({**last, **strategy})
    return change


def row(model, words, change=None, label="", **more):
    """`words`: "dp 4, zero 1"."""
    degrees = dict(DEFAULT, **more)
    for key, value in (word.split(" ") for word in words.split(", ")):
        degrees[key] = int(value) if value.isdigit() else value
    if degrees["pp"] == 1:
        degrees.pop("schedule", None)
    arch = "" if model is LLAMA else model["arch"]
    return {"label": ", ".join(filter(None, [arch, words, label])), "model": model, "parallel": degrees, "change": change}


def plans_on(hosts):
    """Of four hosts more than of two."""
    n, one_f_one_b = hosts, "schedule 1f1b"
    plans = [
        row(LLAMA, f"dp {n}"), row(LLAMA, f"dp {n}, zero 1"), row(LLAMA, f"dp {n}, zero 2, micro_batches 2"), row(LLAMA, f"dp {n}, zero 3"),
        row(LLAMA, f"dp {n}, zero 3, micro_batches 2, recompute full"), row(LLAMA, f"dp {n}, recompute selective"),
        row(LLAMA, f"tp {n}"), row(LLAMA, f"tp {n}", label="sequence parallel", sequence_parallel=True), row(LLAMA, f"tp {n}, micro_batches 2, recompute full"),
        row(LLAMA, f"cp {n}, context ring"), row(LLAMA, f"cp {n}, context ulysses"), row(LLAMA, f"cp {n}, zero 1, context ring, micro_batches 2"),
        *(row(LLAMA, f"pp {n}, micro_batches 8, schedule {schedule}") for schedule in ("1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe-v")),
        row(LLAMA, f"pp {n}, micro_batches 8, schedule interleaved, chunks 2"), row(LLAMA, f"pp {n}, micro_batches 8, {one_f_one_b}, recompute full"),
        row(LLAMA, f"dp {n}, zero 3", second_half(zero=1, recompute="full"), "second half zero 1, recompute"),
        row(LLAMA, f"dp {n}", second_half(dp=n // 2, tp=2), "second half tp 2"), row(LLAMA, f"dp {n}, micro_batches 2", label="delayed", delayed_exchange=True),
        row(LLAMA, f"tp {n}, micro_batches 2, recompute selective", label="sequence parallel", sequence_parallel=True),
        row(LLAMA, f"cp {n}, context ring, recompute full"), row(LLAMA, f"pp {n}, micro_batches 4, {one_f_one_b}, recompute selective"),
        row(GPT, f"dp {n}, zero 2"), row(GPT, f"tp {n}"), row(GPT, f"pp {n}, micro_batches 8, {one_f_one_b}"),
        row(MIXTRAL, f"dp {n}, ep {n}"), row(MIXTRAL, f"dp {n}, ep 2, zero 1, micro_batches 2")]
    if hosts == 4:
        plans += [
            row(LLAMA, "dp 4, zero 3", sharded_over(2), "over 2"), row(LLAMA, "dp 4, zero 1", sharded_over(2), "over 2"),
            row(LLAMA, "dp 2, tp 2, zero 1", label="sequence parallel", sequence_parallel=True), row(LLAMA, "dp 2, cp 2, zero 1, context ring"),
            row(LLAMA, "tp 2, cp 2, context ulysses"), row(LLAMA, f"dp 2, pp 2, zero 2, micro_batches 4, {one_f_one_b}"),
            row(LLAMA, f"tp 2, pp 2, micro_batches 4, {one_f_one_b}", label="sequence parallel", sequence_parallel=True),
            row(LLAMA, f"cp 2, pp 2, micro_batches 4, {one_f_one_b}, context ring"),
            row(LLAMA, f"dp 2, pp 2, micro_batches 4, {one_f_one_b}", label="delayed", delayed_exchange=True), row(MIXTRAL, "dp 2, tp 2, ep 2")]
    return plans
