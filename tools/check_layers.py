#!/usr/bin/env python3
"""Checks that rooms include and link only rooms above them, and that torch stays in its rooms.

The order is that of docs/architecture.md. What is read: `#include "room/..."` and `#include <torch/...>` lines of src/ROOM,
and `tessera::ROOM` in src/ROOM/CMakeLists.txt. A *_main.cpp, and the target made of it, joins rooms and may include all.
"""
import argparse
import pathlib
import re
import sys

# Highest first: a room may use those before it.
ROOMS = ["base", "model", "cluster", "profile", "plan", "program", "cost", "calibrate", "sim", "search", "interop", "comm", "data", "ps", "nn", "checkpoint", "train",
         "control", "observe", "cli"]
TORCH_ROOMS = {"nn", "checkpoint", "train"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
TORCH_HEADER = re.compile(r"^(torch|ATen|c10|caffe2)/")
# Whole of torch costs 16 s and 1.4 GB a file.
HEAVY_HEADERS = {"torch/torch.h", "torch/nn.h", "torch/all.h"}
LINK_CALL = re.compile(r"\b(tessera_room|target_link_libraries)\s*\(([^)]*)\)", re.IGNORECASE)
LINKED = re.compile(r"\btessera(?:::|_)(\w+)")
SOURCES = {".hpp", ".cpp", ".h", ".cu", ".cuh"}


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def may_use(room, other):
    """None when allowed, otherwise why not."""
    if other == room:
        return None
    if other in TORCH_ROOMS and room not in TORCH_ROOMS:
        return f"{other} holds torch, and {room} must do without"
    if ROOMS.index(other) > ROOMS.index(room):
        return f"{other} is below {room}; a room uses only rooms above it: {', '.join(ROOMS[:ROOMS.index(room)]) or 'none'}"
    return None


def source_problems(room, path, text):
    for match in INCLUDE.finditer(text):
        header = match.group(2)
        where = f"{path}:{line_of(text, match.start())}"
        if header in HEAVY_HEADERS:
            yield f"{where}: includes <{header}>, which costs 16 s and 1.4 GB; include the ATen headers that are used"
        elif TORCH_HEADER.match(header) and room not in TORCH_ROOMS:
            yield f"{where}: includes <{header}>; torch is for {', '.join(sorted(TORCH_ROOMS))} only"
        elif match.group(1) == '"':
            other = header.split("/")[0]
            reason = may_use(room, other) if "/" in header and other in ROOMS else None
            if reason:
                yield f"{where}: includes \"{header}\": {reason}"


def link_problems(room, path, text):
    text = re.sub(r"#[^\n]*", lambda comment: " " * len(comment.group()), text)
    for call in LINK_CALL.finditer(text):
        # An executable is a *_main.cpp and joins rooms; the room itself is `tessera_room(room` or tessera_<room>.
        target = call.group(2).split()[0] if call.group(2).split() else ""
        if call.group(1).lower() == "target_link_libraries" and target != f"tessera_{room}":
            continue
        first = call.start(2) + call.group(2).find(target) + len(target)
        for linked in LINKED.finditer(text, first, call.end()):
            other = linked.group(1)
            reason = may_use(room, other) if other in ROOMS else None
            if reason:
                yield f"{path}:{line_of(text, linked.start())}: links tessera::{other}: {reason}"


def problems(root):
    source = root / "src"
    for folder in sorted(path for path in source.iterdir() if path.is_dir()):
        room = folder.name
        if room not in ROOMS:
            yield f"{folder.relative_to(root)}: is no room; rooms are {', '.join(ROOMS)}"
            continue
        for path in sorted(folder.rglob("*")):
            shown = path.relative_to(root)
            if path.name == "CMakeLists.txt":
                yield from link_problems(room, shown, path.read_text(encoding="utf-8"))
            elif path.suffix in SOURCES and not path.name.endswith("_main.cpp"):
                yield from source_problems(room, shown, path.read_text(encoding="utf-8"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    found = list(problems(parser.parse_args().root))
    for problem in found:
        print(problem)
    if found:
        sys.exit(f"{len(found)} problem{'s' if len(found) > 1 else ''} with the layers of rooms")
    print("layers: every room uses only rooms above it")


if __name__ == "__main__":
    main()
