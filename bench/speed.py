#!/usr/bin/env python3
"""Pagetide against the kernel's swap to compressed RAM, at the same total RAM (the rule is in docs: how we compare).

Kernel arm: a memory cgroup of --limit L with swap on zram; Z is what zram took at its peak, outside the cgroup.
Our arm: a cgroup without swap of (L + Z) × 1.03 + 32 MiB, `pagetide run --memory L+Z`; swap is off meanwhile.

First each kernel configuration runs alone (--scouts times); the best of them is the opponent. Then the arms alternate
for --pairs pairs under the same THP settings. A ratio above 1 means that Pagetide is faster; a goal holds when the
median of the pairs' ratios reaches it. CPU seconds are user and system time of the run and all its children (the
kernel's reclaim runs in the program's own time here; kswapd and other kernel threads are not included).
"""

import argparse
import json
import sys
from dataclasses import dataclass

from pagetide_bench import store
from pagetide_bench.commands import build_programs, preload_environment, python_program
from pagetide_bench.figures import print_table, quartiles, show_quartiles
from pagetide_bench.inputs import heap_file
from pagetide_bench.kernel import KERNEL_CONFIGS, KernelConfig
from pagetide_bench.machine import print_machine
from pagetide_bench.options import add_arm_options
from pagetide_bench.runs import run_kernel, run_native, run_pagetide
from pagetide_bench.script import BenchError, main_guard, progress
from pagetide_bench.sizes import MIB, parse_bytes

BUFFER_MIB = 1024
QUICK_CONFIGS = ("zram-lz4", "zram-lzo-rle")


@dataclass(frozen=True)
class Case:
    name: str
    goal: float
    unit: str
    arguments: tuple  # of touch; empty for the Python job
    passes: int = 3

    def command(self, options):
        if not self.arguments:
            return python_program("dictjob.py", "--mib", options.dict_mib, "--ops", options.dict_ops)
        arguments = [str(word).replace("HEAP", str(heap_file())) for word in self.arguments]
        (touch,) = build_programs("touch")
        return [touch, "--mib", options.mib, "--passes", self.passes, *arguments]

    def value(self, run):
        """What is compared: ns a page (median of the passes), or seconds of the whole job."""
        if not self.arguments:
            return run.wall_seconds
        return quartiles(json.loads(run.stdout)["pass_ns_per_page"])[1]

    def fill_value(self, run):
        return json.loads(run.stdout)["fill_ns_per_page"] if self.arguments else None


def random_heap(threads):
    return ("--fill", "heap:HEAP", "--order", "random", "--threads", threads, "--ops", 100_000)


CASES = (
    Case("seq-zero", 4.0, "ns/page", ("--fill", "zero", "--order", "seq")),
    Case("seq-heap", 2.5, "ns/page", ("--fill", "heap:HEAP", "--order", "seq")),
    Case("random-heap-1", 1.2, "ns/page", random_heap(1)),
    Case("random-heap-2", 1.0, "ns/page", random_heap(2)),
    Case("dict", 1.0, "s", ()),
    Case("shared-seq-heap", 2.0, "ns/page", ("--shared", "--fill", "heap:HEAP", "--order", "seq")),
    Case("shared-zipf-heap", 1.0, "ns/page", ("--shared", "--fill", "heap:HEAP", "--order", "zipf", "--ops", 100_000)),
    Case("shared-random-heap", 0.8, "ns/page", ("--shared", *random_heap(1))),
)


@dataclass(frozen=True)
class Opponent:
    """A kernel configuration, with the program's own allocator or with ours."""

    config: KernelConfig
    env: tuple = ()

    @property
    def name(self):
        return self.config.name + ("+our-allocator" if self.env else "")


def opponents(case, options):
    configs = [KERNEL_CONFIGS[name] for name in options.kernel]
    found = [Opponent(config) for config in configs]
    if not case.arguments and options.preload.exists():
        env = tuple(preload_environment(options.preload).items())
        found += [Opponent(config, env) for config in configs]
    return found


def kernel_run(case, opponent, options):
    command = case.command(options)
    return run_kernel(opponent.config, options.limit, command, env=dict(opponent.env)).require_success()


def our_run(case, opponent, cap_bytes, options):
    with opponent.config.memory_settings():
        return run_pagetide(cap_bytes, case.command(options), options.pagetide, options.run_options).require_success()


def native_runs(case, options):
    """Without a limit; with our allocator too where it replaces the program's: the better median counts."""
    environments = [{}]
    if not case.arguments and options.preload.exists():
        environments.append(preload_environment(options.preload))
    groups = []
    for env in environments:
        runs = [run_native(case.command(options), env=env).require_success() for _ in range(options.natives)]
        groups.append(runs)
    return min(groups, key=lambda runs: quartiles([case.value(run) for run in runs])[1])


def scout(case, options):
    """Each opponent alone. Returns {name: runs} and the best."""
    runs = {}
    candidates = opponents(case, options)
    for opponent in candidates:
        try:
            runs[opponent.name] = [kernel_run(case, opponent, options) for _ in range(options.scouts)]
        except OSError as error:
            # A codec that this kernel does not have (now), say.
            progress(f"{case.name}: {opponent.name} left out: its settings cannot be made: {error}")
            continue
        except BenchError as error:
            # With huge pages a job may not fit that fits without.
            progress(f"{case.name}: {opponent.name} left out: {error}")
            runs.pop(opponent.name, None)
            continue
        values = [case.value(run) for run in runs[opponent.name]]
        fill = case.fill_value(runs[opponent.name][0])
        last = runs[opponent.name][-1]
        progress(
            f"{case.name}: {opponent.name:<22} {show_quartiles(values, digits_of(case.unit))} {case.unit}, "
            f"CPU {last.cpu_seconds:.1f} s, wall {last.wall_seconds:.1f} s (stolen {last.stolen_seconds:.1f}), Z {last.swap_used_peak_bytes // MIB} MiB"
            + (f", fill {fill:.0f} ns/page" if fill else "")
        )
    candidates = [opponent for opponent in candidates if opponent.name in runs]
    if not candidates:
        raise BenchError("none of the kernel's configurations can be had here")
    best = min(candidates, key=lambda o: quartiles([case.value(run) for run in runs[o.name]])[1])
    return runs, best


def digits_of(unit):
    """Digits behind the point that say something in this unit."""
    return {"ns/page": 0, "ms/transaction": 3}.get(unit, 1)


def pairs(case, opponent, options):
    """Kernel, ours, kernel, ours … Each of our runs gets the Z of the kernel run just before it."""
    kernel, ours = [], []
    for number in range(options.pairs):
        kernel.append(kernel_run(case, opponent, options))
        cap_bytes = options.limit + kernel[-1].swap_used_peak_bytes
        ours.append(our_run(case, opponent, cap_bytes, options))
        left, right = case.value(kernel[-1]), case.value(ours[-1])
        digits = digits_of(case.unit)
        progress(f"{case.name}: pair {number + 1}: kernel {left:.{digits}f}, ours {right:.{digits}f} {case.unit}, ratio {left / right:.2f}")
    return kernel, ours


def measure(case, options):
    native = native_runs(case, options)
    scouted, best = scout(case, options)
    kernel, ours = (scouted[best.name], []) if options.kernel_only else pairs(case, best, options)
    ratios = [case.value(k) / case.value(o) for k, o in zip(kernel, ours)]
    return {
        "case": case.name,
        "unit": case.unit,
        "goal": case.goal,
        "opponent": best.name,
        "opponent_settings": best.config.describe(),
        "limit_bytes": options.limit,
        "swap_used_peak_bytes": quartiles([run.swap_used_peak_bytes for run in kernel])[1],
        "native": values_of(case, native),
        "kernel": values_of(case, kernel),
        "ours": values_of(case, ours),
        "ratios": ratios,
        "ratio_median": quartiles(ratios)[1] if ratios else None,
        "scouted": {name: values_of(case, runs) for name, runs in scouted.items()},
    }


def values_of(case, runs):
    return {
        "values": [case.value(run) for run in runs],
        "fill_ns_per_page": [case.fill_value(run) for run in runs if case.arguments],
        "cpu_seconds": [run.cpu_seconds for run in runs],
        "runs": [run.figures() for run in runs],
    }


def table_row(result):
    digits = digits_of(result["unit"])

    def show(arm, name, digits):
        return show_quartiles(result[arm][name], digits) if result[arm][name] else "–"

    ratio = result["ratio_median"]
    return (
        f"{result['case']} [{result['unit']}]",
        show("native", "values", digits),
        show("kernel", "values", digits),
        show("ours", "values", digits),
        show_quartiles(result["ratios"], 2) if ratio else "–",
        f"≥ {result['goal']}",
        "–" if ratio is None else "holds" if ratio >= result["goal"] else "MISSED",
        show("kernel", "cpu_seconds", 1),
        show("ours", "cpu_seconds", 1),
        show("kernel", "fill_ns_per_page", 0),
        show("ours", "fill_ns_per_page", 0),
        f"{result['swap_used_peak_bytes'] / MIB:.0f}",
        result["opponent"],
    )


HEADER = (
    "case", "native", "kernel", "ours", "kernel/ours", "goal", "", "kernel CPU s", "our CPU s", "kernel fill", "our fill",
    "Z MiB", "opponent",
)  # fmt: skip


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--case", action="append", choices=names, help="only this case (may be repeated)")
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs of runs (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="3 pairs, two kernel configurations: for a first look only")
    parser.add_argument("--kernel", action="append", choices=list(KERNEL_CONFIGS), help="only this kernel configuration")
    parser.add_argument("--scouts", type=int, default=1, help="runs of each kernel configuration beforehand")
    parser.add_argument("--natives", type=int, default=3, help="runs without a limit")
    parser.add_argument("--kernel-only", action="store_true", help="leave our arm out: the scouts' figures only")
    parser.add_argument("--limit", type=parse_bytes, default=256 * MIB, help="L, the kernel arm's limit (default 256M)")
    parser.add_argument("--mib", type=int, default=BUFFER_MIB, help="size of touch's buffer (default %(default)s)")
    parser.add_argument("--dict-mib", type=int, default=700)
    parser.add_argument("--dict-ops", type=int, default=300_000)
    add_arm_options(parser)
    options = parser.parse_args()
    if options.quick:
        options.pairs, options.natives = 3, 1
    if min(options.pairs, options.scouts, options.natives) < 1:
        parser.error("--pairs, --scouts and --natives must be at least 1")
    options.kernel = options.kernel or list(QUICK_CONFIGS if options.quick else KERNEL_CONFIGS)
    if not options.kernel_only and not options.pagetide.exists():
        print(f"NOTE: {options.pagetide} is not built: measuring the kernel's arm only", file=sys.stderr)
        options.kernel_only = True
    return options


def main(options):
    facts = print_machine()
    print(f"L {options.limit // MIB} MiB, buffer {options.mib} MiB, {options.pairs} pairs: median (quartiles)\n", flush=True)
    cases = [case for case in CASES if not options.case or case.name in options.case]
    results = []
    for case in cases:
        results.append(measure(case, options))
        store.save(options, facts, results)
    print()
    print_table(HEADER, [table_row(result) for result in results])
    for result in results:
        print(f"{result['case']}: opponent {result['opponent_settings']}")
    return 1 if any(r["ratio_median"] is not None and r["ratio_median"] < r["goal"] for r in results) else 0


if __name__ == "__main__":
    main_guard(parse, main)
