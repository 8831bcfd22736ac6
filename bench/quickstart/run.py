"""Times what a newcomer does: clones the repository, types README's first command, and lets the model write.

    python bench/quickstart/run.py [--prompt TEXT] [--keep]

Prints the seconds from the command to its end, its last lines, and the generated text.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", default="ROMEO:")
    parser.add_argument("--keep", action="store_true", help="leave the clone")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-quickstart-"))
    try:
        clone = folder / "tessera"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        begin = time.monotonic()
        result = subprocess.run(["./dev", "run", "train", "examples/shakespeare/train.yaml"], cwd=clone, capture_output=True, text=True)
        seconds = time.monotonic() - begin
        lines = (result.stdout + result.stderr).splitlines()
        if result.returncode != 0:
            sys.exit("\n".join(lines[-20:]))
        print(f"{seconds:.0f} s from the command to its end; its last lines:")
        print("\n".join("  " + line for line in lines[-6:]))
        text = subprocess.run(["./dev", "run", "generate", "shakespeare", "--prompt", arguments.prompt], cwd=clone, capture_output=True, text=True, check=True).stdout
        print("it writes:")
        print("\n".join("  " + line for line in text.splitlines()))
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"the clone is {folder}")


if __name__ == "__main__":
    main()
