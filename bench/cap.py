#!/usr/bin/env python3
"""Does the cap hold, and is the result right? Real programs in a fraction of the memory that they need.

Each program runs natively first, which gives its output, its time and its need (the peak of anonymous and shared
memory of all its processes). Then it runs under `pagetide run --memory CAP` with CAP = factor × need, inside a cgroup
without swap of CAP × 1.03 + 32 MiB. It passes when it exits with 0, prints the same, no process was killed for want
of memory, and resident memory with page tables, sampled every 10 ms, never exceeded CAP × 1.03.

Beside it the kernel's swap to zram (lz4), with CAP as the cgroup's limit: here zram's memory comes on top (column Z),
so this arm has more RAM than ours. With --same-total a further run of ours has CAP + Z, the kernel's total, under the
same conditions; speed.py compares that way in pairs.
"""

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pagetide_bench import store
from pagetide_bench.commands import build_programs, have, python, python_program
from pagetide_bench.figures import print_table
from pagetide_bench.inputs import LINUX_ARCHIVE, linux_source, make_once, write_sort_file
from pagetide_bench.kernel import KERNEL_CONFIGS
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_arm_options
from pagetide_bench.paths import DATA, PROGRAM_SOURCES, REPO
from pagetide_bench.runs import run_kernel, run_native, run_pagetide
from pagetide_bench.sampling import Sampling
from pagetide_bench.script import main_guard, progress
from pagetide_bench.sizes import MIB, whole_mib

SORT_FILE_MIB = 700
SORT_SMALL_MIB = 100
XZ_MIB = 8
PEAK_FACTOR_MAX = 1.03
# What a run takes at least.
CAP_MIN_MIB = 16

# Debian's: others come without their tests.
CPYTHON = Path("/usr/bin/python3")
CPYTHON_TESTS = ("mmap", "subprocess", "os", "multiprocessing_fork", "multiprocessing_forkserver", "multiprocessing_spawn", "threading", "gc", "io")

# Some 500 MiB in memory, of which a part goes and changes.
SQL = """
CREATE TABLE visit(id INTEGER PRIMARY KEY, person INTEGER, page TEXT, note TEXT, seconds REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1700000)
INSERT INTO visit SELECT i, i * 7919 % 50021, 'https://example.org/page/' || (i * 40503 % 9973),
    printf('%0*x', 40 + i % 200, i * 2654435761 % 4294967296), i % 977 / 10.0 FROM n;
CREATE INDEX by_person ON visit(person, seconds);
DELETE FROM visit WHERE id % 7 = 3;
UPDATE visit SET note = upper(note) || person WHERE id % 5 = 2;
PRAGMA integrity_check;
SELECT count(*), round(sum(seconds), 1), sum(length(note)) FROM visit;
SELECT page, count(*) c, round(avg(seconds), 3) FROM visit GROUP BY page ORDER BY c DESC, page LIMIT 5;
SELECT count(*) FROM visit a JOIN visit b ON a.person = b.person AND a.id < b.id WHERE a.id % 10 = 0;
PRAGMA page_count;
"""


@dataclass(frozen=True)
class Program:
    name: str
    command: object  # a function that makes what the command needs and returns the command
    requires: tuple = ()  # programs, or files
    env: dict = field(default_factory=dict)


def analytics_command():
    return python(REPO / "examples" / "analytics.py")


def dict_command():
    return python_program("dictjob.py")


def shell(script):
    """In the directory of the data. It fails where a part of a pipe does."""
    return ["bash", "-o", "pipefail", "-c", script]


def sort_command(size_mib):
    path = DATA / f"sort-{size_mib}.txt"
    if not path.exists():
        write_sort_file(path, size_mib * MIB)
    return shell(f"sort -S 1G --parallel=2 -T . {path.name} | sha256sum")


def gcc_command():
    source = DATA / "large.c"
    if not source.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        subprocess.run(python_program("gcc_source.py", "--output", source), check=True)
    # The object file's contents are the output that must not change.
    return shell(f"gcc -O2 -c {shlex.quote(str(source))} -o large.o && sha256sum < large.o && rm large.o")


def incompressible_command():
    (program,) = build_programs("incompressible")
    return [program, "--mib", 1024, "--threads", 4]


def fork_fan_command():
    return python_program("fork_fan.py")


def make_command():
    build = f'make -s -C {linux_source()} O="$PWD/kernel"'
    return shell(f"rm -rf kernel && {build} tinyconfig && {build} -j4 vmlinux && sha256sum < kernel/vmlinux")


def git_command():
    """Packs a long history anew, and reads all of it again."""
    history = shlex.join(python_program("repository.py"))
    repository = make_once("repository", f"git init -q partial; {history} | git -C partial fast-import --quiet")
    objects = "git rev-list --objects --all | cut -c -40 | sort | sha256sum"
    return shell(f"rm -rf packed && cp -r {repository}/.git packed && cd packed && git gc -q && git fsck --full --no-progress && {objects}")


def xz_command():
    # A block for each thread, or one would do all the work.
    sources = make_once("source.txt", f"rmdir partial; cat {linux_source()}/kernel/*.c {linux_source()}/fs/*/*.c | head -c {XZ_MIB}M > partial")
    return shell(f"xz -9 -T2 --block-size={XZ_MIB // 2}MiB < {sources} | sha256sum")


PROGRAMS = (
    Program("analytics", analytics_command),
    Program("dict", dict_command),
    Program("sort", lambda: sort_command(SORT_FILE_MIB), ("sort",), {"LC_ALL": "C"}),
    Program("gcc", gcc_command, ("gcc",)),
    Program("incompressible", incompressible_command, ("gcc",)),
    Program("fork-fan", fork_fan_command),
    Program("redis", lambda: python_program("redis_bgsave.py"), ("redis-server",)),
    Program("mariadb", lambda: python_program("mariadb_sysbench.py"), ("mariadbd", "mariadb-install-db", "mariadb", "sysbench")),
    Program("sqlite", lambda: ["sqlite3", ":memory:", SQL], ("sqlite3",)),
    Program("sort-small", lambda: sort_command(SORT_SMALL_MIB), ("sort",), {"LC_ALL": "C"}),
    Program("git-gc", git_command, ("git",)),
    Program("xz", xz_command, ("xz", LINUX_ARCHIVE)),
    Program("make", make_command, ("make", "gcc", "flex", "bison", "bc", LINUX_ARCHIVE), {"KBUILD_BUILD_TIMESTAMP": "0", "KBUILD_BUILD_USER": "a", "KBUILD_BUILD_HOST": "b"}),
    *(
        Program(f"cpython-{name}", lambda name=name: [CPYTHON, PROGRAM_SOURCES / "cpython_test.py", f"test_{name}"], (CPYTHON,))
        for name in CPYTHON_TESTS
    ),
)


def measure_native(program, command):
    run = run_native(command, env=program.env, sampling=Sampling.MEMORY, cwd=DATA)
    run.require_success()
    progress(f"{program.name}: native {run.wall_seconds:.1f} s, needs {run.resident_peak_bytes / MIB:.0f} MiB")
    return run


def measure_kernel(program, command, cap_bytes, options):
    config = KERNEL_CONFIGS["zram-lz4"]
    run = run_kernel(config, cap_bytes, command, env=program.env, cwd=DATA, timeout_seconds=options.timeout)
    progress(f"{program.name}: kernel at {cap_bytes // MIB} MiB {describe(run)}, Z {run.swap_used_peak_bytes // MIB} MiB")
    return run


def measure_ours(program, command, cap_bytes, options):
    run = run_pagetide(
        cap_bytes, command, options.pagetide, options.run_options,
        env={**program.env, "PAGETIDE_MASK": options.mask}, sampling=Sampling.MEMORY, cwd=DATA, timeout_seconds=options.timeout,
    )  # fmt: skip
    progress(f"{program.name}: ours at {cap_bytes // MIB} MiB {describe(run)}, peak {run.counted_peak_bytes / MIB:.0f} MiB")
    if run.status or run.timed_out:
        progress(run.stderr.decode(errors="replace")[-600:])
    return run


def describe(run):
    ending = f", {run.timed_out or f'status {run.status}'}" if run.status or run.timed_out else ""
    return f"{run.wall_seconds:.1f} s{ending}"


def failures(run, native, cap_bytes):
    """What is wrong with our run; empty if it passes."""
    found = []
    if run.timed_out:
        found.append("time-out")
    elif run.status:
        found.append(f"status {run.status}")
    if run.oom_kills:
        found.append(f"{run.oom_kills} killed for want of memory")
    if run.stdout != native.stdout:
        found.append("other output")
    if run.counted_peak_bytes > whole_cap(cap_bytes) * PEAK_FACTOR_MAX:
        found.append("above the cap")
    return found


def whole_cap(cap_bytes):
    """The cap as it is asked for."""
    return whole_mib(cap_bytes) * MIB


def measure(program, options):
    """One result for each factor."""
    command = list(program.command())
    native = measure_native(program, command)
    results = []
    for factor in options.factor:
        cap_bytes = max(whole_cap(int(native.resident_peak_bytes * factor)), CAP_MIN_MIB * MIB)
        kernel = None if options.skip_kernel else measure_kernel(program, command, cap_bytes, options)
        ours = None if options.skip_ours else measure_ours(program, command, cap_bytes, options)
        same_total_bytes, same_total = None, None
        if options.same_total and kernel and ours:
            same_total_bytes = whole_cap(cap_bytes + kernel.swap_used_peak_bytes)
            same_total = measure_ours(program, command, same_total_bytes, options)
        results.append({
            "program": program.name,
            "factor": factor,
            "need_bytes": native.resident_peak_bytes,
            "cap_bytes": cap_bytes,
            "native": native.figures(),
            "kernel": kernel and kernel.figures(),
            "kernel_failed": kernel and bool(kernel.status or kernel.stdout != native.stdout),
            "ours": ours and ours.figures(),
            "same_total": same_total and same_total.figures(),
            "failures": ours and failures(ours, native, cap_bytes) + (failures(same_total, native, same_total_bytes) if same_total else []),
        })  # fmt: skip
    return results


HEADER = ("program", "need MiB", "factor", "cap MiB", "native s", "kernel s", "Z MiB", "ours s", "ours + Z s", "peak MiB", "of cap", "CPU native/kernel/ours", "verdict")


def table_row(result):
    native, kernel, ours = result["native"], result["kernel"], result["ours"]
    cpu = "/".join(f"{run['cpu_seconds']:.0f}" if run else "–" for run in (native, kernel, ours))
    peak = ours["counted_peak_bytes"] if ours else 0
    return (
        result["program"],
        f"{result['need_bytes'] / MIB:.0f}",
        result["factor"],
        result["cap_bytes"] // MIB,
        f"{native['wall_seconds']:.1f}",
        f"{kernel['wall_seconds']:.1f}{' FAILED' if result['kernel_failed'] else ''}" if kernel else "–",
        kernel["swap_used_peak_bytes"] // MIB if kernel else "–",
        f"{ours['wall_seconds']:.1f}" if ours else "–",
        f"{result['same_total']['wall_seconds']:.1f}" if result["same_total"] else "–",
        f"{peak / MIB:.0f}" if ours else "–",
        f"{peak / result['cap_bytes']:.3f}" if ours else "–",
        cpu,
        "–" if ours is None else "; ".join(result["failures"]) or "pass",
    )


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"of {', '.join(names)} (may be repeated)")
    parser.add_argument("--factor", action="append", type=float, help="cap as a part of the need (default 0.6; may be repeated)")
    parser.add_argument("--skip-kernel", action="store_true", help="leave the kernel's arm out")
    parser.add_argument("--skip-ours", action="store_true", help="leave our arm out")
    parser.add_argument("--mask", default="", metavar="WAYS", help="ways out and in that ours does without (docs/testing.md)")
    parser.add_argument("--same-total", action="store_true", help="run ours with the kernel's total memory too")
    parser.add_argument("--timeout", type=float, default=600, help="seconds until a run is given up (default %(default)s)")
    add_arm_options(parser)
    options = parser.parse_args()
    options.factor = options.factor or [0.6]
    if not options.skip_ours and not options.pagetide.exists():
        print(f"NOTE: {options.pagetide} is not built: leaving our arm out", file=sys.stderr)
        options.skip_ours = True
    return options


def main(options):
    os.makedirs(DATA, exist_ok=True)
    facts = print_machine()
    results, skipped = [], []
    for program in PROGRAMS:
        if options.only and program.name not in options.only:
            continue
        if missing := [name for name in program.requires if not have(name)]:
            skipped.append(f"SKIPPED {program.name}: not installed: {', '.join(map(str, missing))}")
            progress(skipped[-1])
            continue
        results += measure(program, options)
        store.save(options, facts, results, skipped=skipped)
    print()
    print_table(HEADER, [table_row(result) for result in results])
    print("\n".join(skipped))
    return 1 if any(result["failures"] for result in results) else 0


if __name__ == "__main__":
    main_guard(parse, main)
