#!/usr/bin/env python3
"""Where the time of a fault goes: one thread reads single pages at random from a buffer of which a part is in memory.

The kernel's tracepoints tell the steps of each fault apart; `perf` records them for --seconds while the program runs.

  trap      the access traps, and the kernel hands the fault to the userfaultfd
  wake-up   until the reader's `read` returns with it
  work      look up the word, read the page (pool: decompress, check the hash), get ready to map it
  map       the ioctl that makes the page present, until the waiting thread is woken
  return    until that thread runs again

Pages that hold one repeated word need no reading, so the difference between the two tables' *work* is the read.
Tracepoints cost time themselves: the sum is shown beside the mean that the same program measures untraced.

The processor time of a fault is that of all threads of the run, take-out, compression and the launcher included: what a run with
--faults accesses more takes more than one with few, divided by the faults that it makes more.

Needs root, and `perf` (Debian: linux-perf).
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from pagetide_bench import store
from pagetide_bench.commands import build_programs, pagetide_command, require
from pagetide_bench.figures import print_table, quartiles
from pagetide_bench.inputs import heap_file
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_program_options
from pagetide_bench.runs import run_native
from pagetide_bench.script import BenchError, main_guard
from pagetide_bench.sizes import MIB, parse_bytes

EVENTS = ("exceptions:page_fault_user", "sched:sched_waking", "sched:sched_switch", "raw_syscalls:sys_enter", "raw_syscalls:sys_exit")
SYS_READ, SYS_IOCTL = 0, 16
STEPS = ("trap", "wake-up", "work", "map", "return")
READER = "pagetide-fault"
TRACING = Path("/sys/kernel/tracing")
LINE = re.compile(r"^\s*(?P<comm>.+?)\s+(?P<tid>\d+)\s+(?P<seconds>\d+)\.(?P<ns>\d{9}):\s+(?P<event>[\w:]+):\s*(?P<rest>.*)$")
FILLS = ("zero", "heap")
OPERATIONS_MAX = 1_000_000_000
# Accesses of the run that takes what every run takes.
FEW = 1000


def command(options, fill, operations, run_options=()):
    (touch,) = build_programs("touch")
    content = f"heap:{heap_file()}" if fill == "heap" else fill
    words = ["--mib", options.mib, "--fill", content, "--order", "random", "--ops", operations, "--passes", 1]
    return pagetide_command(options.cap, [touch, *words], options.pagetide, ["--no-disk", *run_options])


def untraced_ns(options, fill):
    """What an access costs, as the program measures it, with accesses that need no fault among them."""
    run = subprocess.run(command(options, fill, options.operations), stdout=subprocess.PIPE, check=True)
    return statistics.median(json.loads(run.stdout)["pass_ns_per_page"])


def work(options, fill, directory):
    """Processor time of a fault in nanoseconds, all threads together, and how many faults tell it."""

    def run(operations):
        stats = Path(directory) / "stats.json"
        ended = run_native(command(options, fill, operations, ["--stats", str(stats)])).require_success()
        return ended.cpu_seconds * 1e9, json.loads(stats.read_text())["counters"]["pgmajfault"]

    (few_ns, few), (many_ns, many) = run(FEW), run(FEW + options.faults)
    if many - few < options.faults // 4:
        raise BenchError(f"of {options.faults} accesses only {many - few} were faults: lower --cap")
    return {"faults": many - few, "processor_ns_per_fault": (many_ns - few_ns) / (many - few)}


def trace(options, fill, directory):
    """Lines of `perf script` from --seconds in the middle of a run."""
    stats = Path(directory) / "stats.json"
    run = subprocess.Popen(command(options, fill, OPERATIONS_MAX, ["--stats", str(stats)]), stdout=subprocess.DEVNULL)
    try:
        wait_until_random(run, stats)
        data = Path(directory) / "perf.data"
        events = [word for event in EVENTS for word in ("-e", event)]
        recorder = ["perf", "record", "--quiet", "--all-cpus", "-m", "16M", "-o", data, *events, "--", "sleep", str(options.seconds)]
        subprocess.run(recorder, check=True, stderr=subprocess.DEVNULL)
    finally:
        run.terminate()
        run.wait()
    script = ["perf", "script", "--ns", "-i", data, "-F", "comm,tid,time,event,trace"]
    yield from subprocess.run(script, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.splitlines()


def wait_until_random(run, stats):
    """Until the buffer is filled: from then on pages come in as fast as they go out."""
    before = None
    while run.poll() is None:
        time.sleep(1.5)
        try:
            counters = json.loads(stats.read_text())["counters"]
        except (OSError, ValueError):
            continue
        now = counters.get("pgmajfault", 0)
        if before is not None and now - before > 10_000:
            return
        before = now
    raise BenchError("the program ended before it could be traced")


def faults(lines):
    """Tuples of the nanoseconds of each step, for faults that went this way from end to end; and how many began."""
    began, found = 0, []
    marks = []
    thread = None
    for line in lines:
        if not (match := LINE.match(line)):
            continue
        now = int(match["seconds"]) * 10**9 + int(match["ns"])
        comm, event, rest = match["comm"], match["event"], match["rest"]
        by_reader = comm.startswith(READER)
        if event == "exceptions:page_fault_user" and comm == "touch":
            marks, thread = [now], match["tid"]
        elif event == "sched:sched_waking" and comm == "touch" and READER in rest and len(marks) == 1:
            began += 1
            marks.append(now)
        elif event == "raw_syscalls:sys_exit" and by_reader and len(marks) == 2 and rest.startswith(f"NR {SYS_READ} = "):
            marks.append(now)
        elif event == "raw_syscalls:sys_enter" and by_reader and rest.startswith(f"NR {SYS_IOCTL} "):
            # The last ioctl before the thread wakes is the one that maps.
            marks = [*marks[:3], now] if len(marks) >= 3 else marks
        elif event == "sched:sched_waking" and by_reader and len(marks) == 4 and f"pid={thread} " in rest:
            marks.append(now)
        elif event == "sched:sched_switch" and len(marks) == 5 and re.search(rf"next_pid={thread}\b|==> touch:{thread}\b", rest):
            marks.append(now)
            found.append(tuple(end - start for start, end in zip(marks, marks[1:])))
            marks = []
    return found, began


def measure(options, fill):
    untraced = untraced_ns(options, fill)
    with tempfile.TemporaryDirectory() as directory:
        found, began = faults(trace(options, fill, directory))
        spent = work(options, fill, directory)
    if not found:
        raise BenchError("no fault was seen from end to end: does `perf record -e sched:sched_waking` work here?")
    steps = {step: quartiles([fault[at] for fault in found]) for at, step in enumerate(STEPS)}
    means = {step: statistics.mean(fault[at] for fault in found) for at, step in enumerate(STEPS)}
    return {"fill": fill, "untraced_ns_per_access": untraced, "faults": len(found), "began": began, "steps": steps, "means": means, "work": spent}


def rows(result):
    total = sum(result["means"].values())
    for step in STEPS:
        low, median, high = result["steps"][step]
        mean = result["means"][step]
        yield result["fill"], step, f"{median / 1000:.1f}", f"{low / 1000:.1f}–{high / 1000:.1f}", f"{mean / 1000:.1f}", f"{mean / total:.0%}"
    yield result["fill"], "sum", "", "", f"{total / 1000:.1f}", f"untraced, an access: {result['untraced_ns_per_access'] / 1000:.1f}"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of the buffer (default %(default)s)")
    parser.add_argument("--cap", type=parse_bytes, default=504 * MIB, help="--memory of the run (default 504M)")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to trace (default %(default)s)")
    parser.add_argument("--faults", type=int, default=1_000_000, help="accesses whose processor time is taken (default %(default)s)")
    parser.add_argument("--operations", type=int, default=200_000, help="accesses of the untraced run (default %(default)s)")
    add_program_options(parser)
    return parser.parse_args()


def main(options):
    require({"linux-perf": "perf"})
    facts = print_machine()
    was_mounted = TRACING.joinpath("events").exists()
    try:
        results = [measure(options, fill) for fill in FILLS]
    finally:
        if not was_mounted and TRACING.joinpath("events").exists():
            # perf mounts it for itself, and leaves it.
            subprocess.run(["umount", TRACING], check=False)
    store.save(options, facts, results)
    print_table(("fill", "step", "median µs", "quartiles", "mean µs", "share"), [row for result in results for row in rows(result)])
    for result in results:
        print(f"{result['fill']}: {result['faults']} of {result['began']} faults seen from end to end")
        spent = result["work"]
        print(f"{result['fill']}: {spent['processor_ns_per_fault'] / 1000:.1f} µs of processor time a fault, over {spent['faults']} faults")
    return 0


if __name__ == "__main__":
    main_guard(parse, main)
