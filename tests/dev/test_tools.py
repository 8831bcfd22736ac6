"""The parts of ./dev that decide: which wheels are unmet, how test reports add up, what lint finds."""
import importlib.util
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


run_tests = load(ROOT / "tools" / "run_tests.py")
lint = load(ROOT / "tools" / "lint.py")


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
