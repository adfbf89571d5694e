#!/usr/bin/env python3
"""What does Pagetide cost a program that fits? It should cost nothing.

Programs run natively, with our allocator alone (LD_PRELOAD of the library, no run around it) and under `pagetide run`
with a cap that they never reach: interleaved rounds, wall time. The goal is native / ours ≥ 0.97, where native is the
better of the program's own allocator and ours alone. Then what a process costs to start, as a child of a run and with
the launcher.
"""

import argparse
import shlex
import subprocess
import sys
from dataclasses import dataclass, field

from pagetide_bench import store
from pagetide_bench.commands import build_programs, have, pagetide_command, preload_environment, python_program
from pagetide_bench.figures import print_table, quartiles, show_quartiles
from pagetide_bench.inputs import write_sort_file
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_arm_options
from pagetide_bench.paths import DATA
from pagetide_bench.runs import run_native
from pagetide_bench.script import BenchError, main_guard, progress
from pagetide_bench.sizes import MIB

GOAL = 0.97
CAP_BYTES = 4096 * MIB
STARTS = 200
LAUNCHES = 40
SORT_MIB = 150
ARMS = ("native", "allocator", "ours")

SQL = """
CREATE TABLE visit(id INTEGER PRIMARY KEY, person INTEGER, page TEXT, seconds REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600000)
INSERT INTO visit SELECT i, i * 7919 % 50021, 'https://example.org/page/' || (i * 40503 % 9973), i % 977 / 10.0 FROM n;
CREATE INDEX by_person ON visit(person);
CREATE INDEX by_page ON visit(page);
SELECT count(*), round(sum(seconds), 1) FROM visit;
SELECT page, count(*) c, round(avg(seconds), 3) FROM visit GROUP BY page ORDER BY c DESC, page LIMIT 5;
SELECT count(*) FROM visit a JOIN visit b ON a.person = b.person AND a.id < b.id WHERE a.id % 10 = 0;
"""


@dataclass(frozen=True)
class Program:
    name: str
    command: object
    requires: tuple = ()
    env: dict = field(default_factory=dict)


def sort_command():
    path = DATA / f"fits-sort-{SORT_MIB}.txt"
    if not path.exists():
        write_sort_file(path, SORT_MIB * MIB)
    return ["sh", "-c", f"sort -S 1G --parallel=2 {shlex.quote(str(path))} | tail -n 1"]


def gcc_command():
    source = DATA / "fits.c"
    if not source.exists():
        subprocess.run(python_program("gcc_source.py", "--scale", 0.2, "--output", source), check=True)
    return ["gcc", "-O2", "-c", source, "-o", "/dev/null"]


def sqlite_command():
    return ["sqlite3", ":memory:", SQL]


def malloc_command():
    (program,) = build_programs("fits_malloc")
    return [program, "--threads", 8, "--ops", 1_000_000]


PROGRAMS = (
    Program("dict", lambda: python_program("dictjob.py", "--mib", 400, "--ops", 500_000)),
    Program("gcc", gcc_command, ("gcc",)),
    Program("sort", sort_command, ("sort",), {"LC_ALL": "C"}),
    Program("sqlite", sqlite_command, ("sqlite3",)),
    Program("malloc", malloc_command, ("gcc",)),
)


def run_arm(arm, command, env, options):
    if arm == "native":
        run = run_native(command, env=env, cwd=DATA)
    elif arm == "allocator":
        run = run_native(command, env={**env, **preload_environment(options.preload)}, cwd=DATA)
    else:
        run = run_native(pagetide_command(CAP_BYTES, command, options.pagetide, options.run_options), env=env, cwd=DATA)
    return run.require_success()


def measure(program, options):
    command = list(program.command())
    run_arm("native", command, program.env, options)  # fills the page cache
    runs = {arm: [] for arm in options.arms}
    for _ in range(options.pairs):
        for arm in options.arms:
            runs[arm].append(run_arm(arm, command, program.env, options))
    outputs = {run.stdout for arm in runs.values() for run in arm}
    if len(outputs) != 1:
        raise BenchError(f"{program.name}: the arms do not print the same")
    result = {
        "program": program.name,
        "seconds": {arm: [run.wall_seconds for run in group] for arm, group in runs.items()},
        "cpu_seconds": {arm: [run.cpu_seconds for run in group] for arm, group in runs.items()},
        "ratios": {},
    }
    if "ours" in runs:
        for arm in options.arms[:-1]:
            pairs = zip(result["seconds"][arm], result["seconds"]["ours"])
            result["ratios"][arm] = [other / ours for other, ours in pairs]
    for arm in options.arms:
        progress(f"{program.name}: {arm} {show_quartiles(result['seconds'][arm], 2)} s")
    return result


def ratio_that_counts(result):
    """Against the better of the other arms."""
    if not result["ratios"]:
        return None
    best = min(result["ratios"], key=lambda arm: quartiles(result["seconds"][arm])[1])
    return quartiles(result["ratios"][best])[1]


def table_row(result):
    def show(kind, arm, digits):
        return show_quartiles(result[kind][arm], digits) if arm in result[kind] else "–"

    ratio = ratio_that_counts(result)
    verdict = "–" if ratio is None else "holds" if ratio >= GOAL else "MISSED"
    seconds = (show("seconds", arm, 2) for arm in ARMS)
    cpu = "/".join(f"{quartiles(result['cpu_seconds'][arm])[1]:.1f}" if arm in result["cpu_seconds"] else "–" for arm in ARMS)
    return (result["program"], *seconds, show("ratios", "native", 3), show("ratios", "allocator", 3), cpu, verdict)


HEADER = ("program", "native s", "allocator s", "ours s", "native/ours", "allocator/ours", "CPU s of the three", f"≥ {GOAL}")


# --- Starting a process ---------------------------------------------------------------------------------------------


# A shell repeats the command, since entering a cgroup costs more than what is measured here.


def loop_command(count, command):
    return ["sh", "-c", f"i=0; while [ $i -lt {count} ]; do {shlex.join(map(str, command))}; i=$((i+1)); done"]


def start_cost(options):
    """ms for each process that a shell starts: natively, with the library alone, inside a run."""
    costs = {arm: [] for arm in options.arms}
    for _ in range(options.pairs):
        for arm in options.arms:
            run = run_arm(arm, loop_command(STARTS, ["/bin/true"]), {}, options)
            costs[arm].append(run.wall_seconds * 1000 / STARTS)
    return costs


def launch_cost(options):
    """ms for the launcher with one program that does nothing, against that program alone."""
    commands = {"native": ["/bin/true"]}
    if "ours" in options.arms:
        commands["ours"] = pagetide_command(CAP_BYTES, ["/bin/true"], options.pagetide, options.run_options)
    costs = {arm: [] for arm in commands}
    for _ in range(options.pairs):
        for arm, command in commands.items():
            run = run_arm("native", loop_command(LAUNCHES, command), {}, options)
            costs[arm].append(run.wall_seconds * 1000 / LAUNCHES)
    return costs


def start_rows(name, costs):
    row = [show_quartiles(costs[arm], 2) if arm in costs else "–" for arm in ARMS]
    extra = quartiles(costs["ours"])[1] - quartiles(costs["native"])[1] if "ours" in costs else None
    return (name, *row, "–" if extra is None else f"{extra:+.2f}")


# --- The script -----------------------------------------------------------------------------------------------------


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*(program.name for program in PROGRAMS), "start"]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"of {', '.join(names)} (may be repeated)")
    parser.add_argument("--pairs", type=int, default=9, help="interleaved rounds (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="3 rounds: for a first look only")
    add_arm_options(parser)
    options = parser.parse_args()
    if options.quick:
        options.pairs = 3
    present = {"native": True, "allocator": options.preload.exists(), "ours": options.pagetide.exists()}
    options.arms = [arm for arm in ARMS if present[arm]]
    for arm in ARMS:
        if not present[arm]:
            print(f"NOTE: not built, arm left out: {arm}", file=sys.stderr)
    return options


def main(options):
    DATA.mkdir(parents=True, exist_ok=True)
    facts = print_machine()
    results, skipped, starts = [], [], {}
    for program in PROGRAMS:
        if options.only and program.name not in options.only:
            continue
        if missing := [name for name in program.requires if not have(name)]:
            skipped.append(f"SKIPPED {program.name}: not installed: {', '.join(missing)}")
            continue
        results.append(measure(program, options))
    if not options.only or "start" in options.only:
        starts = {"a process (ms)": start_cost(options), "the launcher (ms)": launch_cost(options)}
    store.save(options, facts, results, starts=starts, skipped=skipped)
    print(f"\n{options.pairs} rounds: median (quartiles)\n")
    if results:
        print_table(HEADER, [table_row(result) for result in results])
    if starts:
        print()
        print_table(("start of", *ARMS, "extra"), [start_rows(name, costs) for name, costs in starts.items()])
    print("\n".join(skipped))
    missed = [result for result in results if (ratio_that_counts(result) or 1) < GOAL]
    return 1 if missed else 0


if __name__ == "__main__":
    main_guard(parse, main)
