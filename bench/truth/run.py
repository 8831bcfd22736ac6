#!/usr/bin/env python3
"""The cost model against published step times and memory: every row, a table per source, each source left out.

    ./dev bench truth [--data DIR] [--json]     DIR: a folder of the same format as bench/truth/data
    ./dev bench truth --fit                     fit the calibrations again (bench/truth/fit.yaml says to which rows)
    ./dev bench truth --tasks FILE --fresh      with calibrations fitted on the rows that FILE says, to see how much the choice matters

Calibrations are in src/profile/calibrations, compiled in: after --fit, run again to see the rows with the new ones.
"""
import argparse
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "bench" / "truth"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--data", help="a folder of tables; default: those of the repository")
    parser.add_argument("--tasks", default=str(HERE / "fit.yaml"))
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fit", action="store_true")
    arguments = parser.parse_args()
    command = [os.path.join(arguments.bin, "tessera_bench_truth"), "--shipped", str(HERE / "data"), "--tasks", arguments.tasks]
    if arguments.data:
        command += ["--data", arguments.data]
    if arguments.fresh:
        command.append("--fresh")
    if arguments.json:
        command.append("--json")
    if arguments.fit:
        command += ["--fit-into", str(ROOT / "src" / "profile" / "calibrations")]
    sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
