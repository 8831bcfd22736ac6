"""Every page of docs/tasks, typed from top to bottom: the pages are the script.

What a page indents is typed as it stands, line by line, in one shell and one folder. What it fences is shown: an answer, a command for
machines that are not here, or a file, which is made where the fence names it (```yaml hosts.yaml). The walk knows three comments at
the end of a line: `# ... Ctrl-C ...` is stopped once it trains, lines `# on the ... host` run side by side, `# as root` needs root.
Several hosts are this one: their addresses are the loopback's, and srun and ssh start what they are told here.
"""

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import BINARIES, REPOSITORY, SHAKESPEARE, free_place

# All but the one whose commands need a GPU.
PAGES = [*sorted(set((REPOSITORY / "docs" / "tasks").glob("*.md")) - {REPOSITORY / "docs" / "tasks" / "on-a-gpu.md"}), REPOSITORY / "examples" / "own-model" / "README.md"]
STOPPED = 75  # the exit code of a run that was asked to stop

# What each page takes for granted: the first week's model, small enough for a walk.
INIT = "tessera init --source my-texts/ --size tiny --vocab 1024 --yes"
BEFORE = {
    "choose-a-plan": [INIT + " --steps 12"],
    "look-at-a-run": [INIT + " --steps 12"],
    "resume": [INIT + " --steps 200"],  # more than end while a busy machine looks away
    "hugging-face": [INIT + " --steps 4 -o poems.yaml", "tessera train poems.yaml --no-measure --set 'parallel={dp: 1}'"],
    "torchvision": ["printf 'name: flowers\\nmodel: {arch: resnet18, image: 32, classes: 10}\\ndata: {source: synthetic}\\ntrain: {steps: 2, global_batch: 4}\\n' > small.yaml",
                    "tessera train small.yaml --no-measure --set 'parallel={dp: 1}'"],
    "train-on-images": [f"ln -s {REPOSITORY}/examples ."],
    "click-logs": [f"cp -r {REPOSITORY}/examples . && ln -s {REPOSITORY}/.venv .venv"],
    "several-hosts": [INIT + " --steps 12"],
    "from-galvatron": [f"cp {REPOSITORY}/bench/planner/inputs/* ."],
    "own-model": [f"cp -r {REPOSITORY}/examples . && rm -rf examples/own-model/build"],
}

DEV = f"""#!/bin/sh
# A clone's ./dev without its build, which is what is tested.
if [ "$1" != run ]; then exec {REPOSITORY}/dev "$@"; fi
shift
TESSERA_COMMAND='./dev run' exec {BINARIES}/tessera "$@"
"""

SRUN = """#!/usr/bin/env bash
# Slurm's srun as far as the pages use it: every task is a process of this host.
while [[ $1 == --* ]]; do
  case $1 in --nodes) nodes=$2 ;; --ntasks-per-node) tasks=$2 ;; esac
  shift 2
done
export SLURM_NTASKS=$((nodes * tasks))
for ((task = 0; task < SLURM_NTASKS; ++task)); do SLURM_PROCID=$task SLURMD_NODENAME=node-$((task / tasks)) "$@" & done
status=0
for job in $(jobs -p); do wait "$job" || status=$?; done
exit $status
"""


SSH = """#!/bin/sh
# ssh as `tessera train --hosts` calls it: options, --, a host and a command.
while [ "$1" != -- ]; do shift; done
shift 2
SSH_CONNECTION='127.0.0.1 40000 127.0.0.1 22' exec sh -c "$*"
"""


@dataclass
class Step:
    line: int  # of the page, from 1
    command: str = ""
    file: str = ""
    content: str = ""


def steps_of(text):
    """The commands of a page and the files that it says to make, in order."""
    steps = []
    fence = None
    indent = ""
    before = ""
    typed = False
    for number, line in enumerate(text.splitlines(), 1):
        opening = re.fullmatch(r" *```\w*(?: (\S+))?", line)
        if fence is not None:
            if opening:
                if fence.file:
                    steps.append(fence)
                fence = None
            else:
                fence.content += line[len(indent):] + "\n"
        elif opening:
            indent = re.match(" *", line).group()
            fence = Step(number, file=opening[1] or "")
        else:
            # Indented code begins after an empty line; within lists text is indented by up to three.
            typed = line.startswith("    ") and (typed or not before.strip())
            if typed:
                steps.append(Step(number, command=line.strip()))
        before = line
    assert fence is None, "a fence has no end"
    return steps


class Shell:
    """One user's shell: what a line exports, later lines see."""

    def __init__(self, page, folder, environment):
        self.page, self.folder, self.environment = page, folder, environment
        self.kept = folder.parent / "environment"

    def start(self, command, **options):
        # Whatever the line does, its environment is the next line's; -e: of a line in parentheses or with ; the first failure counts.
        script = f"trap 'status=$?; env -0 > {self.kept}; exit $status' EXIT\n{command}\n"
        return subprocess.Popen(["bash", "-ec", script], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, **options)

    def finish(self, step, process, expected=(0,)):
        try:
            said, _ = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()[0] + "\n(still running after three minutes)"
        print(f"{self.page.name}:{step.line}: {step.command}\n{said}")
        if process.returncode not in expected:
            pytest.fail(f"{self.page.relative_to(REPOSITORY)}:{step.line}: `{step.command}`: exit code {process.returncode}\n{said}", pytrace=False)
        variables = self.kept.read_bytes().split(b"\0")
        self.environment = dict(variable.decode().split("=", 1) for variable in variables if b"=" in variable)

    def type(self, step):
        process = self.start(step.command)
        if "Ctrl-C" in step.command.partition("#")[2]:
            self.press_ctrl_c(process)
            self.finish(step, process, (STOPPED,))
        else:
            self.finish(step, process)

    def press_ctrl_c(self, process):
        while process.poll() is None:
            if any(metrics.stat().st_size for metrics in self.folder.glob("runs/*/metrics.jsonl")):
                os.killpg(process.pid, signal.SIGINT)
                return
            time.sleep(0.02)


def side_by_side(step):
    return bool(re.search(r"# on the .*host", step.command))


def walk(shell, steps):
    while steps:
        step = steps.pop(0)
        if step.file:
            (shell.folder / step.file).write_text(step.content)
        elif side_by_side(step):
            together = [step]
            while steps and side_by_side(steps[0]):
                together.append(steps.pop(0))
            processes = [shell.start(one.command) for one in together]
            for one, process in zip(together, processes):
                shell.finish(one, process)
        elif "# as root" in step.command and os.geteuid() != 0:
            print(f"{shell.page.name}:{step.line}: not typed, as it needs root: {step.command}")
        else:
            shell.type(step)


def on_this_host(step, port):
    command, content = (re.sub(r"\b10\.0\.0\.\d+\b", "127.0.0.1", text).replace("29500", port) for text in (step.command, step.content))
    return Step(step.line, command, step.file, content)


def name_of(page):
    return page.parent.name if page.stem == "README" else page.stem


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_can_be_typed_as_it_stands(page, tmp_path, cache):
    folder = tmp_path / "clone"
    (folder / "my-texts").mkdir(parents=True)
    (folder / "my-texts" / "plays.txt").write_text(SHAKESPEARE.read_text()[:300_000])
    (folder / "tools").symlink_to(REPOSITORY / "tools")
    programs = tmp_path / "bin"
    programs.mkdir()
    for path, script in [(folder / "dev", DEV), (programs / "srun", SRUN), (programs / "ssh", SSH)]:
        path.write_text(script)
        path.chmod(0o755)
    path = os.pathsep.join(map(str, [programs, BINARIES, os.environ["PATH"]]))
    environment = dict(os.environ, PATH=path, HOME=str(tmp_path), TESSERA_CACHE=str(cache), NO_COLOR="1", OMPI_ALLOW_RUN_AS_ROOT="1",
                       OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    shell = Shell(page, folder, environment)
    steps = steps_of(page.read_text())
    assert any(step.command for step in steps), f"{page.name} has nothing to type"
    port = free_place().split(":")[1]
    before = [Step(0, command=command) for command in BEFORE.get(name_of(page), [])]
    walk(shell, before + [on_this_host(step, port) for step in steps])


def test_the_walk_reads_pages_as_people_do():
    text = """# A page

Text.

    first --option
    second    # with a comment

1. An item
   that goes on, and is text
       though this line is far in:

       third

   ```yaml made.yaml
   key: value
       deeper: 1
   ```

```sh
not typed
```
    text, since no empty line stands before it
"""
    steps = steps_of(text)
    assert [(step.line, step.command) for step in steps if step.command] == [(5, "first --option"), (6, "second    # with a comment"), (12, "third")]
    assert [(step.file, step.content) for step in steps if step.file] == [("made.yaml", "key: value\n    deeper: 1\n")]


def test_a_line_that_fails_is_named(tmp_path):
    folder = tmp_path / "clone"
    folder.mkdir()
    shell = Shell(PAGES[0], folder, dict(os.environ))
    walk(shell, [Step(3, command="export KEPT='a b'"), Step(4, command='test "$KEPT" = "a b"   # of the line before')])
    with pytest.raises(pytest.fail.Exception, match=rf"docs/tasks/{PAGES[0].name}:7: `echo said; false`: exit code 1\nsaid"):
        walk(shell, [Step(7, command="echo said; false")])
