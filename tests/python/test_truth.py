"""Predictions of published step times do not get worse unnoticed: a ceiling for each source a little above its error in docs/measured.md."""
import json
import subprocess
import sys

import pytest
from conftest import REPOSITORY

# Mean error of the step's time in percent, and Kendall's tau of the order by it.
BOUNDS = {
    "bloom_prequel_a100": (5.7, 0.79),
    "internevo_7b_zero1": (4.2, 0.73),
    "llm_foundry_mpt_fsdp": (5.2, 0.95),
    "megatron_bridge:dense": (4.4, 0.92),
    "megatron_bridge:experts": (11.9, 0.84),
    "megatron_sc21_table1": (2.5, 0.98),
    "megatron_sp_selective_tab5": (2.8, 0.98),
    "nemo_2407_h100_fp8": (4.0, 0.93),
    "torchtitan": (9.5, 0.91),
    "zero3_at_scale": (6.7, 0.90),
    "zero_bubble_throughput": (3.5, 0.95),
}


@pytest.fixture(scope="module")
def answer():
    command = [sys.executable, REPOSITORY / "bench" / "truth" / "run.py", "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def sources(answer):
    return answer["sources"]


@pytest.mark.parametrize("source", sorted(BOUNDS))
def test_a_source_is_predicted_as_well_as_before(sources, source):
    mean, tau = BOUNDS[source]
    assert sources[source]["mape"] <= mean
    assert sources[source]["tau"] >= tau


def test_no_row_of_a_source_is_left_out(sources):
    assert {source: sources[source]["rows"] for source in BOUNDS} == {
        "bloom_prequel_a100": 75, "internevo_7b_zero1": 22, "llm_foundry_mpt_fsdp": 106,
        "megatron_bridge:dense": 43, "megatron_bridge:experts": 62, "megatron_sc21_table1": 10,
        "megatron_sp_selective_tab5": 9, "nemo_2407_h100_fp8": 20, "torchtitan": 16, "zero3_at_scale": 12, "zero_bubble_throughput": 41}


def test_calibrations_say_what_their_rows_give(answer):
    files = list((REPOSITORY / "src" / "profile" / "calibrations").glob("*.yaml"))
    assert len(answer["measured"]) == len(files)
    for name, measured in answer["measured"].items():
        assert measured["shipped"] == measured["rows"] != "", f"{name}: ./dev bench truth --fit writes it again"


def test_rows_say_what_was_guessed_of_them(answer, sources):
    guesses = {(row["source"], row["row"]): row["guesses"] for row in answer["rows"]}
    # FULL_SHARD, recomputation and the mode of mixed precision are columns there; the network between nodes is not.
    assert guesses["llm_foundry_mpt_fsdp", 1] == ["the network's rate"]
    assert sources["llm_foundry_mpt_fsdp"]["without_guesses"]["rows"] == 79
    assert {"no recomputation", "ZeRO-1"} <= set(guesses["megatron_bridge", 1])
    assert "32 heads" in guesses["bloom_prequel_a100", 1]
    for source, part in sources.items():
        if ":" not in source:
            stated = [row for row in answer["rows"] if row["source"] == source and not row["guesses"]]
            assert part["without_guesses"]["rows"] == len(stated)
