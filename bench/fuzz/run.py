"""Fuzzes every reader of files that others write, one after the other, with sanitizers and guided by coverage.

    python bench/fuzz/run.py [--seconds 600] [--seed 1] [--target NAME ...] [--out build/fuzz/found] [--json]

Inputs are right files that were changed: values left out, doubled, retyped, nested, made huge, bytes flipped, files cut off. Each must
be read or refused with the reader's own error code. A crash, a sanitizer's report, another exception, 10 s of CPU time, 256 MiB in
one allocation or 1 GiB in all is a find: its input is kept in the folder of --out. Ends with 1 when there was one.
To look at a find: build/fuzz/bin/tessera-fuzz replay TARGET FILE. Once fixed it goes into tests/fuzz/found/TARGET/.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "fuzz" / "bin" / "tessera-fuzz"
ENVIRONMENT = {"ASAN_OPTIONS": "handle_abort=1:max_allocation_size_mb=256:hard_rss_limit_mb=1024:quarantine_size_mb=16",
               "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
               "LSAN_OPTIONS": f"suppressions={ROOT}/tools/sanitizers/lsan.supp:print_suppressions=0"}
SUMS = ("executions", "read", "refused")


def cause(log):
    """The line of a sanitizer's report that names the problem."""
    for pattern in (r"runtime error: .*", r"SUMMARY: .*", r"hard rss limit exhausted.*", r"ERROR: .*"):
        found = re.search(pattern, log)
        if found:
            return found.group()
    return log.strip().splitlines()[-1] if log.strip() else "ended without a word"


def keep_current(out, target):
    """The input that ended the process, as a file of its own."""
    current = (out / "current").read_bytes()
    length = int.from_bytes(current[:8], "little")
    content = current[8:8 + length]
    path = out / f"{target}-{hashlib.sha256(content).hexdigest()[:12]}"
    path.write_bytes(content)
    return path


def fuzz(target, seconds, seed, out):
    """Goes on with another seed behind each input that ended the process, until the time is over."""
    total = {"target": target, "executions": 0, "read": 0, "refused": 0, "edges": 0, "corpus": 0, "slowest_s": 0.0, "finds": []}
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0.2:
        result = subprocess.run([PROGRAM, target, f"{left:.1f}", str(seed), out], env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True,
                                errors="replace")
        seed += 1
        if result.returncode != 0:
            path = keep_current(out, target)
            pathlib.Path(f"{path}.log").write_text(result.stderr)
            total["finds"].append({"what": cause(result.stderr), "file": str(path)})
            continue
        report = json.loads(result.stdout)
        for key in SUMS:
            total[key] += report[key]
        for key in ("edges", "corpus", "slowest_s"):
            total[key] = max(total[key], report[key])
        total["finds"] += report["defects"]
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="for all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", help="only this one; may stand several times")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "fuzz" / "found")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if subprocess.run([ROOT / "dev", "build", "fuzz", "tessera-fuzz"]).returncode != 0:
        sys.exit(2)
    targets = arguments.target or subprocess.run([PROGRAM, "list"], check=True, capture_output=True, text=True).stdout.split()
    arguments.out.mkdir(parents=True, exist_ok=True)
    reports = []
    if not arguments.json:
        print(f"{'reader':<16}{'executions':>11}{'a second':>10}{'read':>10}{'refused':>10}{'edges':>8}{'corpus':>8}{'slowest':>10}{'finds':>7}", flush=True)
    for target in targets:
        start = time.monotonic()
        report = fuzz(target, arguments.seconds / len(targets), arguments.seed, arguments.out)
        seconds = time.monotonic() - start
        reports.append(report)
        if not arguments.json:
            print(f"{target:<16}{report['executions']:>11}{report['executions'] / seconds:>10.0f}{report['read']:>10}{report['refused']:>10}"
                  f"{report['edges']:>8}{report['corpus']:>8}{report['slowest_s']:>8.2f} s{len(report['finds']):>7}", flush=True)
    finds = [find for report in reports for find in report["finds"]]
    if arguments.json:
        print(json.dumps({"seconds": arguments.seconds, "targets": reports, "finds": len(finds)}))
    else:
        print(f"{sum(report['executions'] for report in reports)} inputs in {arguments.seconds:.0f} s, {len(finds)} finds")
        for find in finds:
            print(f"  {find['what'][:200]}\n    {find['file']}")
    sys.exit(1 if finds else 0)


if __name__ == "__main__":
    main()
