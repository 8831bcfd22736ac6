"""Packages that a benchmark compares with: from the package index into .cache, once."""
import pathlib
import subprocess
import sys

CACHE = pathlib.Path(__file__).resolve().parents[1] / ".cache"


def install(python, *words):
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *map(str, words)], check=True, stdout=sys.stderr)


def environment(name, *installs):
    """The Python of a virtual environment of its own, in which each of `installs` (pip's words) is installed."""
    python = CACHE / name / "bin" / "python"
    ready = CACHE / name / "ready"
    if not ready.exists():
        print(f"installing {name} into {CACHE / name}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(CACHE / name)], check=True)
        for words in installs:
            install(python, *words)
        ready.touch()
    return python


def beside_ours(name, *words):
    """A folder for PYTHONPATH with packages (pip's words) that use the torch and NumPy of this Python."""
    folder = CACHE / name
    ready = folder / "ready"
    if not ready.exists():
        print(f"installing {name} into {folder}", file=sys.stderr)
        install(sys.executable, "--no-deps", "--target", folder, *words)
        ready.touch()
    return folder
