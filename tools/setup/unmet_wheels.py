#!/usr/bin/env python3
"""Prints the pins of the given requirements files that this Python does not have, one a line.

A pin without a local part is met by any build of that version: torch==2.13.0 by 2.13.0+cpu.
"""
import importlib.metadata
import sys


def pins(path):
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            pin = line.split("#")[0].strip()
            if pin:
                yield pin


def is_met(pin):
    name, _, wanted = pin.partition("==")
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return found == wanted or found.split("+")[0] == wanted


for path in sys.argv[1:]:
    for pin in pins(path):
        if not is_met(pin):
            print(pin)
