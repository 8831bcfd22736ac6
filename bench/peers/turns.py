"""Ways to train that take turns, and what becomes of those that fail."""
import math
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lab import Failed  # noqa: E402

NAMES_ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]*(Error|Exception)\b")  # as tracebacks end, under PyTorch's prefix or none
COMPARED_LOSSES, LOSS_TOLERANCE = 2, 1e-5  # before and after one update; what sums in another order may change by then


def name_of(key):
    """A key is a way's name and that of one of its runs, which may be empty."""
    return ", ".join(filter(None, key))


def cause(words):
    """Of all that failing ranks have written the line that says why: the first that names an error."""
    lines = words.strip().splitlines() or ["it says nothing"]
    return next((line for line in lines if NAMES_ERROR.match(line)), lines[-1])


def take_turns(runs, rounds, end):
    """Runs each of `runs` (functions that return a dictionary, by key) once a round, every second round from last to first. `end(round, key, results)` is called
    after each run with all results of that key. A run that raises Failed, or whose packages cannot be installed, gets no further turn. Returns the results of those that have not
    failed, and the cause of each that has."""
    results, failed = {key: [] for key in runs}, {}
    for turn in range(rounds):
        for key in list(results)[::1 if turn % 2 == 0 else -1]:
            try:
                results[key].append(runs[key]())
            except (Failed, subprocess.CalledProcessError) as error:
                print(f"{name_of(key)}: {error}", file=sys.stderr)
                failed[key] = cause(str(error))
                del results[key]
            else:
                end(turn, key, results[key])
    return results, failed


def differs(losses, reference):
    """Whether the first losses of a run are not those of another run with the same model and samples."""
    return not all(math.isclose(*pair, rel_tol=LOSS_TOLERANCE) for pair in zip(losses[:COMPARED_LOSSES], reference[:COMPARED_LOSSES], strict=True))
