#!/usr/bin/env python3
"""Runs tests/programs/fuzz.c under Pagetide with one seed after another, by each way out and in, and makes failures small.

A failure is a wrong byte or answer, a program that dies, or one that does not end. Its seed is printed with the
command that repeats it; then steps are left out as long as it still fails, and what is left is printed. Threads race:
a selection of steps counts as failing if one of several runs fails.

Needs root or another way to userfaultfd (docs/permissions.md), gcc, and a build: cargo build --workspace.
"""

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
SOURCE = REPO / "tests" / "programs" / "fuzz.c"
SEEDS = REPO / "tests" / "seeds" / "fuzz.txt"

# What is masked (docs/testing.md), and what cannot live with that: without MOVE, nothing leaves while pages may be pinned
# (docs/limits.md).
WAYS = {
    "": (),
    "remap": (),
    "move": ("--no-direct",),
    "copy": (),
    "scan": (),
    "ring": (),
    "pool": (),
    "ring,pool": (),
    "move,pool": ("--no-direct",),
}


@dataclass(frozen=True)
class Case:
    seed: int
    ways: str
    raw: bool
    direct: bool

    def command(self, options, keep=None):
        program = [str(options.program), "--seed", str(self.seed), "--steps", str(options.steps), "--threads", str(options.threads)]
        program += ["--raw"] * self.raw + ["--no-direct"] * (not self.direct)
        if options.native:
            program.append("--native")
        else:
            program = [str(options.pagetide), "run", "-q", "--memory", options.memory, "--swap-size", "1G", "--", *program, *WAYS[self.ways]]
        return program + (["--keep", ranges(keep)] if keep is not None else [])

    def shown(self, options, keep=None):
        mask = f"PAGETIDE_MASK={self.ways} " if self.ways else ""
        return mask + " ".join(self.command(options, keep))


def ranges(numbers):
    """Sorted numbers as a list of ranges: 1-3,7."""
    parts, first = [], None
    for number, following in zip(numbers, [*numbers[1:], None]):
        first = number if first is None else first
        if following != number + 1:
            parts.append(str(first) if first == number else f"{first}-{number}")
            first = None
    return ",".join(parts)


def run(case, options, keep=None, timeout=None):
    """What was wrong, or None, and how long it took."""
    started = time.monotonic()
    environment = {**os.environ, "PAGETIDE_MASK": case.ways, "TMPDIR": options.dir}
    with tempfile.TemporaryFile("a+b") as said:
        child = subprocess.Popen(case.command(options, keep), stdout=said, stderr=said, env=environment, start_new_session=True)
        try:
            status = child.wait(timeout or options.timeout)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # Children that it left behind, if it failed, belong to its session.
            kill_group(child.pid)
            child.wait()
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
    seconds = time.monotonic() - started
    if status == 0:
        return None, seconds
    if status == 2:
        sys.exit(f"fuzz.py: cannot run: {text}")
    ending = f"does not end within {timeout or options.timeout:.0f} s" if status is None else f"status {status}"
    return f"{ending}: {text}", seconds


def kill_group(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Minimiser:
    """Leaves out steps while the case still fails (delta debugging: Zeller and Hildebrandt, 2002)."""

    def __init__(self, case, options, seconds):
        self.case, self.options = case, options
        self.timeout = max(5.0, 4 * seconds) if seconds < options.timeout else min(options.timeout, 10.0)
        self.end = time.monotonic() + options.minimise

    def fails(self, keep):
        for _ in range(self.options.tries):
            if time.monotonic() > self.end:
                return False
            if run(self.case, self.options, keep, self.timeout)[0]:
                return True
        return False

    def minimal(self):
        kept, parts = list(range(self.options.threads * self.options.steps)), 2
        while len(kept) > 1 and time.monotonic() < self.end:
            size = -(-len(kept) // parts)
            pieces = [kept[at : at + size] for at in range(0, len(kept), size)]
            for nth in range(len(pieces)):
                rest = [number for other, piece in enumerate(pieces) if other != nth for number in piece]
                if rest and self.fails(rest):
                    kept, parts = rest, max(parts - 1, 2)
                    break
            else:
                if size == 1:
                    break
                parts = min(2 * parts, len(kept))
        return kept


def report(case, options, failure, seconds):
    print(f"FAILED {case.shown(options)}\n  {failure}", flush=True)
    flags = [name for name, holds in (("raw", case.raw), ("direct", case.direct)) if holds]
    print(f"  for tests/seeds/fuzz.txt: {' '.join([str(case.seed), case.ways or '-', *flags])}  WHAT IT SHOWED", flush=True)
    if not options.minimise:
        return
    kept = Minimiser(case, options, seconds).minimal()
    print(f"  {len(kept)} steps still fail: {case.shown(options, kept)} --print", flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="begin no new run after this long (default %(default)s)")
    parser.add_argument("--seed", type=int, help="the first seed (default: drawn, and printed)")
    parser.add_argument("--ways", action="append", choices=list(WAYS), help="what is masked (default: each in turn)")
    parser.add_argument("--steps", type=int, default=600, help="steps of each thread (default %(default)s)")
    parser.add_argument("--threads", type=int, default=3, help="(default %(default)s)")
    parser.add_argument("--memory", default="48M", help="the cap (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds until a run counts as hanging (default %(default)s)")
    parser.add_argument("--minimise", type=float, default=120, metavar="SECONDS", help="spend so long on making a failure small (default %(default)s)")
    parser.add_argument("--tries", type=int, default=3, help="runs until a selection of steps counts as good (default %(default)s)")
    parser.add_argument("--native", action="store_true", help="without Pagetide: does the model know what the kernel does?")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="go on after a failure")
    parser.add_argument("--pagetide", type=Path, default=REPO / "target" / "debug" / "pagetide", help="(default %(default)s)")
    parser.add_argument("--program", type=Path, help="the compiled program (default: compiled now)")
    parser.add_argument("--dir", default="/var/tmp", help="for swap files and others (default %(default)s)")
    return parser.parse_args()


def kept():
    """The cases of tests/seeds/fuzz.txt: SEED MASK [raw] [direct], two spaces, and what it showed."""
    cases = []
    for line in SEEDS.read_text().splitlines():
        if line and not line.startswith("#"):
            seed, mask, *flags = line.partition("  ")[0].split()
            cases.append(Case(int(seed), "" if mask == "-" else mask, "raw" in flags, "direct" in flags))
    return cases


def drawn(options):
    """Cases with one seed after another, by each way in turn."""
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    ways = options.ways or ([""] if options.native else list(WAYS))
    print(f"first seed {seed}", flush=True)
    for nth in itertools.count():
        yield Case(seed + nth, ways[nth % len(ways)], nth % 4 == 3, nth % 2 == 1)


def compiled():
    program = REPO / "target" / "programs" / "fuzz"
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", program, SOURCE, "-lpthread"], check=True)
    return program


def main(options):
    options.program = options.program or compiled()
    end, runs, failed = time.monotonic() + options.seconds, 0, 0
    # What failed once comes first, whatever time there is. Who asks for a seed wants that one.
    first = [] if options.seed is not None else kept()
    cases = itertools.chain(first, drawn(options))
    while (time.monotonic() < end or runs < len(first)) and (options.go_on or not failed):
        case = next(cases)
        failure, seconds = run(case, options)
        runs += 1
        if failure:
            failed += 1
            report(case, options, failure, seconds)
    print(f"{runs} runs, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(parse()))
