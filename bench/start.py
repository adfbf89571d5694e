#!/usr/bin/env python3
"""What the start of a process costs: natively, with the library alone, and in a run.

Blocks of starts of /bin/true (and shell scripts of 300 commands) are made in turn, natively and otherwise, so that a
machine whose speed drifts changes all alike. Of each block the fastest start counts, which other work disturbs least;
of the blocks the median. `cpu` is user and system time of the process, exec and exit included.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time

from pagetide_bench import store
from pagetide_bench.commands import pagetide_command, python
from pagetide_bench.figures import print_table
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_arm_options
from pagetide_bench.script import main_guard
from pagetide_bench.sizes import parse_bytes

SCRIPT = "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done"
KINDS = {"true": (["/bin/true"], 100), "script of 300": (["/bin/sh", "-c", SCRIPT], 3)}


def starts(command, count):
    """Each start's wall time, processor time (µs) and page faults. The children's of a shell are its own here."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        pid = os.posix_spawn(command[0], command, os.environ)
        _, status, usage = os.wait4(pid, 0)
        wall = time.perf_counter() - began
        if status:
            sys.exit(f"{shlex.join(command)} ended with {status}")
        found.append((wall * 1e6, (usage.ru_utime + usage.ru_stime) * 1e6, usage.ru_minflt))
    return found


def block(arm, kind, options):
    """The fastest wall and processor time, and the fewest page faults, of one block."""
    inner = python(__file__, "--inner", kind)
    environment = dict(os.environ)
    if arm == "library":
        environment["LD_PRELOAD"] = str(options.preload)
    if arm == "run":
        inner = pagetide_command(options.memory, inner, options.pagetide)
    output = subprocess.run(inner, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return [min(column) for column in zip(*json.loads(output))]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=15, help="of each kind and arm (default %(default)s)")
    parser.add_argument("--memory", type=parse_bytes, default="512M", help="the cap of the run (default %(default)s)")
    parser.add_argument("--inner", choices=KINDS, help=argparse.SUPPRESS)
    add_arm_options(parser)
    return parser.parse_args()


def main(options):
    facts = print_machine()
    rows, results = [], []
    for kind in KINDS:
        blocks = {arm: [] for arm in ("native", "library", "run")}
        for _ in range(options.blocks):
            for arm, found in blocks.items():
                found.append(block(arm, kind, options))
        for arm, found in blocks.items():
            more = [[b - a for a, b in zip(native, mine)] for native, mine in zip(blocks["native"], found)]
            figures = [statistics.median(column) for column in zip(*found)]
            above = [statistics.median(column) for column in zip(*more)]
            rows.append((f"{kind}, {arm}", *(f"{figure:.0f}" for figure in figures), *(f"{figure:+.0f}" for figure in above)))
            results.append({"kind": kind, "arm": arm, "blocks": found})
    print_table(("start", "wall µs", "cpu µs", "faults", "wall more", "cpu more", "faults more"), rows)
    store.save(options, facts, results)
    return 0


if __name__ == "__main__":
    if "--inner" in sys.argv:
        command, count = KINDS[sys.argv[sys.argv.index("--inner") + 1]]
        print(json.dumps(starts(command, count)))
    else:
        main_guard(parse, main)
