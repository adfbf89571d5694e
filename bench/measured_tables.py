"""Tables of what each benchmark stores: from its rows, as the script has them, to the columns and rows of a page.

`TABLES[NAME](run)` yields tables: dicts with `columns` and `rows`, and `variant`, `title` and `notes` where there are
several. Names of rows and columns are what documents quote figures by: they stay as they are.
"""

import statistics

MIB = 1 << 20
PAGES_A_MIB = 256


def quartiles(values, scale=1.0):
    """[first quartile, median, third quartile], scaled; one value as a number; None of none."""
    if not values:
        return None
    scaled = [value * scale for value in values]
    if len(scaled) == 1:
        return scaled[0]
    low, _, high = statistics.quantiles(scaled, n=4, method="inclusive")
    return [low, statistics.median(scaled), high]


def median(values, scale=1.0):
    return statistics.median(values) * scale if values else None


def table(columns, rows, **more):
    """Columns are names, (name, digits) or (name, digits, unit)."""
    columns = [dict(zip(("name", "digits", "unit"), [column] if isinstance(column, str) else column)) for column in columns]
    names = [column["name"] for column in columns]
    return {"columns": columns, "rows": [dict(zip(names, row)) for row in rows], **more}


def verdict(goal, value):
    return None if value is None else f"{goal}: {'holds' if value >= goal else 'missed'}"


# The most that `balanced_ratio` may be.
BALANCED_GOAL = 0.36

SPEED_CASES = {
    "seq-zero": "zero pages in order",
    "seq-heap": "heap pages in order",
    "random-heap-1": "heap pages at random, 1 thread",
    "random-heap-2": "heap pages at random, 2 threads",
    "dict": "Python dictionaries",
}


def speed(run):
    """Pages in µs, the job in seconds; that stands in the row's name."""
    rows = []
    for case in run["rows"]:
        scale = 1 if case["unit"] == "s" else 1e-3
        arms = [quartiles(case[arm]["values"], scale) for arm in ("native", "kernel", "ours")]
        cpu = [median(case[arm]["cpu_seconds"]) for arm in ("kernel", "ours")]
        cpu = " / ".join("–" if seconds is None else f"{seconds:.1f}" for seconds in cpu)
        rows.append((SPEED_CASES.get(case["case"], case["case"]), *arms, quartiles(case["ratios"]), cpu, verdict(case["goal"], case["ratio_median"])))
    columns = ("case", ("native", 2), ("kernel", 2), ("Pagetide", 2), ("kernel / Pagetide", 2), "CPU s, kernel / Pagetide", "goal")
    yield table(columns, rows)


SHARED_JOBS = {
    "files-seq": "fio: files read in order",
    "files-zipf": "fio: files read by zipf 1.2",
    "files-random": "fio: files read at random",
    "pgbench": "PostgreSQL under pgbench",
}


def shared(run):
    """A value's unit stands in the row's name; the filling of all pages beside it."""
    rows = []
    for job in run["rows"]:
        arms = [quartiles(job[arm]["values"]) for arm in ("native", "kernel", "ours")]
        name = f"{SHARED_JOBS.get(job['case'], job['case'])}, {job['unit']}"
        rows.append((name, *arms, quartiles(job["ratios"]), verdict(job["goal"], job["ratio_median"])))
    columns = ("job", ("native", 2), ("kernel", 2), ("Pagetide", 2), ("kernel / Pagetide", 2), "goal")
    yield table(columns, rows)


FAULT_STEPS = {
    "trap": "trap: the kernel hands the fault over",
    "wake-up": "wake-up of the reader",
    "work": "work: look up the word, read, decompress, check",
    "map": "map the page, wake the thread",
    "return": "return: until the thread runs again",
}

# The processor time that a fault may take.
FAULT_WORK_NS = 12_000


def fault(run):
    by_fill = {result["fill"]: result for result in run["rows"]}
    zero, heap = (by_fill.get(fill, {}).get("means", {}) for fill in ("zero", "heap"))
    total = sum(heap.values()) or 1
    rows = [
        (text, zero.get(step) and zero[step] / 1000, heap.get(step) and heap[step] / 1000, f"{100 * heap.get(step, 0) / total:.0f} %")
        for step, text in FAULT_STEPS.items()
    ]
    works = [by_fill.get(fill, {}).get("work", {}).get("processor_ns_per_fault") for fill in ("zero", "heap")]
    if all(works):
        held = "holds" if max(works) <= FAULT_WORK_NS else "missed"
        rows.append(("processor time of a fault, all threads of the run", *(work / 1000 for work in works), f"{FAULT_WORK_NS // 1000} µs: {held}"))
    yield table(("step", ("µs, pages of one repeated word", 1), ("µs, heap pages", 1), "share"), rows)


FITS_PROGRAMS = {"dict": "Python dictionaries", "sqlite": "sqlite3", "malloc": "malloc, 8 threads"}
FITS_GOAL = 0.97


def fits(run):
    rows = []
    for result in run["rows"]:
        seconds = [median(result["seconds"].get(arm)) for arm in ("native", "allocator", "ours")]
        ratios = [quartiles(result["ratios"].get(arm)) for arm in ("native", "allocator")]
        best = min((arm for arm in result["ratios"]), key=lambda arm: median(result["seconds"][arm]), default=None)
        held = None if best is None else "holds" if median(result["ratios"][best]) >= FITS_GOAL else "missed"
        rows.append((FITS_PROGRAMS.get(result["program"], result["program"]), *seconds, *ratios, held))
    columns = ("program", ("native s", 2), ("native with our allocator s", 2), ("Pagetide s", 2), ("native / Pagetide", 3), ("allocator / Pagetide", 3), "goal")
    if rows:
        yield table(columns, rows, notes=[f"The goal is {FITS_GOAL}."])
    names = {"a process (ms)": "each process", "the launcher (ms)": "the launcher, once"}
    starts = {name: costs for name, costs in run.get("starts", {}).items() if "ours" in costs}
    if starts:
        more = [(names.get(name, name), median(costs["ours"]) - median(costs["native"])) for name, costs in starts.items()]
        yield table(("what", ("ms more than natively", 1)), more, variant="launcher", title="What a start costs, in milliseconds", order=1)


def start(run):
    native = {}
    rows = []
    for result in run["rows"]:
        kind, blocks = result["kind"], result["blocks"]
        native.setdefault(kind, blocks)
        row = [f"{kind}, {result['arm']}"]
        for number in range(3):
            row.append(median([block[number] for block in blocks]))
            row.append(median([mine[number] - alone[number] for alone, mine in zip(native[kind], blocks)]))
        rows.append(row)
    times = ("wall", "wall more", "processor time", "processor time more")
    yield table(("start", *((name, 0, "µs") for name in times), ("page faults", 0), ("page faults more", 0)), rows)


CAP_PROGRAMS = {
    "analytics": "the example",
    "dict": "Python dictionaries",
    "sort": "`sort -S 1G` of 700 MiB",
    "gcc": "`gcc -O2`",
    "incompressible": "incompressible data, 4 threads",
    "fork-fan": "a parent that forks 4 children",
    "sqlite": "sqlite3 in memory",
    "sort-small": "`sort` of 100 MiB",
    "redis": "redis-server with a background save",
    "mariadb": "mariadbd under sysbench",
}
CAP_VARIANTS = {0.25: ("quarter", "In a quarter of what they need", 2)}


def cap(run):
    for factor in sorted({result["factor"] for result in run["rows"]}, reverse=True):
        rows = []
        for result in (result for result in run["rows"] if result["factor"] == factor):
            kernel, ours, same = result["kernel"], result["ours"], result["same_total"]
            by_kernel = None
            if kernel:
                by_kernel = f"{kernel['wall_seconds']:.1f} ({kernel['swap_used_peak_bytes'] / MIB:.0f})"
                by_kernel = "failed" if result["kernel_failed"] else by_kernel
            rows.append((
                CAP_PROGRAMS.get(result["program"], f"`{result['program']}`"),
                result["need_bytes"] / MIB,
                result["cap_bytes"] / MIB,
                result["native"]["wall_seconds"],
                by_kernel,
                ours and ours["wall_seconds"],
                same and same["wall_seconds"],
                ours and ours["counted_peak_bytes"] / result["cap_bytes"],
                "; ".join(result["failures"] or ()) or ("passes" if ours else None),
            ))  # fmt: skip
        variant, title, order = CAP_VARIANTS.get(factor, (f"{factor:g}", f"In {factor:g} of what they need", round(1 - factor, 2)))
        columns = (
            "program", ("needs MiB", 0), ("cap MiB", 0), ("native s", 1), "kernel s (zram MiB on top)", ("Pagetide s", 1),
            ("Pagetide s, same total", 1), ("peak of the cap", 3), "verdict",
        )  # fmt: skip
        yield table(columns, rows, variant=variant, title=title, order=order)


BUILD_ARMS = {"no pool": "`--no-pool`", "pool": "with the pool", "kernel zswap": "kernel, zswap"}
SHRINKERS = {"second-chance": "second chance"}


def build(run):
    loads, shrinkers = [], []
    for load in run["rows"]:
        for arm, found in load["arms"].items():
            def middle(*names, found=found):
                return median([sum(one[name] for name in names) for one in found])

            seconds = quartiles([one["seconds"] for one in found])
            moved = [value / PAGES_A_MIB for value in (middle("reads"), middle("writes"), middle("reads", "writes"), middle("hits"))]
            if arm in ("second-chance", "decay", "none"):
                shrinkers.append((SHRINKERS.get(arm, arm), seconds, middle("cpu"), moved[0], moved[1]))
            else:
                name = f"`-j{load['jobs']}`, {load['memory'] // MIB} MiB: {BUILD_ARMS.get(arm, arm)}"
                loads.append((name, seconds, middle("seconds") / load["native"], middle("cpu"), moved[2], moved[3]))
    if loads:
        columns = ("load and arm", ("seconds", 1), ("× native", 1), ("CPU s", 0), ("to and from the device, MiB", 0), ("from the pool, MiB", 0))
        yield table(columns, loads, title="Several loads")
    if shrinkers:
        columns = ("shrinker", ("seconds", 1), ("CPU s", 0), ("read MiB", 0), ("written MiB", 0))
        yield table(columns, shrinkers, variant="shrinkers", title="By each shrinker", order=1)


def balanced_ratio(trace):
    """Swapins from the device under second chance, as a part of those under decay, where the balance may move."""
    new, old = (trace["balanced"][scheme]["counters"]["pswpin"] for scheme in ("second-chance", "decay"))
    return new / max(old, 1)


def shrinkers(run):
    schemes, shares, balanced = [], [], []
    for trace in run["rows"]:
        found = trace["schemes"]
        if "balanced" in trace:
            arms = [trace["balanced"][scheme] for scheme in ("second-chance", "decay", "none")]
            told = [f"{arm['counters']['pswpin'] / 1000:.0f}, {arm['stalled_s']:.1f} s" for arm in arms]
            ratio = balanced_ratio(trace)
            balanced.append((trace["trace"], *told, ratio, f"{BALANCED_GOAL}: {'holds' if ratio <= BALANCED_GOAL else 'missed'}"))
        if "balance" in found:
            others = {name: one["stalled_s"] for name, one in found.items() if name != "balance"}
            balance, best = found["balance"]["stalled_s"], min(others.values())
            change = 100 * (balance / best - 1)
            fixed = ", ".join(f"{seconds:.1f}" for seconds in others.values())
            shares.append((trace["trace"], f"{balance:.1f} s", f"{fixed} s", f"{change:+.0f} %", "holds" if change <= 5 else "missed"))
        else:
            def thousands(scheme, found=found):
                counters = found[scheme]["counters"]
                return f"{counters['pswpin'] / 1000:.0f}, {counters['zswpwb'] / 1000:.0f}"

            def against(name, found=found):
                new, old = (found[scheme]["counters"][name] for scheme in ("second-chance", "decay"))
                return f"{100 * (new / max(old, 1) - 1):+.0f} %"

            schemes.append((trace["trace"], *map(thousands, ("second-chance", "decay", "none")), f"{against('pswpin')}, {against('zswpwb')}"))
    if schemes:
        columns = ("trace", "second chance", "decay (Linux 6.8)", "none", "second chance against decay")
        note = "Thousands of pages from the device, and written back. The proposal of the second chance (2024) saw -64 % without cold data, and 21 % more written back with them. No two recordings of a build are alike."
        yield table(columns, schemes, title="Second chance, decay, none", notes=[note])
    if balanced:
        columns = ("trace", "second chance", "decay (Linux 6.8)", "none", ("second chance / decay", 2), "goal")
        note = "Thousands of pages from the device, and the time that faults wait. The share of the pool follows what misses cost."
        yield table(columns, balanced, variant="balance", title="With a balance that may move", order=3, notes=[note])
    if shares:
        note = "Time that faults wait, with the balance and with fixed shares of the pool; the goal is at most 5 % more than the best of those."
        columns = ("trace", "balance", "20, 35, 50 %", "against the best", "goal")
        yield table(columns, shares, variant="shares", title="The balance against fixed shares of the pool", order=1, notes=[note])


OVERHEAD_GOAL = 8


def overhead(run):
    rows = []
    for one in run["rows"]:
        middle = median(one["overhead_percent"])
        held = f"≤ {OVERHEAD_GOAL}, {'holds' if middle <= OVERHEAD_GOAL else 'missed'}" if one["allocator"] == "zsmalloc" else None
        loose = 100 * one["loose_bytes"] / one["stored_bytes"]
        pages = one["stored_pages"] * 4096 / one["pool_total_size"]
        rows.append((one["allocator"], quartiles(one["overhead_percent"]), loose, one["pool_total_size"] / MIB, pages, held))
    columns = ("pool", ("overhead %", 1), ("of that could be given back", 1), ("pool MiB", 0), ("pages in one", 2), "goal")
    yield table(columns, rows)


def readahead(run):
    rows = []
    for one in run["rows"]:
        name, unit, shown, ratios, goal, held = one["row"]
        rows.append((name, f"{shown} {unit}", ratios, ": ".join(filter(None, (goal, held.lower())))))
    yield table(("case", "figures", "ratio", "goal"), rows)


def codecs(run):
    def cell(found):
        return f"{found['ratio']:.2f}, {found['ns_in'] / 1000:.1f}, {found['ns_out'] / 1000:.1f}" if found else None

    names, rows = [], []
    for kind in run["rows"]:
        for prefix, side in (("", "ours"), ("C ", "libraries")):
            names += [prefix + one["codec"] for one in kind[side]["codecs"] if prefix + one["codec"] not in names]
    for kind in run["rows"]:
        found = {prefix + one["codec"]: one for prefix, side in (("", "ours"), ("C ", "libraries")) for one in kind[side]["codecs"]}
        rows.append((kind["kind"], *(cell(found.get(name)) for name in names)))
    yield table(("pages", *names), rows)


def programs(run):
    """Figures of all programs; docs/programs.md has each."""
    ran = [result for result in run["rows"] if "ours" in result]
    slow = {one["program"]: one["ours"]["wall_seconds"] / one["native"]["wall_seconds"] for one in ran}
    rows = [
        ("programs that ran", len(ran)),
        ("of them with the same output", sum(one["same_output"] for one in ran)),
        ("cap as a part of the native peak", ran[0]["factor"]),
        ("median slow-down", statistics.median(slow.values())),
        ("programs that took at most 3 times as long", sum(factor < 3.05 for factor in slow.values())),
        ("largest slow-down", max(slow.values())),
        ("median of the managed share, %", 100 * statistics.median(one["managed_share"] for one in ran)),
    ]
    yield table(("figure", ("value", 1)), rows, notes=[f"The largest slow-down is that of `{max(slow, key=slow.get)}`."])


def killed(one):
    """Where the kernel's arm was killed, and where it lived."""
    sizes = [f"{size // MIB} MiB" for size in one.get("killed_at_bytes", ())]
    return f"killed in {', '.join(sizes)}" if sizes else None


def measured_at(run, row):
    """When, where and of which commit a row was measured."""
    facts = run["machine"]
    return f"{run['date']}, {facts['processors']} × {facts['model']}, {row.get('commit', 'unknown')[:7]}"


def versus(run):
    """A value's unit stands in the row's name; CPU seconds are medians."""
    measured = [one for one in run["rows"] if "unit" in one]
    beside, alone = ([one for one in measured if kind in one] for kind in ("ratios", "slowdowns"))
    rows = []
    for one in beside:
        scale, unit = (1e-3, "µs/page") if one["unit"] == "ns/page" else (1, one["unit"])
        values = [quartiles(one[arm]["values"], scale) for arm in ("native", "kernel", "ours")]
        cpu = " / ".join(f"{median(one[arm]['cpu_seconds']):.1f}" for arm in ("kernel", "ours"))
        limit = (one["limit_bytes"] + one["swap_used_peak_bytes"]) // MIB
        rows.append((f"{one['case']}, {unit}", *values, quartiles(one["ratios"]), cpu, int(limit), one["opponent"], killed(one), verdict(one["goal"], one["ratio_median"]), measured_at(run, one)))
    columns = ("row", ("native", 2), ("kernel", 2), ("Pagetide", 2), ("kernel / Pagetide", 2), "CPU s, kernel / Pagetide", ("total", None, "MiB"), "opponent", "kernel's arm", "goal", "measured")
    if rows:
        yield table(columns, rows, title="Beside the kernel's swap at the same total", order=1)
    rows = []
    for one in alone:
        values = [quartiles(one[arm]["values"]) for arm in ("native", "ours")]
        cpu = " / ".join(f"{median(one[arm]['cpu_seconds']):.1f}" for arm in ("native", "ours"))
        held = "holds" if one["slowdown_median"] <= one["goal"] else "missed"
        rows.append((one["case"], one["limit_bytes"] // MIB, *values, quartiles(one["slowdowns"]), cpu, f"{one['goal']}: {held}", measured_at(run, one)))
    columns = ("row", ("cap", None, "MiB"), ("native", 1, "s"), ("Pagetide", 1, "s"), ("Pagetide / native", 1), "CPU s, native / Pagetide", "goal, at most", "measured")
    if rows:
        yield table(columns, rows, variant="parts", title="In a part of what a program needs, beside itself natively", order=2)


def versions(run):
    """Seconds, or µs a page; CPU seconds are medians."""
    rows = []
    for one in run["rows"]:
        name, scale = (one["name"], 1) if one["unit"] == "s" else (f"{one['name']}, µs", 1e-3)
        values = [quartiles(one["values"][build], scale) for build in ("old", "new")]
        cpu = " / ".join(f"{median(one['cpu_seconds'][build]):.2f}" for build in ("old", "new"))
        rows.append((name, *values, quartiles(one["ratios"]), cpu, verdict(0.98, median(one["ratios"]))))
    yield table(("row", ("old", 2), ("new", 2), ("old / new", 3), "CPU s, old / new", "goal"), rows)


def remote(run):
    """Ours by the client library's."""
    rows = []
    for one in run["rows"]:
        held = verdict(one["goal"], one["ratio_median"]) if one["goal"] else None
        rows.append((f"{one['what']}, {one['unit']}", quartiles(one["library"]), quartiles(one["ours"]), quartiles(one["ratios"]), held))
    yield table(("row", ("client library", 0), ("Pagetide", 0), ("Pagetide / client library", 2), "goal"), rows)


def plain(run):
    """A benchmark that is not known here: what of its rows is text or number."""
    rows = [{name: value for name, value in row.items() if isinstance(value, (str, int, float))} for row in run["rows"]]
    names = list(dict.fromkeys(name for row in rows for name in row))
    yield table(names, [[row.get(name) for name in names] for row in rows])


TABLES = {
    made.__name__: made
    for made in (speed, shared, fault, fits, start, cap, build, shrinkers, overhead, readahead, codecs, programs, versions, versus, remote)
}
