#!/usr/bin/env python3
"""Every comparison with the kernel's own swap by one command: `versus.py [ROW…]`.

A row is an unmodified program. Beside the kernel the arms, the pairs and the ratios are those of speed.py: the same
total RAM, the kernel's best configuration of a run of each beforehand, the median of interleaved pairs. Where the
kernel's arm is killed in every configuration its limit is raised by a quarter until one lives; the row says so.

Rows that end in -half and -three-quarters stand beside the program natively instead, in that part of its native peak
of anonymous and shared memory: there the kernel's arm is often killed.

Rows are stored as they end, and a row that has a result of today is left out (--again: measured once more). The pairs of a
row end after an hour. --quick takes a few rows with 3 pairs, for a first look. What shrinkers decide on the traces of
builds is shrinkers.py's, and the processor time of a single fault fault.py's.
"""

import argparse
import copy
import json
import re
import subprocess
from dataclasses import dataclass, field

import build
import cap
import programs
import shared
from pagetide_bench import arms, store
from pagetide_bench.commands import build_programs, have, python, python_program
from pagetide_bench.figures import print_table, quartiles, show_quartiles
from pagetide_bench.inputs import LINUX_ARCHIVE, heap_file
from pagetide_bench.kernel import IN_MEMORY, KERNEL_CONFIGS, ON_DISK, ZRAM
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_arm_options
from pagetide_bench.packages import install_packages
from pagetide_bench.paths import DATA, REPO
from pagetide_bench.runs import run_native, run_pagetide
from pagetide_bench.sampling import Sampling
from pagetide_bench.script import BenchError, main_guard, progress
from pagetide_bench.sizes import MIB

QUICK_PAIRS = 3
RAISES_MAX = 4
HUGE = ("zram-lz4-thp", "zram-lz4-mthp", "zram-lzo-rle-mthp")
DATABASE = ("zram-lz4", "zram-lzo-rle", "file-zswap-lz4", "file-zswap-lzo-rle")


def from_json(run):
    """What the program itself measures, in its JSON."""
    return json.loads(run.stdout)["value"]


def ns_per_page(run):
    return quartiles(json.loads(run.stdout)["pass_ns_per_page"])[1]


def seconds(run):
    return run.wall_seconds


def ms_per_transaction(run):
    return 1000 / float(re.search(rb"transactions: +\d+ +\(([0-9.]+) per sec", run.stderr)[1])


@dataclass(frozen=True)
class Row:
    """A program beside the kernel's swap."""

    name: str
    what: str
    goal: float
    words: object  # a function of the options that makes what the command needs and returns the command
    unit: str = "s"
    measured: object = seconds  # of a run
    packages: tuple = ()  # of Debian
    needs: tuple = ()  # commands and files that those bring
    limit_mib: int = 256
    need_factor: float = 0.0  # where set, the limit is this part of the native peak
    kernels: tuple = ZRAM
    env: dict = field(default_factory=dict)
    may_take_allocator: bool = False
    same_output: bool = False
    quick: bool = False

    def command(self, options):
        return self.words(options)

    def value(self, run):
        return self.measured(run)

    def fill_value(self, run):
        return json.loads(run.stdout).get("fill_ns_per_page") if self.measured is ns_per_page else None

    def measure(self, options):
        options = copy.copy(options)
        options.limit = self.limit_mib * MIB
        if self.need_factor:
            options.limit = int(need_bytes(self, options) * self.need_factor) // MIB * MIB
        options.kernel = [name for name in self.kernels if name in options.kernels]
        killed = []
        for _ in range(RAISES_MAX):
            try:
                return {**arms.measure(self, options), "what": self.what, "killed_at_bytes": killed}
            except arms.NoOpponent:
                killed.append(options.limit)
                options.limit = options.limit * 5 // 4
                progress(f"{self.name}: once more, in {options.limit // MIB} MiB")
        raise BenchError(f"the kernel's arm ends in none of {', '.join(f'{size // MIB} MiB' for size in killed)}")


@dataclass(frozen=True)
class Part:
    """A program in a part of what it needs, beside itself natively."""

    name: str
    program: object  # of programs.py
    factor: float
    goal: float  # Pagetide / native, at most
    quick: bool = False
    same_output = True

    @property
    def packages(self):
        return self.program.packages

    @property
    def needs(self):
        return self.program.needs

    env = property(lambda self: self.program.env)

    def command(self, _options):
        return list(self.program.command())

    def measure(self, options):
        need = need_bytes(self, options)
        cap_bytes = int(need * self.factor) // MIB * MIB
        native, ours = [], []
        for number in range(options.pairs):
            native.append(run_native(self.command(options), env=self.env, cwd=DATA).require_success())
            run = run_pagetide(cap_bytes, self.command(options), options.pagetide, options.run_options, env=self.env, cwd=DATA).require_success()
            ours.append(arms.require_output(self, run, native[-1]))
            left, right = native[-1].wall_seconds, ours[-1].wall_seconds
            progress(f"{self.name}: pair {number + 1}: native {left:.1f} s, ours {right:.1f} s, {right / left:.1f} ×")
        slowdowns = [right.wall_seconds / left.wall_seconds for left, right in zip(native, ours)]
        arms_of = {name: {"values": [run.wall_seconds for run in runs], "cpu_seconds": [run.cpu_seconds for run in runs]} for name, runs in (("native", native), ("ours", ours))}
        return {
            "case": self.name, "what": self.program.what, "unit": "s", "goal": self.goal, "factor": self.factor,
            "need_bytes": need, "limit_bytes": cap_bytes, **arms_of, "slowdowns": slowdowns, "slowdown_median": quartiles(slowdowns)[1],
        }  # fmt: skip


def need_bytes(row, options):
    """The native peak of anonymous and shared memory."""
    run = run_native(row.command(options), env=row.env, sampling=Sampling.MEMORY, cwd=DATA).require_success()
    progress(f"{row.name}: native {run.wall_seconds:.1f} s, needs {run.resident_peak_bytes / MIB:.0f} MiB")
    return run.resident_peak_bytes


# --- The rows -------------------------------------------------------------------------------------------------------


def touch(mib, fill, *words):
    def command(_options):
        (program,) = build_programs("touch")
        return [program, "--mib", mib, "--passes", 3, "--fill", f"heap:{heap_file()}" if fill == "heap" else fill, *words]

    return command


def pages(name, what, goal, mib, fill, *words, kernels, **more):
    return Row(name, what, goal, touch(mib, fill, *words), "ns/page", ns_per_page, ("gcc", "libc6-dev"), ("gcc",), mib // 4, kernels=kernels, **more)


def at_random(fill, threads, goal, **more):
    name = f"{fill}-random-{threads}"
    words = ("--order", "random", "--threads", threads, "--ops", 100_000)
    what = f"{fill} pages at random, {threads} thread{'s' * (threads > 1)}"
    return pages(name, what, goal, 1024, fill, *words, kernels=IN_MEMORY, **more)


def job(name, *words):
    return lambda _options: ["/usr/bin/python3", "-B", REPO / "bench" / "programs" / name, *words]


def mariadb(workload):
    words = ("--mib", 600, "--pool", 1024, "--events", 4000, "--workload", workload)
    command = lambda _options: python_program("mariadb_sysbench.py", *words)  # noqa: E731
    packages, needs = ("mariadb-server", "sysbench"), ("mariadbd", "mariadb-install-db", "mariadb", "sysbench")
    what = f"MariaDB, sysbench {workload.replace('_', '-')}, buffer pool of four times the limit"
    return Row(f"mariadb-{workload.replace('_', '-')}", what, 1.15, command, "ms/transaction", ms_per_transaction, packages, needs, kernels=DATABASE)


def memcached(order):
    what = f"memcached, values of 1000 bytes, pipelined GETs, {order}"
    return Row(f"memcached-{order}", what, 1.15, job("memcached_load.py", 450_000, order, 200_000), "µs/get", from_json, ("memcached",), ("memcached",), 192)


def of_shared(one):
    """A job of shared.py, as it is there."""
    needs = {"pgbench": ("psql", "setpriv")}.get(one.name, ("fio",))
    limit = 128

    def command(options):
        return one.command(argparse.Namespace(**{**vars(options), "limit": limit * MIB, "processes": 16, "mib": 64, "scale": 40, "seconds": 10}))

    return Row(one.name, f"shared memory: {one.name}", one.goal, command, one.unit, from_json, shared.PACKAGES, needs, limit)


def build_command(options):
    return build.make(argparse.Namespace(targets="mm/ kernel/ lib/"), jobs=4)


CAP_PACKAGES = {"redis": "redis-server", "mariadb": "mariadb-server", "sqlite": "sqlite3", "git-gc": "git", "xz": "xz-utils"}
CAP_GOALS = {"analytics": 1.3, "dict": 1.3, "redis": 1.15, "mariadb": 1.15, "make": 1.1}
CAP_QUICK = ("analytics", "dict")
BUILD_PACKAGES = ("make", "gcc", "flex", "bison", "bc", "linux-source-6.1")


def of_cap(program):
    packages = BUILD_PACKAGES if LINUX_ARCHIVE in program.requires else tuple(filter(None, (CAP_PACKAGES.get(program.name),)))
    packages += ("sysbench",) * (program.name == "mariadb")
    goal = CAP_GOALS.get(program.name, 1.0)
    return Row(
        program.name, f"{program.name} in 0.6 of its peak", goal, lambda _options: list(program.command()), packages=packages, needs=program.requires,
        need_factor=0.6, env=program.env, same_output=True, may_take_allocator=program.name == "dict", quick=program.name in CAP_QUICK,
    )  # fmt: skip


HALVES = {"php": 8, "perl": 10, "java-g1": 20, "luajit": 10, "pypy": 10, "ghc": 10, "haskell": 10, "guile": 10}


def parts():
    for program in programs.PROGRAMS:
        if program.name in HALVES:
            yield Part(f"{program.name}-half", program, 0.5, HALVES[program.name])
            yield Part(f"{program.name}-three-quarters", program, 0.75, 3)


ROWS = (
    pages("zero-order-4k", "zero pages in order, 4 GiB, small pages", 5.0, 4096, "zero", "--order", "seq", kernels=ZRAM, quick=True),
    pages("zero-order-huge", "zero pages in order, 4 GiB, huge pages", 5.0, 4096, "zero", "--order", "seq", kernels=HUGE),
    pages("heap-order", "heap pages in order", 4.0, 1024, "heap", "--order", "seq", kernels=IN_MEMORY, quick=True),
    at_random("heap", 1, 1.2, quick=True),
    at_random("heap", 2, 1.1),
    at_random("zero", 1, 1.0),
    at_random("zero", 2, 1.0),
    pages("shared-order", "one object of shared memory of 4 GiB, in order", 2.0, 4096, "heap", "--shared", "--order", "seq", kernels=ZRAM),
    pages("shared-random-1", "shared heap pages at random, 1 thread", 0.8, 1024, "heap", "--shared", "--order", "random", "--threads", 1, "--ops", 100_000, kernels=ZRAM),
    mariadb("read_only"),
    mariadb("read_write"),
    memcached("uniform"),
    memcached("zipf"),
    *map(of_shared, shared.JOBS),
    Row("build", "a part of Linux by make -j4", 1.1, build_command, packages=BUILD_PACKAGES, needs=("make", "gcc", "flex", "bison", "bc", LINUX_ARCHIVE), limit_mib=160, kernels=ON_DISK),
    *(of_cap(program) for program in cap.PROGRAMS if not program.name.startswith(("cpython-", "sort-small"))),
    Row("redis-benchmark", "redis under redis-benchmark, with a background save", 1.15, job("redis_load.py", 300_000, 200_000), "µs/operation", from_json, ("redis-server", "redis-tools"), ("redis-server", "redis-benchmark")),
    *parts(),
)  # fmt: skip


# --- The command ----------------------------------------------------------------------------------------------------


def missing(row):
    """What a row needs that is not here and cannot be installed."""
    if all(have(name) for name in row.needs):
        return ""
    failed = install_packages(row.packages)
    absent = [str(name) for name in row.needs if not have(name)]
    return failed or (f"no {', '.join(absent)} in {', '.join(row.packages)}" if absent else "")


def result(row, options):
    """The figures of a row, or why there are none."""
    if why := missing(row):
        progress(f"SKIPPED {row.name}: {why}")
        return {"case": row.name, "missing": why}
    try:
        return {**row.measure(options), "commit": store.commit()}
    except (BenchError, subprocess.CalledProcessError) as error:
        progress(f"FAILED {row.name}: {error}")
        return {"case": row.name, "failed": str(error).strip().splitlines()[0][:200]}


def table_row(found):
    if why := found.get("missing") or found.get("failed"):
        return (found["case"], "–", "–", "–", "–", "–", why[:60])
    digits = arms.digits_of(found["unit"])
    show = lambda arm: show_quartiles(found[arm]["values"], digits) if arm in found else "–"  # noqa: E731
    if "slowdowns" in found:
        held = found["slowdown_median"] <= found["goal"]
        ratio, goal = f"{show_quartiles(found['slowdowns'], 1)} × native", f"≤ {found['goal']} ×"
    else:
        held = found["ratio_median"] >= found["goal"]
        ratio, goal = show_quartiles(found["ratios"], 2), f"≥ {found['goal']}"
    remark = found.get("opponent", "")
    if killed := found.get("killed_at_bytes"):
        remark += f", killed in {', '.join(str(size // MIB) for size in killed)} MiB"
    return (f"{found['case']} [{found['unit']}]", show("native"), show("kernel"), show("ours"), ratio, f"{goal}: {'holds' if held else 'MISSED'}", remark)


HEADER = ("row", "native", "kernel", "Pagetide", "kernel/Pagetide", "goal", "opponent")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [row.name for row in ROWS]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(names)}")
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"a few rows, {QUICK_PAIRS} pairs, two kernel configurations")
    parser.add_argument("--again", action="store_true", help="measure also what has a result of today")
    add_arm_options(parser)
    options = parser.parse_args()
    if wrong := [name for name in options.rows if name not in names]:
        parser.error(f"no row is called {', '.join(wrong)}: one of {', '.join(names)}")
    if options.pairs < 1:
        parser.error("--pairs must be at least 1")
    options.kernels = tuple(KERNEL_CONFIGS)
    if options.quick:
        options.pairs, options.kernels = QUICK_PAIRS, ZRAM
    options.scouts, options.natives, options.kernel_only = 1, 1, False
    return options


def main(options):
    if not options.pagetide.exists():
        raise BenchError(f"{options.pagetide} is not built: cargo build --release")
    DATA.mkdir(parents=True, exist_ok=True)
    facts = print_machine()
    path = options.json or (store.directory() / "versus.json" if options.store else None)
    found = {one["case"]: one for one in store.load(path)["rows"]} if path and path.exists() else {}
    for row in ROWS:
        wanted = row.name in options.rows if options.rows else row.quick or not options.quick
        if not wanted or ("unit" in found.get(row.name, ()) and not options.again):
            continue
        found[row.name] = result(row, options)
        store.save(options, facts, [found[row.name] for row in ROWS if row.name in found])
    print()
    print_table(HEADER, [table_row(found[row.name]) for row in ROWS if row.name in found])
    return 0


if __name__ == "__main__":
    main_guard(parse, main)
