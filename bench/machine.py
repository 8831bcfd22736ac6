"""What a benchmark ran on."""
import json
import pathlib
import platform
import subprocess
import sys

NOT_FOUND = 3  # as `tessera` exits where something that should exist does not
ASK = """import json, torch
found = torch.cuda.is_available()
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "name": torch.cuda.get_device_name(0) if found else None,
                  "memory": torch.cuda.get_device_properties(0).total_memory if found else 0}))"""


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def gpu_or_exit():
    """The first GPU: its name and memory (bytes), and which torch sees it. Asked by a process of its own, which leaves nothing on it."""
    found = json.loads(subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout)
    if found["name"] is None:
        built = f"is built for CUDA {found['cuda']} and finds no device" if found["cuda"] else "is built for CPUs alone"
        print(f"there is no GPU here that this torch can use: torch {found['torch']} {built}", file=sys.stderr)
        sys.exit(NOT_FOUND)
    return found
