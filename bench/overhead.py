#!/usr/bin/env python3
"""What the pool takes beyond the compressed pages in it, while pages come and go.

One process fills a buffer with pages of all the kinds of bench/pagetide_bench/kinds.py, as many of each, and then reads (and for a
part writes) single pages of it at random: those come in one by one, and what leaves with them is what nobody asked for
of late. Under such churn a pool gets full of holes. `pagetide stat --json` is asked again and again; the figure is
(pool_total_size - stored_bytes) / stored_bytes of the second half, after as many accesses as there are pages. Of that,
what is loose could be given back by moving entries together.

  zsmalloc     as in a run, with compaction
  zbud         two pages a frame at most

Needs (Debian) linux-source-6.1 and gcc.
"""

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

from pagetide_bench import kinds, store
from pagetide_bench.commands import build_programs, pagetide_command
from pagetide_bench.figures import print_table, show_quartiles
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_program_options
from pagetide_bench.paths import DATA
from pagetide_bench.script import BenchError, main_guard
from pagetide_bench.sizes import MIB, parse_bytes

ALLOCATORS = ("zsmalloc", "zbud")
KIND_PAGES = 1536
PAUSE_SECONDS = 0.2
SAMPLES_MIN = 10


def mixed_file():
    """As many pages of each kind, one kind behind the other."""
    path = DATA / "mixed.pages"
    with path.open("wb") as mixed:
        for make in kinds.MAKERS.values():
            pages = make().read_bytes()[: KIND_PAGES * kinds.PAGE]
            if len(pages) < KIND_PAGES * kinds.PAGE:
                raise BenchError(f"{make.__name__} gives only {len(pages)} bytes")
            mixed.write(pages)
    return path


def stat(options, run):
    found = subprocess.run([options.pagetide, "stat", "--json", str(run.pid)], check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(found.stdout) if found.returncode == 0 else None


def overhead(zswap):
    return 100 * (zswap["pool_total_size"] / max(zswap["stored_bytes"], 1) - 1)


def measure(options, allocator, content):
    (touch,) = build_programs("touch")
    words = ["--mib", options.mib, "--fill", f"heap:{content}", "--order", "random", "--writes", options.writes]
    more = ["--passes", 2, "--ops", options.turns * options.mib * 256]
    run_options = ["--zpool", allocator, "--swap-dir", options.swap_dir, "--swap-size", "8G"]
    command = pagetide_command(options.cap, [touch, *words, *more], options.pagetide, [str(word) for word in run_options])
    samples = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        try:
            while run.poll() is None:
                time.sleep(PAUSE_SECONDS)
                if found := stat(options, run):
                    samples.append(found)
        finally:
            run.terminate()
        printed = run.stdout.read()
    if run.returncode:
        raise BenchError(f"{allocator}: the program ended with {run.returncode}: {printed}")
    came = lambda found: found["counters"]["pgmajfault"]  # noqa: E731
    late = [found for found in samples if came(found) * 2 > came(samples[-1])]
    if len(late) < SAMPLES_MIN:
        raise BenchError(f"{allocator}: only {len(late)} samples; more --turns")
    zswap = [found["zswap"] for found in late]
    return {
        "allocator": allocator,
        "samples": len(late),
        "overhead_percent": [overhead(one) for one in zswap],
        "pool_total_size": statistics.median(one["pool_total_size"] for one in zswap),
        "stored_pages": statistics.median(one["stored_pages"] for one in zswap),
        "stored_bytes": statistics.median(one["stored_bytes"] for one in zswap),
        "loose_bytes": statistics.median(one["loose_bytes"] for one in zswap),
        "faults": came(samples[-1]),
        "touch": json.loads(printed),
    }


def rows(found):
    for one in found:
        yield (
            one["allocator"],
            show_quartiles(one["overhead_percent"], 1),
            f"{max(one['overhead_percent']):.1f}",
            f"{one['pool_total_size'] / MIB:.0f}",
            f"{one['stored_bytes'] / MIB:.0f}",
            f"{100 * one['loose_bytes'] / one['stored_bytes']:.1f}",
            f"{one['stored_pages'] * kinds.PAGE / one['pool_total_size']:.2f}",
            f"{one['touch']['pass_ns_per_page'][-1] / 1000:.1f}",
        )


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="size of the buffer (default %(default)s)")
    parser.add_argument("--cap", type=parse_bytes, default=300 * MIB, help="--memory of the run (default 300M)")
    parser.add_argument("--writes", type=int, default=50, help="accesses that write, in percent (default %(default)s)")
    parser.add_argument("--turns", type=int, default=2, help="accesses of each half, as many times the pages (default %(default)s)")
    parser.add_argument("--allocator", action="append", choices=ALLOCATORS, help="only this (may be repeated)")
    parser.add_argument("--swap-dir", type=Path, default=Path("/var/tmp"), help="where the swap file lies")
    add_program_options(parser)
    return parser.parse_args()


def main(options):
    DATA.mkdir(parents=True, exist_ok=True)
    facts = print_machine()
    content = mixed_file()
    found = [measure(options, allocator, content) for allocator in options.allocator or ALLOCATORS]
    store.save(options, facts, found)
    header = ("pool", "overhead %", "most", "pool MiB", "payload MiB", "loose %", "pages in one", "µs an access")
    print_table(header, rows(found))
    return 0


if __name__ == "__main__":
    main_guard(parse, main)
