"""The emulated hosts of tools/netlab, for benchmarks that run over links."""
import importlib.machinery
import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def load_netlab():
    loader = importlib.machinery.SourceFileLoader("netlab", str(ROOT / "tools" / "netlab"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("netlab", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module
