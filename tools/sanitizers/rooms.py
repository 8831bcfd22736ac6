"""Which rooms' tests run under which sanitizer: where it can find something. A room that is new, split or renamed is entered here.

The address and undefined-behaviour sanitizers run over every room without torch: any code can run past a buffer. The thread
sanitizer finds what two threads do to each other, and costs as much, so that it runs over THREADED alone.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_layers  # noqa: E402

# Room: what its threads share. A room that is named before it exists does no harm.
THREADED = {
    "base": "the log, which any thread writes to",
    "comm": "the engine's thread and those that wait for it; memory that processes share",
    "control": "the thread that watches a search for Ctrl-C and shows how far it is; its tests stop a launcher from another thread",
    "data": "tokenizers that are used by several threads at once, and blocks of the token cache that any of them checks; parts of a click log that are checked side by side",
    "ps": "servers and clients, each on a thread of its own, that meet in the log; merges of rows on disk",
    "search": "the search over blocks, whose threads share a best price",
}

# How the names of tests begin that no sanitizer runs: they ask for one answer after another of code that other tests take the same way
# through. They took half of the time in which the tests ran under the address sanitizer.
ANSWERS = [
    "MoreHardware.", "LeastWork.IsNoMoreThanThePriceOfAnyPlan", "Bubble.RanksSchedulesAsThePublishedTables",
    "Search.KeepsVisionModelsAndT5WholeOnWorkers", "Search.PassesRunInAnOrderMadeForTheirTimesWhereThatIsFaster",
    "Search.UnequalHostsMakeOnePipelineWhereTheLinkIsSlow", "Search.EqualsEnumerationOnSmallInstances", "Search.GivesTheSameAnswerTwice",
    "Search.CutsGetOrdersOfTheirOwn",
    "Calibrate.ItsFilePricesAClusterThatNamesIt", "Predict.PartsAddUpToTheStep", "HostsBySpeed.AFasterHostMakesAShorterStep",
    "Reference.EncodesAndDecodesAMillionPiecesAsTheReferencePackages", "PrecisionNote.SaysThatAcceleratorsWereToComputeIn32Bits",
    "SeveralStages.ComputeAgainNoMoreLayersThanMemoryAsksFor",
]

# How the names of tests begin that the thread sanitizer leaves out as well: it would find nothing in them that it does not find in others.
WITHOUT_THREADS_OF_THEIR_OWN = {
    "ProtocolSimulation": "servers and clients are fibers of one thread",
    "Search.": "the search's threads are those of the tests of BlockSearch, Accelerators and StoppedSearch",
    "BlockSearch.EqualsEnumeration": "it has one thread",
    "TableFile.ABaseAndItsDeltas": "one thread calls, as of Tier.RowsOfEveryKind",
    "Tier.RowsOfEveryKind": "one thread calls; the one that merges is that of Tier.AnyOrderOfCalls, too",
}

# std::thread::hardware_concurrency() starts none.
THREADS = re.compile(r"\bstd::(?:thread\b(?!::)|(?:jthread|async|mutex|shared_mutex|recursive_mutex|timed_mutex|atomic\w*|condition_variable\w*|"
                     r"call_once|counting_semaphore|binary_semaphore|barrier|latch)\b)|\bthread_local\b|\bpthread_create\b|\bat::parallel_for\b")
COMMENT = re.compile(r"//[^\n]*")
TEST = re.compile(r"^(?:TEST|TEST_[FP]|RC_GTEST_PROP)\((\w+),\s*(\w+)\s*[,)]", re.MULTILINE)
SOURCES = {".hpp", ".cpp"}


def uses_of_threads(root):
    """(room, file, line) for each place in src and tests; both are compiled into the room's test program."""
    for folder in ("src", "tests"):
        for path in sorted((root / folder).rglob("*")):
            parts = path.relative_to(root).parts
            if path.suffix not in SOURCES or len(parts) < 3:
                continue
            text = COMMENT.sub("", path.read_text(encoding="utf-8"))
            for match in THREADS.finditer(text):
                yield parts[1], path.relative_to(root), text.count("\n", 0, match.start()) + 1


def tests_of(root):
    """Names of the C++ tests that src's rooms have."""
    for path in (root / "tests").rglob("*_test.cpp"):
        for suite, name in TEST.findall(path.read_text(encoding="utf-8")):
            yield f"{suite}.{name}"


def left_out(stage):
    """What ctest leaves out under the sanitizer, as its option -E takes it."""
    starts = [*ANSWERS, *(WITHOUT_THREADS_OF_THEIR_OWN if stage == "tsan" else [])]
    return "^(" + "|".join(re.escape(start) for start in starts) + ")"


def problems(root):
    """Threads in rooms that the thread sanitizer passes over. Rooms of torch have none of the sanitizers: torch is not built with them."""
    named = set()
    for room, path, line in uses_of_threads(root):
        if room in THREADED or room in check_layers.TORCH_ROOMS or room in named:
            continue
        named.add(room)
        yield f"{path}:{line}: uses threads, and the room is not in THREADED of tools/sanitizers/rooms.py; enter it, with what its threads share"


def strangers(root, starts=(*ANSWERS, *WITHOUT_THREADS_OF_THEIR_OWN)):
    """Names of those left out with which no test begins."""
    tests = set(tests_of(root))
    for start in starts:
        if not any(name.startswith(start) for name in tests):
            yield f"tools/sanitizers/rooms.py: no test begins with {start}; take it out of what is left out, or enter the test's new name"


def rooms_for(stage, root=ROOT):
    """Labels of the tests that a stage runs, of those that there are; `fuzz` has the readers of all rooms."""
    there = {path.name for path in (root / "tests").iterdir() if list(path.glob("*_test.cpp"))} - check_layers.TORCH_ROOMS
    return sorted(there & set(THREADED) if stage == "tsan" else there)
