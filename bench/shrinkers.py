#!/usr/bin/env python3
"""Which entries of the pool go to the device: second chance (Linux 6.12) against decay (Linux 6.8), by replay.

After the experiment with which second chance was proposed (2024): a build, and a build beside cold data. Each trace is
replayed by `pagetide replay --fixed-share` with each scheme; `none` asks the pool for nothing before it is full. With
--shares each is replayed with shares of 20, 35 and 50 % for the pool, and with the balance, which is to stall at most 5 %
longer than the best of them. What is made up is replayed with each scheme and the balance, too: there second chance is to
read at most 0.36 of what decay reads from the device.

  build        parts of Linux 6.1 by `make -j4`, recorded under a cap (--cap) of which less is left for what is managed
               than it is replayed with
  build, cold  the same beside a process that holds as much as that cap, and sleeps
  bursts       made up: a warm set larger than memory, and bursts of pages that are written once
  bursts, cold the same behind a bulk that was written once

The traces are kept in target/bench-data. Swapins from the device count every page read; stall is what the replay
estimates (docs/replay.md).
"""

import argparse
import json
import random
import subprocess
from pathlib import Path

import build
from measured_tables import BALANCED_GOAL, balanced_ratio
from pagetide_bench import kinds, store
from pagetide_bench.figures import print_table
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_program_options
from pagetide_bench.paths import DATA
from pagetide_bench.runs import run_pagetide
from pagetide_bench.script import main_guard, progress
from pagetide_bench.sizes import MIB, parse_bytes

# Pages of the made-up traces.
MEMORY, WARM, BULK = 16384, 24000, 60000
BURST, BURSTS, BETWEEN = 6000, 80, 20000
COLD_BYTES = 16 * MIB


def bursts(cold):
    """Warm pages, some far more often than others, and every now and then pages that are written once."""
    path = DATA / f"bursts{'-cold' if cold else ''}.trace"
    draw = random.Random(4)
    fresh = WARM
    with path.open("w") as out:
        for page in range(fresh, fresh + (BULK if cold else 0)):
            out.write(f"{page} w\n")
        fresh += BULK if cold else 0
        for _ in range(BURSTS):
            for _ in range(BETWEEN):
                # Half of the accesses go to an eighth of the pages.
                page = draw.randrange(WARM // 8 if draw.random() < 0.5 else WARM)
                out.write(f"{page} {'w' if draw.random() < 0.3 else 'r'}\n")
            out.writelines(f"{page} w\n" for page in range(fresh, fresh + BURST))
            fresh += BURST
    return path, MEMORY * kinds.PAGE


def record(options, cold):
    """A build's trace. With cold data, of a run in which another process has those and sleeps."""
    path = DATA / f"build{'-cold' if cold else ''}.trace"
    command = build.make(options, options.jobs)
    memory = options.cap
    if cold:
        memory += options.cap // 4
        holder = f"import time; data = open('{kinds.text()}', 'rb').read({COLD_BYTES}) * {options.cap // COLD_BYTES}; time.sleep(1e6)"
        command = ["sh", "-c", 'python3 -c "$0" & holder=$!; "$@"; status=$?; kill $holder; exit $status', holder, *command]
    more = ["--swap-dir", options.swap_dir, "--swap-size", "8G", "--trace", path]
    progress(f"recording {path.name} in {memory // MIB} MiB")
    run_pagetide(memory, command, options.pagetide, [str(word) for word in more], cwd=DATA).require_success()
    return path, options.memory


SHARES = (20, 35, 50)


def ways(options):
    """What each trace is replayed with, by name."""
    if options.shares:
        return {"balance": [], **{f"{share} %": ["--fixed-share", "--max-pool-percent", share] for share in SHARES}}
    return {name: ["--fixed-share", "--shrinker", name, "--max-pool-percent", options.percent] for name in build.SHRINKERS}


def replay(options, path, memory, more):
    words = ["replay", path, "--memory", memory, *more]
    done = subprocess.run([str(word) for word in (options.pagetide, *words, "--json")], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


TRACES = {
    "build": lambda options: record(options, cold=False),
    "build, cold": lambda options: record(options, cold=True),
    "bursts": lambda _options: bursts(cold=False),
    "bursts, cold": lambda _options: bursts(cold=True),
}


MADE_UP = ("bursts", "bursts, cold")


def measure(options, name):
    path, memory = TRACES[name](options)
    found = {"trace": name, "memory": memory, "schemes": {scheme: replay(options, path, memory, more) for scheme, more in ways(options).items()}}
    if name in MADE_UP and not options.shares:
        found["balanced"] = {scheme: replay(options, path, memory, ["--shrinker", scheme]) for scheme in build.SHRINKERS}
    return found


def rows(found):
    for one in found:
        balanced = {f"{scheme}, balance": outcome for scheme, outcome in one.get("balanced", {}).items()}
        for scheme, outcome in (one["schemes"] | balanced).items():
            counters = outcome["counters"]
            yield (
                one["trace"],
                scheme,
                f"{outcome['accesses']:,}",
                f"{counters['zswpin']:,}",
                f"{counters['pswpin']:,}",
                f"{counters['zswpwb']:,}",
                f"{counters['pswpout']:,}",
                f"{outcome['stalled_s']:.2f}",
            )


def changes(one):
    """Second chance against decay, in percent."""
    of = lambda scheme, name: one["schemes"][scheme]["counters"][name]  # noqa: E731
    change = lambda name: 100 * (of("second-chance", name) / max(of("decay", name), 1) - 1)  # noqa: E731
    told = f"{one['trace']}: decay → second chance: swapins from the device {change('pswpin'):+.1f} %, written back {change('zswpwb'):+.1f} %"
    if "balanced" in one:
        told += f"; with the balance {balanced_ratio(one):.3f} of its swapins (goal: at most {BALANCED_GOAL})"
    return told


def against_best(one):
    """The balance against the best share, in percent."""
    stalls = {name: outcome["stalled_s"] for name, outcome in one["schemes"].items()}
    balance = stalls.pop("balance")
    best = min(stalls, key=stalls.get)
    return f"{one['trace']}: balance against a share of {best}: stall {100 * (balance / stalls[best] - 1):+.1f} % (goal: at most +5)"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="append", choices=TRACES, help="only this (may be repeated)")
    parser.add_argument("--memory", type=parse_bytes, default=80 * MIB, help="what the builds are replayed with (default 80M)")
    parser.add_argument("--cap", type=parse_bytes, default=120 * MIB, help="what they are recorded in (default 120M; a third is not managed)")
    parser.add_argument("--percent", type=int, default=20, help="the most that the pool takes of it (default %(default)s)")
    parser.add_argument("--shares", action="store_true", help="the balance against fixed shares, not one scheme against another")
    parser.add_argument("--jobs", type=int, default=4, help="of make (default %(default)s)")
    parser.add_argument("--targets", default="mm/", help="what is built (default: %(default)s)")
    parser.add_argument("--swap-dir", type=Path, default=Path("/var/tmp"), help="where the swap files lie")
    add_program_options(parser)
    return parser.parse_args()


def main(options):
    DATA.mkdir(parents=True, exist_ok=True)
    facts = print_machine()
    found = [measure(options, name) for name in options.trace or TRACES]
    store.save(options, facts, found)
    header = ("trace", "scheme", "accesses", "pool hits", "device in", "written back", "device out", "stall s")
    print_table(header, rows(found))
    for one in found:
        print(against_best(one) if options.shares else changes(one))
    return 0


if __name__ == "__main__":
    main_guard(parse, main)
