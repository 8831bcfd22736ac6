#!/usr/bin/env python3
"""Tests and measures Tessera on a machine with a GPU, by that machine's own torch and with no network there.

    ./dev setup && python3 tools/gpu.py pack FOLDER    here: the sources, and beside them what Debian's packages give to the build
    python3 FOLDER/tessera/tools/gpu.py check          there: builds, then runs ./dev test --gpu and ./dev bench gpu

The other machine needs g++, CMake, ninja, a Python with torch, and for the CUDA kernels nvcc; FOLDER may stand anywhere. Its processor and C
library must run what this machine's packages hold. `check --build-only` stops before the tests; what follows `--` is for the benchmark.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARRIED = ROOT.parent / "carried"
LIBRARIES = CARRIED / "usr" / "lib" / "x86_64-linux-gnu"
LISTS = ["tools/setup/packages-run.txt", "tools/setup/packages-test.txt", "tools/setup/requirements-run.txt", "tools/setup/requirements-test.txt"]
PROGRAMS = {"protoc": "/usr/bin/protoc", "pkg-config": "/usr/bin/pkg-config"}
# The compiler's own and the C library's stay that machine's; of the rest none is built against.
THEIRS = re.compile(r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp|resolv|util)\.so|ld-linux")
NOT_CARRIED = re.compile(r"(libc|libc6|linux-libc|libstdc\+\+.*|libgcc.*|libcrypt|libnsl|libtirpc|libopenmpi|libpython.*)-dev$")
TARGETS = ["tessera_nn_tests", "tessera_comm_tests", "tessera_bench_step", "tessera", "tessera-worker"]


def output_of(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def development_packages():
    """Those of packages-run.txt that the build reads, with those that they need."""
    wanted = [line.strip() for line in (ROOT / LISTS[0]).read_text().splitlines() if line.strip().endswith("-dev")]
    found = set()
    while wanted:
        name = wanted.pop()
        if name in found or NOT_CARRIED.match(name):
            continue
        status, depends = output_of("dpkg-query", "-W", "-f=${db:Status-Status}|${Depends}", name).split("|", 1)
        if status != "installed":  # one of several that would do, or none but a name for them
            continue
        found.add(name)
        wanted += re.findall(r"([a-z0-9.+-]+-dev)\b", depends)
    return sorted(found)


def copy_library(path):
    """A library beside all others, with the other names by which it is linked and loaded, and those that it needs."""
    real = pathlib.Path(os.path.realpath(path))
    if THEIRS.match(path.name):
        return
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    if not (LIBRARIES / real.name).exists():
        shutil.copy2(real, LIBRARIES / real.name)
        if ".so" in real.name:
            for needed in re.findall(r"=> (/\S+)", output_of("ldd", real)):
                copy_library(pathlib.Path(needed))
        for other in real.parent.glob(real.name.split(".")[0] + ".*"):
            if other.name != real.name and os.path.realpath(other) == str(real):
                (LIBRARIES / other.name).symlink_to(real.name)


def copy_package(name):
    for line in output_of("dpkg", "-L", name).splitlines():
        path = pathlib.Path(line)
        if not path.is_file() or "/ucx/" in line:  # UCX does without its modules for networks that are not TCP
            continue
        if re.search(r"\.so(\.[0-9.]+)?$", path.name):
            copy_library(path)
        elif path.suffix == ".a":
            if not path.with_suffix(".so").exists():
                copy_library(path)
        elif line.startswith(("/usr/include/", "/usr/lib/", "/usr/share/cmake/", "/usr/share/pkgconfig/")):
            to = CARRIED / line[1:]
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, to)


def copy_program(name, path):
    """Behind a script, so that its libraries are found and no other program's are changed."""
    real = CARRIED / "usr" / "bin" / name
    real.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(os.path.realpath(path), real)
    for needed in re.findall(r"=> (/\S+)", output_of("ldd", path)):
        copy_library(pathlib.Path(needed))
    script = CARRIED / "bin" / name
    script.parent.mkdir(exist_ok=True)
    script.write_text('#!/bin/sh\nhere=$(cd "$(dirname "$0")/.." && pwd)\n'
                      f'LD_LIBRARY_PATH=$here/usr/lib/x86_64-linux-gnu exec "$here/usr/bin/{name}" "$@"\n')
    script.chmod(0o755)


def pack(folder):
    global CARRIED, LIBRARIES
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty")
    CARRIED = folder / "carried"
    LIBRARIES = CARRIED / LIBRARIES.relative_to(ROOT.parent / "carried")
    for name in output_of("git", "-C", ROOT, "ls-files", "-z").split("\0"):
        if name and (ROOT / name).is_file():
            to = folder / "tessera" / name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to)
    packages = development_packages()
    for name in packages:
        copy_package(name)
    for name, path in PROGRAMS.items():
        copy_program(name, path)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"{folder}: the sources and {len(packages)} packages, {size / 2**20:.0f} MiB; on the other machine: python3 {folder.name}/tessera/tools/gpu.py check")


def make_environment():
    """A .venv that is this Python, and what makes ./dev take it as set up."""
    binaries = ROOT / ".venv" / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        (binaries / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (binaries / name).chmod(0o755)
    for stage, lists in (("run", [LISTS[0], LISTS[2]]), ("test", [LISTS[0], LISTS[1], LISTS[2], LISTS[3]])):
        sums = subprocess.run("cat " + " ".join(lists) + " | cksum", shell=True, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        (ROOT / ".venv" / f".setup-{stage}").write_text(sums)


def own_standard_library():
    """That machine's libstdc++.so.6, which its libtorch uses. A compiler that has an archive of it alone would give the programs a second one, and
    what one of the two made the other would destroy."""
    for line in output_of("/sbin/ldconfig", "-p").splitlines():
        if "libstdc++.so.6 " in line and "x86-64" in line:
            return line.split("=>")[1].strip()
    return ""


def build():
    make_environment()
    libraries = f"-Wl,-rpath-link,{LIBRARIES} -Wl,--disable-new-dtags -Wl,-rpath,{LIBRARIES}"
    environment = {**os.environ, "PKG_CONFIG": str(CARRIED / "bin" / "pkg-config"), "PKG_CONFIG_SYSROOT_DIR": str(CARRIED),
                   "PKG_CONFIG_LIBDIR": f"{LIBRARIES}/pkgconfig:{CARRIED}/usr/share/pkgconfig:{CARRIED}/usr/lib/pkgconfig"}
    subprocess.run(["cmake", "--preset", "release", f"-DCMAKE_PREFIX_PATH={CARRIED}/usr", f"-DProtobuf_PROTOC_EXECUTABLE={CARRIED}/bin/protoc",
                    f"-DCMAKE_EXE_LINKER_FLAGS={libraries}", f"-DCMAKE_MODULE_LINKER_FLAGS={libraries}", f"-DCMAKE_CXX_STANDARD_LIBRARIES={own_standard_library()}",
                    "-DTESSERA_TORCH_BARE=ON", "-DTESSERA_WERROR=OFF"],
                   cwd=ROOT, check=True, env=environment)
    (ROOT / "build" / "release" / ".configured").touch()
    subprocess.run(["./dev", "build", "release", *TARGETS], cwd=ROOT, check=True, env=environment)


def check(build_only, bench):
    if not CARRIED.is_dir():
        sys.exit(f"there is no folder {CARRIED}: run `tools/gpu.py pack FOLDER` on a machine that ./dev setup has set up, and bring FOLDER here")
    build()
    if build_only:
        return
    codes = [subprocess.run([sys.executable, *command], cwd=ROOT).returncode for command in (["tools/run_tests.py", "--gpu"], ["bench/gpu/run.py", *bench])]
    sys.exit(next((code for code in codes if code != 0), 0))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("pack").add_argument("folder", type=pathlib.Path)
    checking = commands.add_parser("check")
    checking.add_argument("--build-only", action="store_true")
    checking.add_argument("bench", nargs="*")
    arguments = parser.parse_args()
    if arguments.command == "pack":
        pack(arguments.folder)
    else:
        check(arguments.build_only, arguments.bench)


if __name__ == "__main__":
    main()
