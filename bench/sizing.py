#!/usr/bin/env python3
"""How large a remote tier must be: a simulation of many hosts that swap to the shards of a cluster.

It is deterministic: the seed is printed, and the same options give the same figures. What one server can do is not simulated
but given: --get-us and --set-us, which `redis-benchmark -d 4096 -t get` and `-d 131072 -t set` measure on yours.

Hosts fault at rates that differ (log-normal). Values lie on shards at random, as keys do by their hash. Each shard has a primary
in one zone and, with --replicas 1, a replica in the next; it answers one request after the other. A primary that is lost is
replaced by its replica after --failover seconds, in which its requests wait. One without a replica loses what it holds.

    bench/sizing.py                 the table of docs/remote-sizing.md
    bench/sizing.py --write         writes docs/remote-sizing.md
"""

import argparse
import math
import random
from dataclasses import dataclass
from pathlib import Path

PAGE, VALUE_PAGES, GIB = 4096, 32, 1 << 30
ZONES = 3
VALUE_OVERHEAD_BYTES = 100  # of a key and its entry, as redis 7 has them
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "remote-sizing.md"
SHARDS = (64, 250, 1000)
SCENARIOS = ("all is well", "a shard is lost", "a zone is lost")


@dataclass
class Result:
    shards: int
    scenario: str
    waits: list  # of reads, in seconds, sorted
    busiest: float  # share of its time in which the busiest shard answers
    lost: float  # share of all pages

    def quantile(self, part):
        return self.waits[min(int(part * len(self.waits)), len(self.waits) - 1)] if self.waits else math.nan


def rates(draw, options):
    """Faults a second of each host: log-normal with the mean that is asked for."""
    sigma = options.spread
    return [options.faults * math.exp(draw.gauss(0, sigma) - sigma * sigma / 2) for _ in range(options.hosts)]


def arrivals(draw, rate, seconds):
    at = draw.expovariate(rate) if rate > 0 else math.inf
    while at < seconds:
        yield at
        at += draw.expovariate(rate)


def requests(draw, shards, options):
    """For each shard its requests: (time, zone of the host, whether it is a read)."""
    queues = [[] for _ in range(shards)]
    for host, rate in enumerate(rates(draw, options)):
        zone = host % ZONES
        for at in arrivals(draw, rate, options.seconds):
            queues[draw.randrange(shards)].append((at, zone, True))
        # What comes in has left before: as many pages are written, whole values at a time.
        for at in arrivals(draw, rate / VALUE_PAGES, options.seconds):
            queues[draw.randrange(shards)].append((at, zone, False))
    for queue in queues:
        queue.sort()
    return queues


def fails(scenario, shard, zone):
    return scenario == "a shard is lost" and shard == 0 or scenario == "a zone is lost" and zone == 0


def simulate(shards, scenario, options):
    draw = random.Random(options.seed)
    waits, busiest, lost = [], 0.0, 0
    down, up = options.seconds / 4, options.seconds / 4 + options.failover
    for shard, queue in enumerate(requests(draw, shards, options)):
        primary = shard % ZONES
        failing = fails(scenario, shard, primary)
        replaced = failing and options.replicas > 0
        lost += failing and not replaced
        free_at, busy = 0.0, 0.0
        for at, zone, is_read in queue:
            if failing and at >= down and not replaced:
                continue
            serving = (primary + 1) % ZONES if failing and at >= up else primary
            trip = (options.near_us if zone == serving else options.far_us) * 1e-6
            work = (options.get_us if is_read else options.set_us) * 1e-6
            begins = max(at + trip / 2, free_at)
            if failing and begins < up and begins + work > down:
                begins = up
            free_at = begins + work
            busy += work
            if is_read:
                waits.append(free_at + trip / 2 - at)
        busiest = max(busiest, busy / options.seconds)
    waits.sort()
    return Result(shards, scenario, waits, busiest, lost / shards)


def needs(shards, options):
    """What each server must hold, and what renewals cost it: (GiB, EXPIRE a second)."""
    held = options.hosts * options.gib * GIB
    values = held / (VALUE_PAGES * PAGE)
    return (held + values * VALUE_OVERHEAD_BYTES) / shards / GIB, values / shards / (options.ttl_hours * 3600 / 3)


def milliseconds(seconds):
    return f"{seconds * 1e3:.2f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def table(options):
    yield "| shards | memory of each server, GiB | `EXPIRE` a second of each | what happens | p50, ms | p99, ms | p99.9, ms | longest, ms | busiest shard | pages lost |"
    yield "|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|"
    for shards in options.shards:
        gib, renewals = needs(shards, options)
        for scenario in SCENARIOS:
            found = simulate(shards, scenario, options)
            times = " | ".join(milliseconds(found.quantile(part)) for part in (0.5, 0.99, 0.999, 1))
            yield f"| {shards} | {gib:.0f} | {renewals:.0f} | {scenario} | {times} | {found.busiest * 100:.1f} % | {found.lost * 100:.1f} % |"


TEXT = """# Sizing a remote tier for many hosts

Made by `bench/sizing.py --write`; do not edit it. It is a simulation, not a measurement: {hosts} hosts that have {gib} GiB each on a
cluster, {faults} faults a second each on average (log-normal, sigma {spread}), and write as many pages as they read. A server
answers a read of a page in {get_us} µs and a write of 32 pages in {set_us} µs, one after the other. A round trip takes {near_us} µs within
a zone and {far_us} µs to another. {seconds} s are simulated, seed {seed}. A primary that is lost is replaced by its replica after
{failover} s.

{table}

Without replicas (`--replicas 0`) a lost shard takes its part of all pages with it:

{alone}

What follows from it:

- **Memory decides the number of shards, and not the load.** Servers are nearly idle; what they need is memory, and with a replica twice as
  much as the table says.
- **A fault waits for the network.** The median is the round trip. A queue shows in the tail only where few servers answer for all.
- **A failover is what hurts.** Faults on the shard wait until the replica has taken over, and nothing is lost. `--remote-timeout` must
  be longer than a failover, or pages that could have been had are given up.
- **A lost zone is many failovers at once.** Its hosts are gone too; those of other zones wait as for one shard, but more of them.
- **Renewals are cheap**: keys of 128 KiB are few, and are renewed over a third of their time.
"""


def document(options):
    alone = argparse.Namespace(**{**vars(options), "replicas": 0, "shards": options.shards[-1:]})
    return TEXT.format(table="\n".join(table(options)), alone="\n".join(table(alone)), **{name: value for name, value in vars(options).items() if name not in ("shards", "write")})


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--gib", type=int, default=64, help="of each host on the cluster (default %(default)s)")
    parser.add_argument("--faults", type=float, default=100, help="a second and host on average (default %(default)s)")
    parser.add_argument("--spread", type=float, default=1.0, help="sigma of the hosts' rates (default %(default)s)")
    parser.add_argument("--shards", type=int, action="append", help=f"(may be repeated; default {', '.join(map(str, SHARDS))})")
    parser.add_argument("--replicas", type=int, choices=(0, 1), default=1)
    parser.add_argument("--get-us", type=float, default=15, help="of one server for a page (default %(default)s)")
    parser.add_argument("--set-us", type=float, default=60, help="of one server for 32 pages (default %(default)s)")
    parser.add_argument("--near-us", type=float, default=150, help="round trip within a zone (default %(default)s)")
    parser.add_argument("--far-us", type=float, default=700, help="round trip between zones (default %(default)s)")
    parser.add_argument("--failover", type=float, default=1.0, help="seconds until a replica has taken over (default %(default)s)")
    parser.add_argument("--ttl-hours", type=float, default=24, help="--remote-ttl (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=4, help="that are simulated (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write docs/remote-sizing.md")
    options = parser.parse_args(words)
    options.shards = tuple(options.shards or SHARDS)
    return options


def main():
    options = parse()
    if options.write:
        DOCUMENT.write_text(document(options))
        return
    print(f"seed {options.seed}")
    print("\n".join(table(options)))


if __name__ == "__main__":
    main()
