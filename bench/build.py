#!/usr/bin/env python3
"""A C project built by many compilers at once, under one cap, with a slow disk for swap.

After the experiment with which zswap was proposed (2013): the kernel built with make -jN in 512 MB on a disk of 58 MB/s.
Here parts of Linux 6.1 (tinyconfig; --targets), with the number of jobs and the cap of --load. The disk is throttled to
--bandwidth, reads and writes each, by the blkio controller (version 1) of the cgroup that all of an arm runs in: its
swap, and the sources and objects that it reads and writes.

  no pool       pagetide run --no-pool
  pool          pagetide run
  kernel        a swap file, zswap off
  kernel zswap  a swap file, zswap with LZ4 (LZO-RLE where the kernel has none), zsmalloc and up to half of the limit, its shrinker on
  same total    pagetide run with the cap and what zswap's pool took at most in the arm before: a cgroup of version 1 does
                not count that pool
  --shrinkers   pagetide run with each shrinker in place of the two arms of the kernel

Each arm builds anew. Reads and writes of the device are swapped pages; hits of the pool stand apart.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import tempfile
import threading
from pathlib import Path

from pagetide_bench import store
from pagetide_bench.cgroup import Cgroup, Swap
from pagetide_bench.commands import require
from pagetide_bench.figures import print_table, show_quartiles
from pagetide_bench.inputs import linux_source
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_arm_options
from pagetide_bench.paths import DATA
from pagetide_bench.procfs import read_fields
from pagetide_bench.runs import run_in, run_native, run_pagetide
from pagetide_bench.script import main_guard, progress
from pagetide_bench.settings import PAGE_CLUSTER, ZSWAP, Setting
from pagetide_bench.sizes import MIB, parse_bytes
from pagetide_bench.swapfile import SwapFile
from pagetide_bench.throttle import Throttle

SHRINKERS = ("second-chance", "decay", "none")
ZSWAP_WANTED = {"enabled": "Y", "zpool": "zsmalloc", "max_pool_percent": "50", "shrinker_enabled": "Y"}


def make(options, jobs):
    require({name: name for name in ("make", "gcc", "flex", "bison", "bc")})
    build = f'make -s -C {linux_source()} O="$PWD/build"'
    subprocess.run(["sh", "-c", f"rm -rf build && {build} tinyconfig && {build} prepare"], cwd=DATA, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return ["sh", "-c", f"{build} -j{jobs} {options.targets} 2>&1 && find build -name '*.o' | wc -l"]


@contextlib.contextmanager
def zswap_peak():
    """The most bytes that zswap's pool takes meanwhile: in the first element, at the end."""
    peak, done = [0], threading.Event()

    def sample():
        while not done.wait(0.01):
            peak[0] = max(peak[0], read_fields("/proc/meminfo").get("Zswap", 0) * 1024)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def pages(counters, *names):
    return sum(counters[name] for name in names)


def result(run, reads, writes, hits):
    run.require_success()
    return {"seconds": run.wall_seconds, "cpu": run.cpu_seconds, "reads": reads, "writes": writes, "hits": hits}


def native(options, jobs):
    return run_native(make(options, jobs), cwd=DATA).require_success().wall_seconds


def ours(options, jobs, memory, *run_options):
    command = make(options, jobs)
    with tempfile.NamedTemporaryFile(suffix=".json") as file, Throttle(options.swap_dir, options.bandwidth) as throttle:
        more = ["--swap-dir", options.swap_dir, "--swap-size", "8G", "--stats", file.name, *run_options, *options.run_options]
        run = run_pagetide(memory, throttle.command(command), options.pagetide, [str(word) for word in more], cwd=DATA, timeout_seconds=options.timeout)
        counters = json.loads(Path(file.name).read_text())["counters"]
    return result(run, counters["pswpin"], counters["pswpout"], counters["zswpin"])


def compressor():
    """The fastest that the kernel has."""
    names = Path("/proc/crypto").read_text().split()
    return "lz4" if "lz4" in names else "lzo-rle"


def kernel(options, jobs, memory, zswap):
    command = make(options, jobs)
    with contextlib.ExitStack() as stack:
        stack.enter_context(Setting(PAGE_CLUSTER, 3))
        if ZSWAP.exists():
            wanted = {"compressor": compressor(), **ZSWAP_WANTED} if zswap else {"enabled": "N"}
            for name, value in wanted.items():
                if (ZSWAP / name).exists():
                    stack.enter_context(Setting(ZSWAP / name, value))
        stack.enter_context(SwapFile(options.swap_dir, 8 << 30))
        throttle = stack.enter_context(Throttle(options.swap_dir, options.bandwidth))
        cgroup = stack.enter_context(Cgroup(memory, Swap.ALLOWED))
        before = read_fields("/proc/vmstat")
        peak = stack.enter_context(zswap_peak())
        run = run_in(cgroup, throttle.command(command), cwd=DATA, timeout_seconds=options.timeout)
        after = read_fields("/proc/vmstat")
    more = {name: after.get(name, 0) - before.get(name, 0) for name in ("pswpin", "pswpout", "zswpin")}
    return {**result(run, more["pswpin"], more["pswpout"], more["zswpin"]), "zswap_peak": peak[0]}


def arms(options, jobs, memory):
    if options.shrinkers:
        return {name: lambda name=name: ours(options, jobs, memory, "--shrinker", name) for name in SHRINKERS}
    found = {
        "no pool": lambda: ours(options, jobs, memory, "--no-pool"),
        "pool": lambda: ours(options, jobs, memory),
    }
    if not options.skip_kernel:
        found["kernel"] = lambda: kernel(options, jobs, memory, zswap=False)
        if ZSWAP.exists():
            peaks = []

            def with_zswap():
                one = kernel(options, jobs, memory, zswap=True)
                peaks.append(one["zswap_peak"])
                return one

            found["kernel zswap"] = with_zswap
            found["same total"] = lambda: ours(options, jobs, memory + peaks[-1])
    return found


def measure(options, jobs, memory):
    found = {"jobs": jobs, "memory": memory, "native": native(options, jobs), "arms": {}}
    progress(f"-j{jobs} in {memory // MIB} MiB: native {found['native']:.1f} s")
    choices = arms(options, jobs, memory)
    for number in range(options.pairs):
        for name, run in choices.items():
            one = run()
            found["arms"].setdefault(name, []).append(one)
            io = (one["reads"] + one["writes"]) / 256
            progress(f"  round {number + 1}: {name}: {one['seconds']:.1f} s, CPU {one['cpu']:.1f} s, I/O {io:.0f} MiB, pool hits {one['hits']}")
    return found


def rows(found):
    middle = lambda runs, key: statistics.median(run[key] for run in runs)  # noqa: E731
    for name, runs in found["arms"].items():
        seconds = middle(runs, "seconds")
        yield (
            f"-j{found['jobs']}, {found['memory'] // MIB} MiB",
            name,
            show_quartiles([run["seconds"] for run in runs], 1),
            f"{seconds / found['native']:.2f}",
            f"{middle(runs, 'cpu'):.0f}",
            f"{middle(runs, 'reads') / 256:.0f}",
            f"{middle(runs, 'writes') / 256:.0f}",
            f"{middle(runs, 'hits') / 256:.0f}",
        )


def changes(found, without, with_it):
    """Of each pair, by how much time and I/O change, in percent."""
    pairs = list(zip(found["arms"][without], found["arms"][with_it]))
    io = lambda run: run["reads"] + run["writes"]  # noqa: E731
    time = [100 * (b["seconds"] / a["seconds"] - 1) for a, b in pairs]
    less = [100 * (io(b) / max(io(a), 1) - 1) for a, b in pairs]
    return f"-j{found['jobs']}: {without} → {with_it}: time {show_quartiles(time, 0)} %, I/O {show_quartiles(less, 0)} %"


def parse_load(text):
    jobs, _, memory = text.partition(":")
    return int(jobs), parse_bytes(memory)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", action="append", type=parse_load, metavar="JOBS:SIZE", help="jobs and cap (may be repeated)")
    parser.add_argument("--targets", default="mm/ kernel/ lib/", help="what is built (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=9, help="rounds (default %(default)s)")
    parser.add_argument("--bandwidth", type=int, default=58_000_000, help="bytes a second of the disk (default %(default)s)")
    parser.add_argument("--swap-dir", type=Path, default=Path("/var/tmp"), help="where the swap files lie")
    parser.add_argument("--timeout", type=int, default=3600, help="seconds after which a build is given up")
    parser.add_argument("--skip-kernel", action="store_true")
    parser.add_argument("--shrinkers", action="store_true", help="one of ours per shrinker")
    add_arm_options(parser)
    return parser.parse_args()


def main(options):
    facts = print_machine()
    print(f"{options.pairs} rounds: median (quartiles); device and pool in MiB of pages\n", flush=True)
    found = []
    for jobs, memory in options.load or LOADS:
        found.append(measure(options, jobs, memory))
        store.save(options, facts, found)
    print()
    header = ("load", "arm", "seconds", "× native", "CPU s", "read", "written", "pool hits")
    print_table(header, [row for one in found for row in rows(one)])
    for one in found:
        names = list(one["arms"])
        for without, with_it in zip(names[::2], names[1::2]):
            print(changes(one, without, with_it))
    return 0


LOADS = ((4, 160 * MIB), (8, 160 * MIB), (16, 160 * MIB))

if __name__ == "__main__":
    main_guard(parse, main)
