"""Bubbles of pipeline schedules in closed form."""
# Idle time of a pipeline of p ranks in units of a micro-batch's forward pass, where all three passes take as long; by Huang et
# al. 2019, Narayanan et al. 2021, Qi et al. 2023 and DeepSeek 2025. A micro-batch takes 3.
IDLE = {"gpipe": lambda p, v: 3 * (p - 1), "1f1b": lambda p, v: 3 * (p - 1), "interleaved": lambda p, v: 3 * (p - 1) / v, "zb-h1": lambda p, v: p - 1,
        "zb-h2": lambda p, v: 0, "zb-v": lambda p, v: 0, "dualpipe-v": lambda p, v: p - 1}


def bubble_of(schedule, ranks, micro_batches, stages_a_rank):
    """The idle share of the rank that takes longest from its first to its last pass."""
    idle = IDLE[schedule](ranks, stages_a_rank)
    return idle / (3 * micro_batches + idle)
