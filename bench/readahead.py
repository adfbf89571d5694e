#!/usr/bin/env python3
"""What readahead and kept copies are worth, on this machine's disk and in the pool.

disk      Incompressible data, read in order again and again, all of it clean: against what the disk gives to reads of
          2 MiB past the page cache, and against the kernel's swap file (its best page-cluster).
windows   The same with windows of 8, 32, 64 and 512 pages (--page-cluster 3, 5, 6 and 9).
waste     Single pages of the same data at random: pages that were read and not asked for; against the kernel's swap file.
s1        Compressible data at random, uniform and by Zipf's law, in the pool alone: without readahead against the
          aligned clusters of eight pages that a kernel reads which does not look at the kind of device.
together  Eight threads that read the same pages at random, each page all at once, from the disk and from the pool: one of
          them reads, the others wait for it. What one read in a thousand exceeds, against one thread alone: who waits
          for another's read is woken by it, and does not sleep for a tick and look again. And the kernel's swap file.
again     Compressible data in order: the pass that writes it, the first that reads it and the second.

Arms take turns for --pairs rounds. Each of our runs is in a memory cgroup of the cap and the slack of docs/testing.md,
without swap; the kernel's in one of the cap.
"""

import argparse
import contextlib
import json
import mmap
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pagetide_bench import store
from pagetide_bench.cgroup import Cgroup, Swap
from pagetide_bench.commands import build_programs
from pagetide_bench.figures import print_table, show_quartiles
from pagetide_bench.inputs import heap_file
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_arm_options
from pagetide_bench.procfs import read_fields
from pagetide_bench.runs import run_in, run_pagetide
from pagetide_bench.script import main_guard, progress
from pagetide_bench.settings import PAGE_CLUSTER, ZSWAP, Setting
from pagetide_bench.sizes import MIB, parse_bytes
from pagetide_bench.swapfile import SwapFile

READ_BYTES = 2 * MIB
CLUSTERS = (3, 5, 6, 9)
KERNEL_CLUSTERS = (3, 5)
# The shortest that a thread sleeps which polls: a tick of the kernel's at its fastest.
TICK_US = 1000


# --- The disk, and the kernel's swap file ---------------------------------------------------------------------------


def disk_bandwidth(directory, size):
    """Bytes a second of reads in order past the page cache, two at a time as our window has more than one under way."""
    buffers = [mmap.mmap(-1, READ_BYTES) for _ in range(2)]
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        fd = os.open(file.name, os.O_RDWR | os.O_DIRECT)
        try:
            block = mmap.mmap(-1, READ_BYTES)
            block.write(os.urandom(READ_BYTES))
            for at in range(0, size, READ_BYTES):
                os.pwrite(fd, block, at)
            with ThreadPoolExecutor(2) as pool:
                start = time.monotonic()

                def read(lane):
                    for at in range(lane * READ_BYTES, size, 2 * READ_BYTES):
                        os.preadv(fd, [buffers[lane]], at)

                list(pool.map(read, range(2)))
                return size / (time.monotonic() - start)
        finally:
            os.close(fd)


def kernel_run(options, cluster, command):
    """Returns the run and the pages that the kernel read from swap."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(Setting(PAGE_CLUSTER, cluster))
        if ZSWAP.exists():
            stack.enter_context(Setting(ZSWAP / "enabled", "N"))
        stack.enter_context(SwapFile(options.swap_dir, 4 * options.mib * MIB))
        cgroup = stack.enter_context(Cgroup(options.memory, Swap.ALLOWED))
        before = read_fields("/proc/vmstat")["pswpin"]
        run = run_in(cgroup, command).require_success()
        return run, read_fields("/proc/vmstat")["pswpin"] - before


# --- Our runs -------------------------------------------------------------------------------------------------------


def touch(options, *arguments):
    (program,) = build_programs("touch")
    return [program, "--mib", options.mib, *arguments]


def our_run(options, command, *run_options, memory=None):
    """Returns the run and its counters."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        more = [*run_options, "--stats", file.name, *options.run_options]
        run = run_pagetide(memory or options.memory, command, options.pagetide, more).require_success()
        return run, json.loads(Path(file.name).read_text())["counters"]


def on_disk(options, *more):
    return ("--swap-dir", str(options.swap_dir), "--swap-size", f"{4 * options.mib}M", *more)


def passes(run):
    return json.loads(run.stdout)["pass_ns_per_page"]


def bandwidth(run):
    """Of the passes after the first, during which the last of what was written still leaves."""
    return 4096 / statistics.median(passes(run)[1:]) * 1e9


# --- Cases ----------------------------------------------------------------------------------------------------------


def rounds(options, name, arms):
    """Runs the arms in turn. Returns {arm: [value]}."""
    values = {arm: [] for arm in arms}
    for number in range(options.pairs):
        for arm, measure in arms.items():
            values[arm].append(measure())
        shown = ", ".join(f"{arm} {found[-1]:.4g}" for arm, found in values.items())
        progress(f"{name}: round {number + 1}: {shown}")
    return values


def ratio(values, over, under):
    return [a / b for a, b in zip(values[over], values[under])]


def row(name, unit, values, ratios=None, goal="", holds=None):
    shown = "; ".join(f"{arm} {show_quartiles(found, 0 if max(found) > 50 else 2)}" for arm, found in values.items())
    verdict = "" if holds is None else "holds" if holds else "MISSED"
    return {"row": (name, unit, shown, show_quartiles(ratios, 3) if ratios else "–", goal, verdict), "values": values}


def case_disk(options):
    scan = touch(options, "--fill", "random", "--order", "seq", "--passes", 4)

    def own():
        return disk_bandwidth(options.swap_dir, options.mib * MIB) / 1e6

    def ours():
        return bandwidth(our_run(options, scan, *on_disk(options))[0]) / 1e6

    def kernel(cluster):
        return lambda: bandwidth(kernel_run(options, cluster, scan)[0]) / 1e6

    kernels = {f"kernel page-cluster {n}": kernel(n) for n in KERNEL_CLUSTERS}
    values = rounds(options, "disk", {"disk": own, "ours": ours, **kernels})
    ratios = ratio(values, "ours", "disk")
    return [row("in order, of the disk's own", "MB/s", values, ratios, "≥ 0.85", statistics.median(ratios) >= 0.85)]


def case_windows(options):
    rows = []
    for name, command in (
        ("in order", touch(options, "--fill", "random", "--order", "seq", "--passes", 4)),
        ("at random", touch(options, "--fill", "random", "--order", "random", "--ops", 20_000, "--passes", 3)),
    ):

        def ours(cluster, command=command):
            extra = on_disk(options, "--page-cluster", str(cluster))
            return lambda: statistics.median(passes(our_run(options, command, *extra)[0])[1:]) / 1e3

        values = rounds(options, f"windows, {name}", {f"{1 << n} pages": ours(n) for n in CLUSTERS})
        rows.append(row(f"windows, {name}", "µs/page", values))
    return rows


def case_waste(options):
    command = touch(options, "--fill", "random", "--order", "random", "--ops", 20_000, "--passes", 3)
    wasted = {"ours": [], "kernel": []}

    def ours():
        run, counters = our_run(options, command, *on_disk(options))
        wasted["ours"].append(100 * counters["swap_ra"] / max(counters["pgmajfault"], 1))
        return statistics.median(passes(run)) / 1e3

    def kernel():
        # Each page that was asked for and was not in memory is a major fault.
        run, read = kernel_run(options, 3, command)
        faults = json.loads(run.stdout)["major_faults"]
        wasted["kernel"].append(100 * max(read - faults, 0) / max(faults, 1))
        return statistics.median(passes(run)) / 1e3

    values = rounds(options, "waste", {"ours": ours, "kernel": kernel})
    return [
        row("at random from the disk", "µs/page", values, ratio(values, "kernel", "ours")),
        row("extra pages read", "%", wasted, goal="ours < 5", holds=statistics.median(wasted["ours"]) < 5),
    ]


def case_s1(options):
    rows = []
    for order in ("random", "zipf"):
        heap = f"heap:{heap_file()}"
        command = touch(options, "--fill", heap, "--order", order, "--ops", 200_000, "--passes", 3)

        def ours(*readahead, command=command):
            run = lambda: our_run(options, command, "--no-disk", *readahead, memory=options.pool_memory)[0]  # noqa: E731
            return lambda: statistics.median(passes(run())) / 1e3

        arms = {"none": ours("--readahead", "none"), "cluster": ours("--readahead", "cluster", "--page-cluster", "3")}
        values = rounds(options, f"s1, {order}", arms)
        ratios = ratio(values, "cluster", "none")
        holds = statistics.median(ratios) >= 1.03
        rows.append(row(f"S1, {order}", "µs/page", values, ratios, "cluster/none ≥ 1.03", holds))
    return rows


def case_together(options):
    rows = []

    def reads(fill, threads):
        ops = ("--order", "together", "--threads", threads, "--ops", 20_000, "--passes", 1)
        return touch(options, "--fill", fill, *ops)

    heap = f"heap:{heap_file()}"
    disk = lambda threads: our_run(options, reads("random", threads), *on_disk(options))[0]  # noqa: E731
    pool = lambda threads: our_run(options, reads(heap, threads), "--no-disk", memory=options.pool_memory)[0]  # noqa: E731
    kernel = lambda: kernel_run(options, 3, reads("random", 8))[0]  # noqa: E731
    for name, arms in (
        ("disk", {"one": lambda: disk(1), "eight": lambda: disk(8), "kernel, eight": kernel}),
        ("pool", {"one": lambda: pool(1), "eight": lambda: pool(8)}),
    ):
        values = rounds(options, f"together, {name}", {arm: lambda run=run: late(run()) for arm, run in arms.items()})
        ratios = ratio(values, "eight", "one")
        more = statistics.median(eight - one for eight, one in zip(values["eight"], values["one"]))
        rows.append(row(f"a page for eight, {name}: p99.9", "µs", values, ratios, "eight − one < 1000", more < TICK_US))
    return rows


def late(run):
    """The time that one read in a thousand exceeds."""
    return json.loads(run.stdout)["latency_ns"]["p99.9"] / 1e3


def case_again(options):
    rows = []
    for fill in ("text", f"heap:{heap_file()}"):
        command = touch(options, "--fill", fill, "--order", "seq", "--passes", 2)
        values = {"written": [], "first": [], "second": []}
        for number in range(options.pairs):
            run, _ = our_run(options, command, memory=options.again_memory)
            found = [json.loads(run.stdout)["fill_ns_per_page"], *passes(run)]
            for name, value in zip(values, found):
                values[name].append(value / 1e3)
            progress(f"again, {fill[:4]}: round {number + 1}: {[round(value) for value in found]} ns")
        ratios = ratio(values, "written", "second")
        name = f"again, {fill[:4]}: written/second"
        rows.append(row(name, "µs/page", values, ratios, "≥ 3", statistics.median(ratios) >= 3))
    return rows


CASES = {"disk": case_disk, "windows": case_windows, "waste": case_waste, "s1": case_s1, "together": case_together, "again": case_again}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this case (may be repeated)")
    parser.add_argument("--pairs", type=int, default=9, help="rounds (default %(default)s)")
    parser.add_argument("--mib", type=int, default=1024, help="size of touch's buffer (default %(default)s)")
    parser.add_argument("--memory", type=parse_bytes, default=280 * MIB, help="the cap for data on the disk (280M)")
    parser.add_argument("--pool-memory", type=parse_bytes, default=475 * MIB, help="for s1 (475M)")
    parser.add_argument("--again-memory", type=parse_bytes, default=800 * MIB, help="for again (800M)")
    parser.add_argument("--swap-dir", type=Path, default=Path("/var/tmp"), help="where the swap files lie")
    add_arm_options(parser)
    return parser.parse_args()


def main(options):
    facts = print_machine()
    print(f"{options.pairs} rounds: median (quartiles)\n", flush=True)
    rows = []
    for name in options.case or CASES:
        rows += CASES[name](options)
        store.save(options, facts, rows)
    print()
    print_table(("case", "unit", "values", "ratio", "goal", ""), [found["row"] for found in rows])
    return 1 if any(found["row"][-1] == "MISSED" for found in rows) else 0


if __name__ == "__main__":
    main_guard(parse, main)
