#!/usr/bin/env python3
"""Two builds of Pagetide in pairs: did a change make anything slower?

Runs alternate, old and new. A ratio above 1 means that the new build is faster; a change that is to leave speed alone
holds where the median of the pairs' ratios is at least 0.98. CPU seconds stand beside wall time.

  fit       programs of bench/fits.py under a cap that they never reach
  speed     what bench/speed.py runs, under a cap of less than half of it
  fault     single pages at random, as in bench/fault.py: ns an access
  example   the README's example
  hash      hash tables of PHP and Perl in half of what they need (needs php-cli)
  start     400 processes that end at once, in one run

--old and --new name a built checkout's target/release/pagetide; its library lies beside it.
"""

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path

from fits import PROGRAMS, loop_command
from pagetide_bench import store
from pagetide_bench.commands import build_programs, pagetide_command, python, python_program
from pagetide_bench.figures import print_table, quartiles, show_quartiles
from pagetide_bench.inputs import heap_file
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_result_options
from pagetide_bench.paths import DATA, PAGETIDE, REPO
from pagetide_bench.runs import run_native
from pagetide_bench.script import BenchError, main_guard, progress
from pagetide_bench.sizes import MIB

GOAL = 0.98
BUILDS = ("old", "new")
MIB_TOUCHED = 512


@dataclass(frozen=True)
class Row:
    name: str
    cap_mib: int
    command: list
    figure: str = ""  # of the JSON that the program prints; "": seconds of the run
    env: dict = field(default_factory=dict)

    def value(self, run):
        if not self.figure:
            return run.wall_seconds
        return quartiles(json.loads(run.stdout)[self.figure])[1]


def touch(*arguments):
    (program,) = build_programs("touch")
    return [program, "--mib", MIB_TOUCHED, *arguments]


def rows():
    heap = f"heap:{heap_file()}"
    random = ("--passes", 3, "--order", "random", "--ops", 60_000)
    for program in PROGRAMS:
        yield Row(f"fit {program.name}", 4096, list(program.command()), env=program.env)
    for name, fill in (("zero", "zero"), ("heap", heap)):
        yield Row(f"speed seq-{name}", 220, touch("--passes", 3, "--fill", fill, "--order", "seq"), "pass_ns_per_page")
    for threads in (1, 2):
        yield Row(f"speed random-heap-{threads}", 220, touch(*random, "--fill", heap, "--threads", threads), "pass_ns_per_page")
    yield Row("speed dict", 150, python_program("dictjob.py", "--mib", 300, "--ops", 60_000))
    yield Row("fault zero", 250, touch(*random, "--fill", "zero"), "pass_ns_per_page")
    yield Row("example", 250, python(REPO / "examples" / "analytics.py"))
    for name, cap_mib, script in (("php", 165, "table.php"), ("perl", 115, "hash.pl")):
        yield Row(f"hash {name}", cap_mib, [name, REPO / "bench" / "programs" / script])
    yield Row("start", 4096, loop_command(400, ["/bin/true"]))


def run_build(row, pagetide):
    return run_native(pagetide_command(row.cap_mib * MIB, row.command, pagetide), env=row.env, cwd=DATA).require_success()


def measure(row, options):
    builds = {"old": options.old, "new": options.new}
    run_build(row, options.old)  # fills the page cache
    runs = {build: [] for build in BUILDS}
    for pair in range(options.pairs):
        # The order alternates too, so that what comes second has no advantage.
        for build in BUILDS if pair % 2 == 0 else reversed(BUILDS):
            runs[build].append(run_build(row, builds[build]))
    if not row.figure and len({run.stdout for group in runs.values() for run in group}) != 1:
        raise BenchError(f"{row.name}: the builds do not print the same")
    values = {build: [row.value(run) for run in group] for build, group in runs.items()}
    cpu = {build: [run.cpu_seconds for run in group] for build, group in runs.items()}
    ratios = [old / new for old, new in zip(values["old"], values["new"])]
    progress(f"{row.name}: {show_quartiles(ratios, 3)}")
    return {"name": row.name, "unit": "ns" if row.figure else "s", "values": values, "cpu_seconds": cpu, "ratios": ratios}


def table_row(result):
    digits = 0 if result["unit"] == "ns" else 2
    shown = (show_quartiles(result["values"][build], digits) for build in BUILDS)
    cpu = "/".join(f"{quartiles(result['cpu_seconds'][build])[1]:.2f}" for build in BUILDS)
    median = quartiles(result["ratios"])[1]
    return (result["name"], result["unit"], *shown, cpu, show_quartiles(result["ratios"], 3), "holds" if median >= GOAL else "MISSED")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, metavar="PAGETIDE", help="the build to compare with")
    parser.add_argument("--new", type=Path, default=PAGETIDE, metavar="PAGETIDE", help="the build under test (default target/release)")
    parser.add_argument("--pairs", type=int, default=15, help="interleaved pairs (default %(default)s)")
    parser.add_argument("--only", action="append", default=[], metavar="WORDS", help="rows whose name begins so (may be repeated)")
    add_result_options(parser)
    return parser.parse_args()


def main(options):
    facts = print_machine()
    chosen = [row for row in rows() if not options.only or any(row.name.startswith(words) for words in options.only)]
    results = []
    for row in chosen:
        results.append(measure(row, options))
        store.save(options, facts, results)
    header = ("row", "unit", "old", "new", "CPU s old/new", "old/new", f"≥ {GOAL}")
    print_table(header, [table_row(result) for result in results])
    return 0


if __name__ == "__main__":
    main_guard(parse, main)
