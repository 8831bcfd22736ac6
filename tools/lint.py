#!/usr/bin/env python3
"""Rules that no compiler checks: the layers of rooms, threads under the thread sanitizer, C++ as clang-format writes it, shell and Python
that parses, tidy plain text."""
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools" / "sanitizers"))
import rooms as sanitizer_rooms  # noqa: E402

TEXT = {".hpp", ".cpp", ".cu", ".py", ".sh", ".md", ".yaml", ".json", ".cmake", ".txt", ".proto", ".svg", ""}
UNTIDY_BY_NATURE = ("examples/", "LICENSE")  # texts that come from elsewhere
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def files():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [ROOT / name for name in sorted(listed.stdout.decode().split("\0")) if name and (ROOT / name).is_file()]


def text_problems(name, text):
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line.endswith((" ", "\t", "\r")):
            yield f"{name}:{number}: white space at the end of the line"
        if "\t" in line and not name.endswith((".txt", ".md")):
            yield f"{name}:{number}: a tab; indent by spaces"
        if UNFINISHED.search(line) and name != "tools/lint.py":
            yield f"{name}:{number}: unfinished: {UNFINISHED.search(line).group()}"
    if text and not text.endswith("\n"):
        yield f"{name}: no newline at the end"
    if name.endswith(".hpp") and "#pragma once" not in text:
        yield f"{name}: a header without #pragma once"


def python_problems(name, text):
    try:
        compile(text, name, "exec")
    except SyntaxError as error:
        yield f"{name}:{error.lineno}: {error.msg}"


def is_shell(path, text):
    return path.suffix == ".sh" or text.startswith(("#!/usr/bin/env bash", "#!/bin/bash", "#!/bin/sh"))


def shell_problems(path):
    command = ["shellcheck", "-x", "-f", "gcc", path] if shutil.which("shellcheck") else ["bash", "-n", path]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        yield (result.stdout + result.stderr).strip().replace(f"{ROOT}/", "")


def format_problems():
    """What `./dev format` would change."""
    names = [str(path.relative_to(ROOT)) for path in files() if path.suffix in (".cpp", ".hpp", ".cu")]
    result = subprocess.run(["clang-format", "--dry-run", "--Werror", *names], cwd=ROOT, capture_output=True, text=True)
    changed = sorted({line.split(":")[0] for line in result.stderr.splitlines() if "error:" in line})
    return [f"{name}: not as ./dev format writes it" for name in changed]


def main():
    found = format_problems() + list(sanitizer_rooms.problems(ROOT)) + list(sanitizer_rooms.strangers(ROOT))
    for path in files():
        name = str(path.relative_to(ROOT))
        if path.suffix not in TEXT or name.startswith(UNTIDY_BY_NATURE):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += text_problems(name, text)
        if path.suffix == ".py":
            found += python_problems(name, text)
        elif is_shell(path, text):
            found += shell_problems(path)
    for problem in found:
        print(problem)
    layers = subprocess.run([sys.executable, "tools/check_layers.py"], cwd=ROOT).returncode
    if found or layers != 0:
        sys.exit(f"lint: {len(found)} problems" if found else "lint: the layers do not hold")
    print("lint: clean")


if __name__ == "__main__":
    main()
