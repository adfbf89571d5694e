#!/usr/bin/env python3
"""Shared memory, by programs that know nothing of Pagetide, against the kernel's swap to zram at the same total RAM.

Arms, pairs and ratios are those of speed.py. Jobs: processes that read files of /dev/shm (fio, `ioengine=mmap`) in order, at
random and by zipf 1.2, and PostgreSQL under pgbench with buffers of four times the limit. Each checks its bytes: fio by
checksums of all that it has written, PostgreSQL by the sums of its tables and amcheck. One large object that one process reads
is `speed.py --case shared-seq-heap`.
"""

import argparse
import json
from dataclasses import dataclass

from pagetide_bench import store
from pagetide_bench.arms import HEADER, measure, table_row
from pagetide_bench.figures import print_table
from pagetide_bench.kernel import KERNEL_CONFIGS
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_arm_options
from pagetide_bench.packages import install_packages
from pagetide_bench.paths import REPO
from pagetide_bench.script import BenchError, main_guard
from pagetide_bench.sizes import MIB, parse_bytes

PACKAGES = ("fio", "postgresql", "postgresql-contrib")


@dataclass(frozen=True)
class Job:
    name: str
    goal: float
    unit: str
    program: str
    arguments: tuple
    env = {}
    may_take_allocator = False
    same_output = False

    def command(self, options):
        words = [str(word).format(**vars(options), buffers=4 * options.limit // MIB) for word in self.arguments]
        return ["/usr/bin/python3", "-B", REPO / "bench" / "programs" / self.program, *words]

    def value(self, run):
        return json.loads(run.stdout)["value"]

    def fill_value(self, run):
        return json.loads(run.stdout)["fill_ns_per_page"]


def files(order, goal):
    return Job(f"files-{order}", goal, "µs/read", "shared_files.py", ("{processes}", "{mib}", order, "{seconds}"))


JOBS = (
    files("seq", 2.0),
    files("zipf", 1.0),
    files("random", 0.8),
    Job("pgbench", 1.0, "ms/transaction", "pgbench.py", ("{buffers}", "{scale}", "{seconds}")),
)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", action="append", choices=[job.name for job in JOBS], help="only this one (may be repeated)")
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs of runs (default %(default)s)")
    parser.add_argument("--kernel", action="append", choices=list(KERNEL_CONFIGS), help="the kernel's configurations (default zram-lz4)")
    parser.add_argument("--limit", type=parse_bytes, default=128 * MIB, help="L, the kernel arm's limit: an eighth of what fio has (default 128M)")
    parser.add_argument("--processes", type=int, default=16, help="of fio (default %(default)s)")
    parser.add_argument("--mib", type=int, default=64, help="of each file of fio's (default %(default)s)")
    parser.add_argument("--scale", type=int, default=40, help="of pgbench's tables, 15 MiB each (default %(default)s)")
    parser.add_argument("--seconds", type=int, default=10, help="of reads and transactions (default %(default)s)")
    add_arm_options(parser)
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error("--pairs must be at least 1")
    options.kernel = options.kernel or ["zram-lz4"]
    options.scouts, options.natives, options.kernel_only = 1, 1, False
    return options


def main(options):
    if failed := install_packages(PACKAGES):
        raise BenchError(failed)
    facts = print_machine()
    jobs = [job for job in JOBS if not options.job or job.name in options.job]
    results = []
    for job in jobs:
        results.append(measure(job, options))
        store.save(options, facts, results)
    print()
    print_table(HEADER, [table_row(result) for result in results])
    return 1 if any(result["ratio_median"] < result["goal"] for result in results) else 0


if __name__ == "__main__":
    main_guard(parse, main)
