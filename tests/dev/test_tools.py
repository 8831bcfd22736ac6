"""The parts of ./dev and of other tools that decide: which wheels are unmet, how test reports add up, what lint finds, on which cores emulated hosts stand, and what
benchmarks make of peers that fail."""
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(path):
    spec = importlib.util.spec_from_loader(path.stem, importlib.machinery.SourceFileLoader(path.stem, str(path)))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


run_tests = load(ROOT / "tools" / "run_tests.py")
lint = load(ROOT / "tools" / "lint.py")
rooms = load(ROOT / "tools" / "sanitizers" / "rooms.py")
netlab = load(ROOT / "tools" / "netlab")
lab = load(ROOT / "bench" / "lab.py")
turns = load(ROOT / "bench" / "peers" / "turns.py")


def test_unmet_wheels_lists_only_pins_that_do_not_hold(tmp_path):
    from importlib.metadata import version
    wanted = tmp_path / "requirements.txt"
    wanted.write_text(f"# comment\npytest=={version('pytest')}\nnumpy==0.0.1  # too old\nno-such-wheel-anywhere==1.0\n")
    script = ROOT / "tools" / "setup" / "unmet_wheels.py"
    result = subprocess.run([sys.executable, script, wanted], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["numpy==0.0.1", "no-such-wheel-anywhere==1.0"]


def test_reports_of_both_runners_add_up(tmp_path):
    report = tmp_path / "ctest.xml"
    report.write_text('<testsuite><testcase name="a" status="run"/><testcase name="b" status="fail"><failure/></testcase>'
                      '<testcase name="c" status="notrun"><skipped/></testcase></testsuite>')
    outcome = run_tests.Outcome("release")
    run_tests.finish(outcome, 8, report, "ctest")
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 1, 1)

    report = tmp_path / "pytest.xml"
    report.write_text('<testsuites><testsuite><testcase name="a"/><testcase name="b"><error/></testcase></testsuite></testsuites>')
    outcome = run_tests.Outcome("python")
    run_tests.finish(outcome, 1, report, "pytest")
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 1, 0)


def test_a_runner_that_crashes_counts_as_a_failure(tmp_path):
    report = tmp_path / "tests.xml"
    report.write_text('<testsuite><testcase name="a" status="run"/></testsuite>')
    outcome = run_tests.Outcome("release")
    run_tests.finish(outcome, 139, report, "ctest")
    assert outcome.failed == 1 and "139" in outcome.note

    outcome = run_tests.Outcome("release")
    run_tests.finish(outcome, 0, tmp_path / "missing.xml", "ctest")
    assert outcome.failed == 1 and "no report" in outcome.note


def test_the_failed_tests_of_a_stage_are_named_with_what_they_say(tmp_path):
    report = tmp_path / "tests.xml"
    report.write_text('<testsuite><testcase name="b" classname="tests.a"><failure message="AssertionError: 1 != 2&#10;more">...</failure></testcase>'
                      '<testcase name="A.b" classname="A.b" status="fail"><failure message=""/></testcase><testcase name="fine"/></testsuite>')
    outcome = run_tests.Outcome("python")
    run_tests.finish(outcome, 1, report, "pytest")
    assert outcome.failures == ["tests.a.b: AssertionError: 1 != 2", "A.b"]


def test_the_slowest_tests_of_a_stage_are_named(tmp_path):
    report = tmp_path / "tests.xml"
    report.write_text('<testsuite><testcase name="A.quick" classname="A.quick" time="0.01"/><testcase name="A.slow" classname="A.slow" time="7.25"/>'
                      + "".join(f'<testcase name="b{i}" classname="tests.b" time="{i}"/>' for i in range(1, 20)) + "</testsuite>")
    outcome = run_tests.Outcome("release")
    run_tests.finish(outcome, 0, report, "ctest")
    lines = run_tests.slowest(outcome)
    assert len(lines) == 10
    assert lines[0].split() == ["19.0", "s", "tests.b.b19"]
    assert [line.split()[0] for line in lines] == sorted((line.split()[0] for line in lines), key=float, reverse=True)

    few = run_tests.Outcome("release", cases=[(0.01, "A.quick"), (7.25, "A.slow")])
    assert run_tests.slowest(few) == ["      7.2 s  A.slow"]


@pytest.mark.parametrize("command", [["tools/run_tests.py", "--gpu"], ["bench/gpu/run.py"]])
def test_without_a_gpu_what_needs_one_says_so(command):
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=hidden, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith("there is no GPU here that this torch can use: torch ")
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""


@pytest.fixture
def rooms_with(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path
    write("src/base/log.cpp", "std::mutex mutex;\n")
    write("tests/base/log_test.cpp", "std::thread other(work);\n")
    write("tests/model/model_test.cpp", "int a;\n")
    write("src/nn/kernel.cpp", "at::parallel_for(0, 1, 1, work);\n")
    write("tests/nn/kernel_test.cpp", "std::thread other(work);\n")
    return write


@pytest.mark.parametrize("line", ["std::thread a(work);", "std::vector<std::jthread> all;", "std::mutex mutex;", "std::atomic<int> next{0};",
                                  "std::atomic_flag flag;", "thread_local int depth;", "auto later = std::async(work);",
                                  "std::condition_variable_any change;"])
def test_threads_of_a_room_that_the_thread_sanitizer_passes_over_are_named(rooms_with, line):
    root = rooms_with("src/base/error.cpp", "int b;\n")
    assert list(rooms.problems(root)) == []
    for name in ("src/model/cost.cpp", "tests/model/cost_test.cpp"):
        rooms_with(name, f"// one\n{line}\n")
        found = list(rooms.problems(root))
        assert len(found) == 1
        assert found[0].startswith(f"{name}:2: uses threads, and the room is not in THREADED")
        (root / name).unlink()


@pytest.mark.parametrize("line", ["unsigned n = std::thread::hardware_concurrency();", "// a std::mutex would do, too", "int mutex;"])
def test_what_starts_no_thread_needs_no_thread_sanitizer(rooms_with, line):
    assert list(rooms.problems(rooms_with("src/model/cost.cpp", f"{line}\n"))) == []


def test_each_sanitizer_runs_where_it_can_find_something(rooms_with):
    root = rooms_with("tests/comm/comm_test.cpp", "int a;\n")
    rooms_with("tests/python/test_a.py", "a = 1\n")
    assert rooms.rooms_for("asan", root) == ["base", "comm", "model"]
    assert rooms.rooms_for("tsan", root) == ["base", "comm"]
    assert list(rooms.problems(ROOT)) == []


def test_what_the_sanitizers_leave_out_is_there(rooms_with):
    root = rooms_with("tests/base/hash_test.cpp", "TEST(Hash, IsTheSameTwice) {\nTEST_P(Log, IsOrdered) {\nRC_GTEST_PROP(Units, AreRead, ()) {\n")
    assert list(rooms.strangers(root, ["Hash.", "Log.IsOrdered", "Units."])) == []
    assert "no test begins with Hash.IsAnother;" in next(rooms.strangers(root, ["Hash.IsAnother"]))
    assert list(rooms.strangers(ROOT)) == []
    assert re.search(rooms.left_out("asan"), "MoreHardware.OneMoreNodeIsNeverPlannedSlower")
    assert [bool(re.search(rooms.left_out(stage), "Search.HonoursEveryFixedDegree")) for stage in ("asan", "tsan")] == [False, True]
    assert not re.search(rooms.left_out("tsan"), "Search/StoppedSearch.GivesTheBestSoFarOrSaysThatThereIsNone/CpuWorkers")


def test_lint_names_file_and_line():
    assert list(lint.text_problems("a.hpp", "#pragma once\nint a; \n")) == ["a.hpp:2: white space at the end of the line"]
    assert list(lint.text_problems("a.hpp", "int a;\n")) == ["a.hpp: a header without #pragma once"]
    assert list(lint.text_problems("a.py", "a = 1")) == ["a.py: no newline at the end"]
    assert list(lint.python_problems("a.py", "a = (\n")) == ["a.py:1: '(' was never closed"]
    assert list(lint.text_problems("a.cpp", "int a;\n")) == []


def test_dev_refuses_what_it_does_not_know():
    for arguments, expected in [(["biuld"], "unknown command: biuld"), (["setup", "--frob"], "unknown option of setup: --frob"),
                                (["bench", "no-such"], "no benchmark is called no-such")]:
        result = subprocess.run([ROOT / "dev", *arguments], capture_output=True, text=True)
        assert result.returncode == 1
        assert expected in result.stderr


def test_dev_help_names_every_command():
    result = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True)
    for command in ("setup", "build", "run", "test", "bench", "format", "lint"):
        assert f"\n  {command} " in result.stdout


@pytest.mark.parametrize("shares, cores", [
    ([0.8, 0.4, 0.4], [0, 1, 1]), ([0.75, 0.5, 0.25, 0.5], [0, 1, 0, 1]), ([0.4] * 5, [0, 1, 0, 1, 0]), ([0.2, 0.2, 0.5], [1, 1, 0])])
def test_no_core_has_more_of_emulated_hosts_than_it_must(shares, cores):
    places = netlab.spread_over_cores(shares, [0, 1])
    assert [places[host] for host in range(len(shares))] == cores


def test_a_peer_that_fails_gets_no_further_turn_and_the_others_go_on(capsys):
    order = []

    def run(name, fails_at=None):
        order.append(name)
        if order.count(name) == fails_at:
            raise turns.Failed("peer.py: a warning\n[rank1]: RuntimeError: no such backend\n[rank0]: RuntimeError: connection closed\n")
        return {"seconds": [1.0]}

    runs = {("ddp", ""): lambda: run("ddp"), ("zero-1", "sums on owners"): lambda: run("zero-1", fails_at=2), ("fsdp2", ""): lambda: run("fsdp2")}
    ended = []
    results, failed = turns.take_turns(runs, 3, end=lambda turn, key, of: ended.append((turn, key[0], len(of))))
    assert order == ["ddp", "zero-1", "fsdp2", "fsdp2", "zero-1", "ddp", "ddp", "fsdp2"]
    assert {way: len(of) for (way, _), of in results.items()} == {"ddp": 3, "fsdp2": 3}
    assert failed == {("zero-1", "sums on owners"): "[rank1]: RuntimeError: no such backend"}
    assert ended[:4] == [(0, "ddp", 1), (0, "zero-1", 1), (0, "fsdp2", 1), (1, "fsdp2", 2)]
    assert "zero-1, sums on owners: peer.py: a warning" in capsys.readouterr().err


def test_losses_after_the_same_update_differ_by_rounding_alone():
    assert not turns.differs([6.9, 6.5, 6.3], [6.9, 6.50003, 6.2])
    assert turns.differs([6.9, 6.5], [6.9, 6.51])


@pytest.mark.skipif(bool(netlab.missing()), reason=netlab.missing())
def test_a_peer_that_fails_on_one_host_says_why(tmp_path):
    program = tmp_path / "peer.py"
    program.write_text("import os\nif os.environ['RANK'] == '1':\n    raise ValueError('too many ' + os.environ['OF_WHAT'])\nprint('fine')\n")
    with netlab.Lab(2) as two:
        with pytest.raises(turns.Failed) as failure:
            lab.python_on_hosts(two, [program], tmp_path / "log", {"OF_WHAT": "ranks"})
    assert turns.cause(str(failure.value)) == "ValueError: too many ranks"


def test_the_benchmark_of_peers_names_the_ways_that_there_are():
    done = subprocess.run([sys.executable, "bench/peers/run.py", "--ways", "zero-1,no-such"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "not known: no-such; there are ddp, fsdp2, gpipe, 1f1b, 2x2, zero-1, zero-2" in done.stderr
