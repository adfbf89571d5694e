#!/usr/bin/env python3
"""Pagetide against the kernel's swap to compressed RAM, at the same total RAM (the rule is in docs: how we compare).

Kernel arm: a memory cgroup of --limit L with swap on zram; Z is what zram took at its peak, outside the cgroup.
Our arm: a cgroup without swap of (L + Z) × 1.03 + 32 MiB, `pagetide run --memory L+Z`; swap is off meanwhile.

First each kernel configuration runs alone (--scouts times); the best of them is the opponent. Then the arms alternate
for --pairs pairs under the same THP settings. A ratio above 1 means that Pagetide is faster; a goal holds when the
median of the pairs' ratios reaches it. CPU seconds are user and system time of the run and all its children (the
kernel's reclaim runs in the program's own time here; kswapd and other kernel threads are not included).
"""

import argparse
import json
import sys
from dataclasses import dataclass

from pagetide_bench import store
from pagetide_bench.arms import HEADER, measure, table_row
from pagetide_bench.commands import build_programs, python_program
from pagetide_bench.figures import print_table, quartiles
from pagetide_bench.inputs import heap_file
from pagetide_bench.kernel import IN_MEMORY, KERNEL_CONFIGS, ZRAM
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_arm_options
from pagetide_bench.script import main_guard
from pagetide_bench.sizes import MIB, parse_bytes

BUFFER_MIB = 1024


@dataclass(frozen=True)
class Case:
    name: str
    goal: float
    unit: str
    arguments: tuple  # of touch; empty for the Python job
    passes: int = 3
    env = {}

    @property
    def may_take_allocator(self):
        return not self.arguments

    @property
    def same_output(self):
        return not self.arguments

    def command(self, options):
        if not self.arguments:
            return python_program("dictjob.py", "--mib", options.dict_mib, "--ops", options.dict_ops)
        arguments = [str(word).replace("HEAP", str(heap_file())) for word in self.arguments]
        (touch,) = build_programs("touch")
        return [touch, "--mib", options.mib, "--passes", self.passes, *arguments]

    def value(self, run):
        """What is compared: ns a page (median of the passes), or seconds of the whole job."""
        if not self.arguments:
            return run.wall_seconds
        return quartiles(json.loads(run.stdout)["pass_ns_per_page"])[1]

    def fill_value(self, run):
        return json.loads(run.stdout)["fill_ns_per_page"] if self.arguments else None


def random_heap(threads):
    return ("--fill", "heap:HEAP", "--order", "random", "--threads", threads, "--ops", 100_000)


CASES = (
    Case("seq-zero", 4.0, "ns/page", ("--fill", "zero", "--order", "seq")),
    Case("seq-heap", 2.5, "ns/page", ("--fill", "heap:HEAP", "--order", "seq")),
    Case("random-heap-1", 1.2, "ns/page", random_heap(1)),
    Case("random-heap-2", 1.0, "ns/page", random_heap(2)),
    Case("dict", 1.0, "s", ()),
    Case("shared-seq-heap", 2.0, "ns/page", ("--shared", "--fill", "heap:HEAP", "--order", "seq")),
    Case("shared-zipf-heap", 1.0, "ns/page", ("--shared", "--fill", "heap:HEAP", "--order", "zipf", "--ops", 100_000)),
    Case("shared-random-heap", 0.8, "ns/page", ("--shared", *random_heap(1))),
)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--case", action="append", choices=names, help="only this case (may be repeated)")
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs of runs (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="3 pairs, two kernel configurations: for a first look only")
    parser.add_argument("--kernel", action="append", choices=list(KERNEL_CONFIGS), help="only this kernel configuration")
    parser.add_argument("--scouts", type=int, default=1, help="runs of each kernel configuration beforehand")
    parser.add_argument("--natives", type=int, default=3, help="runs without a limit")
    parser.add_argument("--kernel-only", action="store_true", help="leave our arm out: the scouts' figures only")
    parser.add_argument("--limit", type=parse_bytes, default=256 * MIB, help="L, the kernel arm's limit (default 256M)")
    parser.add_argument("--mib", type=int, default=BUFFER_MIB, help="size of touch's buffer (default %(default)s)")
    parser.add_argument("--dict-mib", type=int, default=700)
    parser.add_argument("--dict-ops", type=int, default=300_000)
    add_arm_options(parser)
    options = parser.parse_args()
    if options.quick:
        options.pairs, options.natives = 3, 1
    if min(options.pairs, options.scouts, options.natives) < 1:
        parser.error("--pairs, --scouts and --natives must be at least 1")
    options.kernel = options.kernel or list(ZRAM if options.quick else IN_MEMORY)
    if not options.kernel_only and not options.pagetide.exists():
        print(f"NOTE: {options.pagetide} is not built: measuring the kernel's arm only", file=sys.stderr)
        options.kernel_only = True
    return options


def main(options):
    facts = print_machine()
    print(f"L {options.limit // MIB} MiB, buffer {options.mib} MiB, {options.pairs} pairs: median (quartiles)\n", flush=True)
    cases = [case for case in CASES if not options.case or case.name in options.case]
    results = []
    for case in cases:
        results.append(measure(case, options))
        store.save(options, facts, results)
    print()
    print_table(HEADER, [table_row(result) for result in results])
    for result in results:
        print(f"{result['case']}: opponent {result['opponent_settings']}")
    return 1 if any(r["ratio_median"] is not None and r["ratio_median"] < r["goal"] for r in results) else 0


if __name__ == "__main__":
    main_guard(parse, main)
