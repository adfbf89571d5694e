"""The arms of a comparison with the kernel's swap at the same total RAM, and pairs of them.

A case of such a comparison has

  name, goal, unit      the goal is a ratio kernel / Pagetide of values in that unit
  env                   of the program
  same_output           whether it prints the same each time: whoever prints something else has failed
  may_take_allocator    whether our allocator can stand in for the program's: then it is tried in the other arms too
  command(options)      the words of the command
  value(run)            what is compared; less is better
  fill_value(run)       the time of filling a page beside it, or None

and the options name `limit`, `kernel`, `pairs`, `scouts`, `natives`, `kernel_only`, and the builds under test.
"""

import time
from dataclasses import dataclass

from .commands import preload_environment
from .figures import quartiles, show_quartiles
from .kernel import KERNEL_CONFIGS, KernelConfig
from .paths import DATA
from .runs import run_kernel, run_native, run_pagetide
from .script import BenchError, progress
from .sizes import MIB


class OtherOutput(BenchError):
    """A program prints something else than natively: no matter of memory."""


class NoOpponent(BenchError):
    """The case ends in no configuration of the kernel's: it is killed, or fails, in each that can be made here."""


# What the pairs of one case may take.
ROW_SECONDS_MAX = 3600


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
    if case.may_take_allocator and options.preload.exists():
        env = tuple(preload_environment(options.preload).items())
        found += [Opponent(config, env) for config in configs]
    return found


def kernel_run(case, opponent, options):
    command = case.command(options)
    return run_kernel(opponent.config, options.limit, command, env={**case.env, **dict(opponent.env)}, cwd=DATA).require_success()


def our_run(case, opponent, cap_bytes, options):
    with opponent.config.memory_settings():
        return run_pagetide(cap_bytes, case.command(options), options.pagetide, options.run_options, env=case.env, cwd=DATA).require_success()


def require_output(case, run, native):
    if case.same_output and run.stdout != native.stdout:
        raise OtherOutput(f"prints something else than natively: {run.stdout[-200:]!r}")
    return run


def native_runs(case, options):
    """Without a limit; with our allocator too where it replaces the program's: the better median counts."""
    environments = [{}]
    if case.may_take_allocator and options.preload.exists():
        environments.append(preload_environment(options.preload))
    groups = []
    for env in environments:
        runs = [run_native(case.command(options), env={**case.env, **env}, cwd=DATA).require_success() for _ in range(options.natives)]
        groups.append(runs)
    return min(groups, key=lambda runs: quartiles([case.value(run) for run in runs])[1])


def scout(case, native, options):
    """Each opponent alone. Returns {name: runs} and the best."""
    runs, has_failed = {}, False
    candidates = opponents(case, options)
    for opponent in candidates:
        try:
            runs[opponent.name] = [require_output(case, kernel_run(case, opponent, options), native) for _ in range(options.scouts)]
        except OtherOutput:
            raise
        except OSError as error:
            # A codec that this kernel does not have (now), say.
            progress(f"{case.name}: {opponent.name} left out: its settings cannot be made: {error}")
            continue
        except BenchError as error:
            # With huge pages a job may not fit that fits without.
            progress(f"{case.name}: {opponent.name} left out: {error}")
            runs.pop(opponent.name, None)
            has_failed = True
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
    if not candidates and has_failed:
        raise NoOpponent("it ends in none of the kernel's configurations")
    if not candidates:
        raise BenchError("none of the kernel's configurations can be made here")
    best = min(candidates, key=lambda o: quartiles([case.value(run) for run in runs[o.name]])[1])
    return runs, best


def digits_of(unit):
    """Digits behind the point that say something in this unit."""
    return {"ns/page": 0, "ms/transaction": 3}.get(unit, 1)


def pairs(case, opponent, native, options):
    """Kernel, ours, kernel, ours … Each of our runs gets the Z of the kernel run just before it.

    Ends early where another pair would last beyond ROW_SECONDS_MAX: the result says how many there are.
    """
    kernel, ours, started = [], [], time.monotonic()
    for number in range(options.pairs):
        if number and (time.monotonic() - started) * (number + 1) / number > ROW_SECONDS_MAX:
            progress(f"{case.name}: {number} pairs take as long as a row may")
            break
        kernel.append(require_output(case, kernel_run(case, opponent, options), native))
        cap_bytes = options.limit + kernel[-1].swap_used_peak_bytes
        ours.append(require_output(case, our_run(case, opponent, cap_bytes, options), native))
        left, right = case.value(kernel[-1]), case.value(ours[-1])
        digits = digits_of(case.unit)
        progress(f"{case.name}: pair {number + 1}: kernel {left:.{digits}f}, ours {right:.{digits}f} {case.unit}, ratio {left / right:.2f}")
    return kernel, ours


def measure(case, options):
    native = native_runs(case, options)
    scouted, best = scout(case, native[0], options)
    kernel, ours = (scouted[best.name], []) if options.kernel_only else pairs(case, best, native[0], options)
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
        "fill_ns_per_page": [value for value in map(case.fill_value, runs) if value is not None],
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
