#!/usr/bin/env python3
"""The remote tier beside its own client library, on a redis-server on this machine.

All that leaves goes to the server: no swap file, and a pool of 1 % of the cap. Pages do not compress.

  library  `pagetide doctor --remote`: one connection, one request after the other. Values of 32 pages are written and read
           (the size of what a run writes), and single pages are read
  ours     `touch`: fills a buffer of 4 times the cap in order and reads it in order. In a second run, of 16 times the cap, one
           thread reads single pages at random

Rows: bytes a second out (fill) and in (a pass in order), ours by the library's; the median and the 99th percentile of the
reads at random (one page in 16 is in memory), as the program sees them, beside the library's reads of single pages. The
pairs alternate. The server shares the processors with everything else.
"""

import argparse
import json
import socket
import subprocess
import time
from contextlib import contextmanager

from pagetide_bench import store
from pagetide_bench.commands import build_programs, pagetide_command
from pagetide_bench.figures import print_table, quartiles, show_quartiles
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_program_options
from pagetide_bench.packages import install_packages
from pagetide_bench.script import BenchError, main_guard, progress
from pagetide_bench.sizes import MIB

PAGE = 4096
GOAL = 0.8
START_SECONDS_MAX = 60
RATE = "MiB/s"
# Name, what it is, unit, and what the measured figure is divided by.
ROWS = (
    ("out", "pages go out in order", RATE, MIB),
    ("in", "pages come in in order", RATE, MIB),
    ("p50", "a page at random: median", "µs", 1),
    ("p99", "a page at random: 99th percentile", "µs", 1),
)


@contextmanager
def server():
    """A redis-server that keeps nothing on disk. Gives its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True).stdout.strip() != b"PONG":
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError("redis-server does not start")
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def library(options, url):
    """What the client library gets from the server."""
    said = subprocess.run([options.pagetide, "doctor", "--json", "--remote", url], capture_output=True, check=True)
    figures = [finding["figures"] for finding in json.loads(said.stdout)["findings"] if "figures" in finding]
    if not figures:
        raise BenchError("the doctor gives no figures of the server")
    return figures[0]


def touch(options, url, part, *words):
    """What touch says in a run wholly on the server, with a cap of this part of its buffer."""
    (program,) = build_programs("touch")
    run_options = ["--no-disk", "--max-pool-percent", "1", "--remote", url, "--remote-size", "64G"]
    command = [program, "--mib", options.mib, "--fill", "random", *words]
    run = subprocess.run(
        pagetide_command(options.mib * MIB // part, command, options.pagetide, run_options), stdout=subprocess.PIPE, check=True
    )
    return json.loads(run.stdout)


def pair(options, url):
    """One measurement of everything, the library's first."""
    theirs = library(options, url)
    in_order = touch(options, url, 4, "--order", "seq", "--passes", 3)
    latency = touch(options, url, 16, "--order", "together", "--passes", 1, "--ops", options.ops)["latency_ns"]

    def per_s(ns_per_page):
        return PAGE * 1e9 / ns_per_page

    return {
        "out": (theirs["written_bytes_per_s"], per_s(in_order["fill_ns_per_page"])),
        "in": (theirs["read_bytes_per_s"], per_s(quartiles(in_order["pass_ns_per_page"])[1])),
        "p50": (theirs["read_p50_us"], latency["p50"] / 1e3),
        "p99": (theirs["read_p99_us"], latency["p99"] / 1e3),
    }


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--mib", type=int, default=512, help="size of the buffer (default %(default)s)")
    parser.add_argument("--ops", type=int, default=50_000, help="pages that are read at random (default %(default)s)")
    add_program_options(parser)
    options = parser.parse_args()
    if options.pairs < 1 or options.mib < 512:
        parser.error("--pairs must be at least 1, and --mib at least 512")
    return options


def main(options):
    facts = print_machine()
    if failed := install_packages(["redis-server"]):
        raise BenchError(failed)
    pairs = []
    with server() as url:
        for number in range(options.pairs):
            pairs.append(pair(options, url))
            shown = [f"{name} {theirs / scale:.0f} / {ours / scale:.0f}" for (name, _, _, scale), (theirs, ours) in zip(ROWS, pairs[-1].values())]
            progress(f"pair {number + 1}, library / ours (MiB/s, µs): {', '.join(shown)}")
    rows = []
    for name, what, unit, scale in ROWS:
        theirs, ours = ([pair[name][arm] / scale for pair in pairs] for arm in (0, 1))
        ratios = [our / their for their, our in zip(theirs, ours)]
        rows.append(
            {
                "case": name,
                "what": what,
                "unit": unit,
                "goal": GOAL if unit == RATE else None,
                "library": theirs,
                "ours": ours,
                "ratios": ratios,
                "ratio_median": quartiles(ratios)[1],
            }
        )
    store.save(options, facts, rows)
    print_table(
        ("", "library", "Pagetide", "ratio", "goal"),
        [(f"{row['what']}, {row['unit']}", show_quartiles(row["library"]), show_quartiles(row["ours"]), show_quartiles(row["ratios"], 2), row["goal"] or "–") for row in rows],
    )
    return 1 if any(row["goal"] and row["ratio_median"] < row["goal"] for row in rows) else 0


if __name__ == "__main__":
    main_guard(parse, main)
