"""Galvatron 2.4.0's own search and cost model on one job; run by run.py with the Python that has the package.

    python peer.py JOB.json      {"folder", "log", "settings": {...}, "evaluate": [CONFIG, ...]}; prints one line of JSON

Its packages import torch, Megatron and CUDA extensions that the search does not use: only the modules of the search are loaded.
"""
import contextlib
import importlib
import io
import json
import logging
import pathlib
import sys
import time
import types


def load():
    root = pathlib.Path(next(path for path in sys.path if path.endswith("site-packages"))) / "galvatron"
    for name in ("galvatron", "galvatron.core", "galvatron.core.search_engine", "galvatron.utils"):
        module = types.ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    for name in ("config_utils", "strategy_utils"):
        vars(sys.modules["galvatron.utils"]).update(vars(importlib.import_module("galvatron.utils." + name)))
    return importlib.import_module("galvatron.core.search_engine.search_engine"), importlib.import_module("galvatron.core.search_engine.cost_model")


def engine_of(search_engine, job):
    defaults = {"num_nodes": 1, "num_gpus_per_node": 8, "memory_constraint": 24, "recommend_min_bsz": 0, "settle_chunk": -1, "bsz_scale": 8,
                "search_space": "full", "sp_space": "tp+sp", "disable_dp": 0, "disable_tp": 0, "disable_vtp": 0, "disable_pp": 0, "disable_sdp": 0,
                "disable_ckpt": 0, "disable_tp_consec": 0, "max_tp_deg": 8, "max_pp_deg": 8, "default_dp_type": "zero2", "mixed_precision": "bf16",
                "pipeline_type": "pipedream_flush", "use_pipeline_costmodel": 1, "costmodel_coe": 1.0, "sequence_parallel": True,
                "global_memory_buffer": True, "async_grad_reduce": True, "fine_grained_mode": 1, "time_profile_mode": "static",
                "memory_profile_mode": "static", "parallel_search": False, "worker": 0, "hidden_size": 4096, "log_dir": job["log"],
                "output_config_path": job["log"]}
    paths = ("memory_profiling_path", "time_profiling_path", "allreduce_bandwidth_config_path", "p2p_bandwidth_config_path", "overlap_coe_path",
             "sp_time_path")
    arguments = types.SimpleNamespace(**{**defaults, **job["settings"], **{path: job["folder"] for path in paths}})
    arguments.min_bsz = arguments.max_bsz = arguments.settle_bsz
    engine = search_engine.GalvatronSearchEngine(arguments)
    layers = {"hidden_size": 4096, "seq_len": 2048, "layer_num": 32}
    engine.set_search_engine_info(job["log"], [layers], "llama2-7b_all")
    engine.initialize_search_engine()
    return engine


def strategies_of(config, devices):
    numbers = {key: [int(word) for word in config[key].split(",")]
               for key in ("tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc", "use_sp", "checkpoint")}
    out = []
    for tp, side_by_side, zero3, ulysses, checkpoint in zip(*numbers.values()):
        dp = devices // config["pp_deg"] // tp
        info = {}
        if tp > 1 and dp > 1:
            info["tp"] = side_by_side
        if dp > 1:
            info["fsdp"] = zero3
        if tp > 1:
            info["sp"] = ulysses
        if checkpoint:
            info["cpt"] = 1
        out.append([config["pp_deg"], tp, dp, info])
    return out


def evaluate(engine, cost_model, config):
    """Seconds of a step and MB by stage (layers rounded up one by one, as the search does), by Galvatron's own classes."""
    import numpy
    devices = engine.args.gpu_num
    layers = strategies_of(config, devices)
    batch, chunks, pp, vtp = config["global_bsz"], config["chunks"], config["pp_deg"], config["vtp"]
    # Galvatron counts samples against the least degree of the range that it searched in, which its answer does not say.
    least, most = config["counted_split"], max([vtp] + [layer[1] for layer in layers])
    micro = (batch // (devices // pp // least) + chunks - 1) // chunks
    lists = (engine.model_args_list, engine.train_args_list, engine.parallel_args_list, engine.profile_model_args_list,
             engine.profile_hardware_args_list)
    first = [entries[0] for entries in lists]
    other = cost_model.OtherTimeCostModel(micro, pp, devices, config["vsp"], config["embed_sdp"], least, most, [2048], *first).gen_result()
    division = [int(word) for word in config["pp_division"].split(",")]
    asked = [engine.optimal_chunk_func(batch * least // (devices // pp), [pp, least, devices // pp], micro, least)]
    seconds = cost_model.pipeline_costmodel(cost_model.TimeCostModel, [32], *lists, layers, division, asked, batch, least, other[1][vtp])
    memory, at = [], 0
    narrow = [pp, least, devices // pp // least, {"fsdp": 0}]
    for stage, count in enumerate(division):
        def cost(layer):
            return cost_model.MemoryCostModel(layer, batch, micro, least, most, stage, config["vsp"], config["embed_sdp"], *first[:4]).get_memory_cost()
        total = numpy.ceil(cost(narrow)["other"][vtp][stage]) + sum(numpy.ceil(cost(layer)["enc_total"]) for layer in layers[at:at + count])
        memory.append(int(total))
        at += count
    return {"seconds": float(seconds), "memory_mb": memory}


def main():
    job = json.loads(pathlib.Path(sys.argv[1]).read_text())
    out = {}
    with contextlib.redirect_stdout(io.StringIO()):
        logging.disable(logging.CRITICAL)
        search_engine, cost_model = load()
        engine = engine_of(search_engine, job)
        if "evaluate" in job:
            out["evaluated"] = [evaluate(engine, cost_model, config) for config in job["evaluate"]]
        else:
            def keep(result, batch, chunks, divisions):
                out["cost_s"] = float(result["min_cost"])
                pathlib.Path(job["log"]).mkdir(parents=True, exist_ok=True)
                save(result, batch, chunks, divisions)
            save, engine.save_results = engine.save_results, keep
            start = time.perf_counter()
            engine.parallelism_optimization()
            out["search_s"] = time.perf_counter() - start
            written = sorted(pathlib.Path(job["log"]).glob("galvatron_config_*.json"))
            out["config"] = json.loads(written[-1].read_text()) if written else None
    print(json.dumps(out))


if __name__ == "__main__":
    main()
