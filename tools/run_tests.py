#!/usr/bin/env python3
"""Runs the stages of ./dev test one after the other and adds them up; a stage that fails does not stop the next.

lint     layers, shell, Python and plain-text rules
release  every C++ test of the release build
python   tests that drive the commands from Python, and tests of ./dev's own tools
asan     the torch-free rooms' C++ tests under the address and undefined-behaviour sanitizers
tsan     the tests of rooms with threads under the thread sanitizer (tools/sanitizers/rooms.py lists them)

With --gpu another stage runs alone:

gpu      the kernels and blocks of nn on cuda:0, held against those for CPUs, and comm's exchanges between GPUs; exits with 3 where there is
         no GPU

After each stage stand its slowest tests, and at the end, beside the sums, those that failed.
"""
import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHOWN = 10
sys.path[:0] = [str(ROOT / "tools" / "sanitizers"), str(ROOT / "bench")]
import rooms as sanitizer_rooms  # noqa: E402
from machine import gpu_or_exit  # noqa: E402

GPU_SUITES = {"tessera_nn_tests": ["AtenKernels", "CudaKernels", "SquaredNorm"], "tessera_comm_tests": ["Nccl", "Devices"]}
# Files of Python tests that beside others would see what they look for: ranks that are slow.
ALONE = ["test_slow_ranks.py"]
# Files of Python tests that take minutes by themselves: beside others they begin first, or they would end long after these.
FIRST = ["test_walk.py", "test_precision_and_memory.py"]
STAGES = ["lint", "release", "python", "asan", "tsan"]
SANITIZER_ENVIRONMENT = {
    "asan": {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0", "UBSAN_OPTIONS": "print_stacktrace=1",
             "LSAN_OPTIONS": f"suppressions={ROOT}/tools/sanitizers/lsan.supp:print_suppressions=0"},
    "tsan": {"TSAN_OPTIONS": f"suppressions={ROOT}/tools/sanitizers/tsan.supp:halt_on_error=1:second_deadlock_stack=1",
             # UCX otherwise rewrites mmap in the running program, over the sanitizer's own version.
             "UCX_MEM_MMAP_HOOK_MODE": "none"},
}


@dataclasses.dataclass
class Outcome:
    stage: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    note: str = ""
    cases: list = dataclasses.field(default_factory=list)  # (seconds, name)
    failures: list = dataclasses.field(default_factory=list)  # names, with what was said first


def run(command, environment=None):
    # As `tessera train` starts its ranks: tests run beside each other, and threads that spin keep each other's cores.
    environment = {"GOMP_SPINCOUNT": "1000", **os.environ, **(environment or {})}
    return subprocess.run([str(word) for word in command], cwd=ROOT, env=environment).returncode


def add_up(outcome, report):
    """Adds the cases of a JUnit file; False when there is no readable one."""
    try:
        cases = list(xml.etree.ElementTree.parse(report).iter("testcase"))
    except (OSError, xml.etree.ElementTree.ParseError):
        return False
    for case in cases:
        # ctest writes the same into both names.
        name = ".".join(dict.fromkeys(part for part in (case.get("classname"), case.get("name")) if part))
        outcome.cases.append((float(case.get("time") or 0), name))
        fault = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        if fault is not None or case.get("status") == "fail":
            outcome.failed += 1
            said = (fault.get("message") or "").splitlines() if fault is not None else []
            outcome.failures.append(f"{name}: {said[0][:200]}" if said else name)
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            outcome.skipped += 1
        else:
            outcome.passed += 1
    return True


def finish(outcome, code, report, what, failed=0):
    """A runner that failed without naming a failed test counts as one failure: it crashed or could not start. `failed`: those before it."""
    readable = add_up(outcome, report)
    if code != 0 and outcome.failed == failed:
        outcome.failed += 1
        outcome.note = f"{what} ended with {code}"
    elif not readable:
        outcome.failed += 1
        outcome.note = f"{what} left no report"


def lint(outcome, names):
    if run([sys.executable, "tools/lint.py"]) == 0:
        outcome.passed = 1
    else:
        outcome.failed = 1


def slowest(outcome):
    """The lines that show where the time of a stage went; a test that ran in no time is none of them."""
    return [f"{seconds:>9.1f} s  {name}" for seconds, name in sorted(outcome.cases, reverse=True)[:SHOWN] if seconds >= 0.1]


def ctest(outcome, names):
    rooms = sanitizer_rooms.rooms_for(outcome.stage) if outcome.stage in SANITIZER_ENVIRONMENT else []
    # What no test of the stage runs is not compiled.
    if run(["./dev", "build", outcome.stage, *(f"tessera_{room}_tests" for room in rooms)]) != 0:
        outcome.failed, outcome.note = 1, "does not build"
        return
    report = ROOT / "build" / outcome.stage / "tests.xml"
    report.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", f"build/{outcome.stage}", "--output-on-failure", "--output-junit", report, "-j", (os.cpu_count() or 1) + 1]
    if rooms:
        command += ["-L", f"^({'|'.join(rooms)})$", "-E", sanitizer_rooms.left_out(outcome.stage)]
    if names:
        command += ["-R", "|".join(names)]
    finish(outcome, run(command, SANITIZER_ENVIRONMENT.get(outcome.stage)), report, "ctest")


def on_gpu(outcome, names):
    if run(["./dev", "build", "release", *GPU_SUITES]) != 0:
        outcome.failed, outcome.note = 1, "does not build"
        return
    for program, suites in GPU_SUITES.items():
        report = ROOT / "build" / f"gpu-{program}.xml"
        report.unlink(missing_ok=True)
        tests = ":".join(f"{suite}.*{name}*" for suite in suites for name in names or [""])
        code = run([f"build/release/bin/{program}", f"--gtest_filter={tests}", f"--gtest_output=xml:{report}"], {"TESSERA_TEST_DEVICE": "cuda:0"})
        finish(outcome, code, report, program)


def pytest(outcome, names):
    found = [path for folder in ("tests/dev", "tests/python") for path in (ROOT / folder).rglob("test_*.py")]
    files = sorted(found, key=lambda path: (path.name not in FIRST, path))
    beside = [path for path in files if path.name not in ALONE]
    # A file more at a time than there are cores: a part of what these tests take is waiting, for hosts that are missed and for processes that start.
    for which, more in ((beside, ["-n", str((os.cpu_count() or 1) + 1), "--dist", "loadfile", "--no-loadscope-reorder"]), ([path for path in files if path not in beside], [])):
        if not which:
            continue
        report = ROOT / "build" / "pytest.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *more, "--junitxml", report, *which]
        if names:
            command += ["-k", " or ".join(re.sub(r"\W+", " and ", name).strip() for name in names)]
        failed = outcome.failed
        code = run(command)
        # 5: the filter left nothing to run.
        finish(outcome, 0 if code == 5 and names else code, report, "pytest", failed)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./dev test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only tests whose names match one of these; of release and python")
    parser.add_argument("--fast", action="store_true", help="leave out the sanitizers")
    parser.add_argument("--gpu", action="store_true", help="the stage gpu alone")
    parser.add_argument("--only", action="append", choices=STAGES, help="this stage alone (repeatable)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if arguments.gpu:
        print(f"on {gpu_or_exit()['name']}", flush=True)
    stages = ["gpu"] if arguments.gpu else arguments.only or (["release", "python"] if arguments.names else STAGES[:3] if arguments.fast else STAGES)
    runners = {"lint": lint, "python": pytest, "release": ctest, "asan": ctest, "tsan": ctest, "gpu": on_gpu}
    outcomes = []
    begin = time.monotonic()
    for stage in stages:
        print(f"== {stage}", flush=True)
        outcome = Outcome(stage)
        started = time.monotonic()
        runners[stage](outcome, arguments.names)
        outcome.seconds = time.monotonic() - started
        outcomes.append(outcome)
        if lines := slowest(outcome):
            print(f"slowest of {stage}:", *lines, sep="\n", flush=True)
    print(f"\n{'stage':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for outcome in outcomes:
        print(f"{outcome.stage:<10}{outcome.passed:>8}{outcome.failed:>8}{outcome.skipped:>9}{outcome.seconds:>9.0f}  {outcome.note}".rstrip())
    for outcome in outcomes:
        for name in outcome.failures:
            print(f"failed in {outcome.stage}: {name}")
    passed, failed, skipped = (sum(getattr(outcome, field) for outcome in outcomes) for field in ("passed", "failed", "skipped"))
    if passed + failed == 0:
        failed = 1
        print(f"no test matches {' '.join(arguments.names)}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped in {time.monotonic() - begin:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
