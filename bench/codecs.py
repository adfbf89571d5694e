#!/usr/bin/env python3
"""What each codec makes of the pages of real programs, beside the C libraries of LZ4, LZO and Zstandard.

The pages are those of bench/pagetide_bench/kinds.py. The codecs are run by `cargo run --release -p pagetide-swap --example cost`, the
libraries by bench/codecs.c. A page that does not get smaller counts as it is. Times are medians of nine runs over up to
2048 pages.

Needs gcc and (Debian) liblz4-dev, liblzo2-dev, libzstd-dev, linux-source-6.1.
"""

import argparse
import json
import subprocess
from pathlib import Path

from pagetide_bench import kinds, store
from pagetide_bench.figures import print_table
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_result_options
from pagetide_bench.paths import DATA, PROGRAMS, REPO
from pagetide_bench.script import BenchError, main_guard


def run_lines(command):
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, cwd=REPO)
    return [json.loads(line) for line in done.stdout.splitlines()]


def library_program():
    program = PROGRAMS / "codecs"
    program.parent.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("codecs.c")
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-o", program, source, "-llz4", "-llzo2", "-lzstd"]
    if subprocess.run(command, check=False).returncode:
        raise BenchError("bench/codecs.c does not build: apt-get install liblz4-dev liblzo2-dev libzstd-dev")
    return program


def rows(kind, ours, library):
    theirs = {found["codec"]: found for found in library["codecs"]}
    names = [found["codec"] for found in ours["codecs"]]
    both = {found["codec"]: found for found in ours["codecs"]}
    for name in [*names, *(other for other in theirs if other not in names)]:
        shown = [kind, name]
        for found in (both.get(name), theirs.get(name)):
            shown += [f"{found['ratio']:.2f}", str(found["ns_in"]), str(found["ns_out"])] if found else ["–"] * 3
        yield tuple(shown)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=kinds.MAKERS, help="only these pages (may be repeated)")
    add_result_options(parser)
    return parser.parse_args()


def main(options):
    DATA.mkdir(parents=True, exist_ok=True)
    facts = print_machine()
    chosen = options.kind or list(kinds.MAKERS)
    files = [kinds.MAKERS[kind]() for kind in chosen]
    ours = run_lines(["cargo", "run", "-q", "--release", "-p", "pagetide-swap", "--example", "cost", "--", "--json", *files])
    theirs = run_lines([library_program(), *files])
    store.save(options, facts, [{"kind": kind, "ours": a, "libraries": b} for kind, a, b in zip(chosen, ours, theirs)])
    header = ("pages", "codec", "ratio", "ns in", "ns out", "C: ratio", "ns in", "ns out")
    print_table(header, [row for kind, a, b in zip(chosen, ours, theirs) for row in rows(kind, a, b)])
    return 0


if __name__ == "__main__":
    main_guard(parse, main)
