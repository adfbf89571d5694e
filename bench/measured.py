#!/usr/bin/env python3
"""Writes docs/measured.md from stored runs, and checks the figures that documents quote.

    bench/measured.py             # writes docs/measured.md
    bench/measured.py --check     # writes nothing; fails if the page or a quoted figure is not what is stored
    bench/measured.py --keys      # what can be quoted

Runs lie in bench/runs/DATE-MACHINE/NAME.json, where NAME is the script's without .py. A script stores

    {
      "machine": {"model": …, "processors": …, "kernel": …, …},
      "date": "2026-11-26",
      "commit": "9c593bf",                of the code that was measured; null where it is not known
      "command": "bench/speed.py --pairs 9",
      "rows": [{…}, …]                    as the script has them; and what it wants to keep besides
    }

and bench/measured_tables.py makes tables of its rows. A file that is a table already says so by its columns:

      "benchmark": "speed", "variant": "4g",    the variant tells tables of one benchmark apart; it may be left out
      "title": "Zero pages, 4 GiB", "order": 1, above the table, and its place among those; may be left out
      "columns": [{"name": "case"}, {"name": "native", "unit": "s", "digits": 1}, …],
      "rows": [{"case": "heap pages", "native": 4.5, "kernel": [24.8, 26.3, 29.1], "goal": "1.0: holds"}, …],
      "notes": ["what a reader must know of this run"],
      "transcribed": true                       the table was typed from earlier documents

A cell is a text, a number, `[first quartile, median, third quartile]`, or null (or left out). `digits` rounds numbers.

The newest run of a (benchmark, variant) is shown; of versus.py the newest of each row. A document quotes a figure by a comment behind it:

    5.1<!-- figure: speed; heap pages in order; kernel / Pagetide --> times

names the run (BENCHMARK or BENCHMARK-VARIANT), the row by its first cell, and the column. The quoted number must be
the stored one, rounded to as many digits as are quoted. And a line `<!-- output: picture -->` says that the block of
code behind it is what a run printed (its key `output`, a list of lines); this script writes it there.
"""

import argparse
import datetime
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

from measured_tables import TABLES, plain

REPO = Path(__file__).resolve().parent.parent
RUNS = REPO / "bench" / "runs"
PAGE = REPO / "docs" / "measured.md"
MARKER = re.compile(r"(\d(?:[\d  ]*\d)?(?:\.\d+)?)([^\d<>]{0,16})<!-- figure: ([^;>]+); ([^;>]+); ([^;>]+?) -->")
OUTPUT = re.compile(r"(<!-- output: ([\w.-]+) -->\n+```\w*\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)
# Of these a run may have some of the rows: what it has not stays as it was measured before, and rows say when and where.
BY_ROW = ("versus",)
KEYS = ("benchmark", "machine", "date", "commit", "command", "columns", "rows")

# Benchmarks in the order of the page: name, heading, what is measured. Others follow by name.
SECTIONS = (
    (
        "speed",
        "Beside the kernel's swap",
        "A buffer of which about a quarter is in memory, and a Python job in dictionaries, at equal total RAM. The "
        "opponent is the best of the kernel's configurations in a run of each beforehand: zram with LZ4 and LZO-RLE, "
        "with and without readahead, huge pages and 64 KiB pages, for the job with its own allocator and with ours. "
        "µs a page, seconds for the job. A ratio is the median of interleaved pairs; in parentheses are its quartiles.",
    ),
    (
        "versus",
        "Every row beside the kernel's swap",
        "One command, `bench/versus.py`. The kernel's arm: a cgroup's limit and swap to zram, or to a file with zswap, the best "
        "of its configurations in a run of each beforehand. *Total* is that limit and what zram or zswap's pool took at most: "
        "as much is Pagetide's cap. A ratio is the median of interleaved pairs; in parentheses are its quartiles. Where the "
        "kernel's arm was killed, its limit was raised by a quarter until it lived. A row says when, where and of which commit it was measured.",
    ),
    (
        "shared",
        "Shared memory",
        "Sixteen processes of fio (`ioengine=mmap`) that read a file of /dev/shm of 64 MiB each, all of which they wrote, and "
        "PostgreSQL with buffers of four times the limit under eight clients of pgbench, at equal total RAM, beside the "
        "kernel's tmpfs on zram with LZ4. A ratio is the median of interleaved pairs; in parentheses are its quartiles.",
    ),
    (
        "remote",
        "The remote tier",
        "A redis-server on the same machine, to which all that leaves goes; pages do not compress. *Client library*: one connection, "
        "one request after the other, values of 32 pages, as `pagetide doctor --remote` measures it. *Pagetide*: a program whose "
        "buffer is four times its cap (at random: sixteen times). A ratio is the median of interleaved pairs; in parentheses are "
        "its quartiles. Program, engine, the process with the connection and the server share the processors.",
    ),
    (
        "fault",
        "Where the time of a fault goes",
        "One thread, single pages at random from the pool, means. The tracepoints themselves cost about a third of it. The "
        "processor time is measured without them; a reclaim thread that stays awake while it has nothing to do counts too.",
    ),
    (
        "figures",
        "The index of swapped pages",
        "The kernel's figures are those that the author of the series \"one swap cache for every swapin\" gives (2024), "
        "for the index alone: neither page tables nor what zram keeps of an entry are in them. The flat table is a "
        "plain one of ours: a word a page, a lock and counts a cluster.",
    ),
    ("readahead", "Readahead and kept copies", "A buffer of 1 GiB; medians, with quartiles in parentheses."),
    (
        "overhead",
        "What the pool takes beyond its payload",
        "A buffer of 512 MiB with pages of seven kinds (heaps of CPython and gcc, sqlite, numbers, text, code) in 300 "
        "MiB, of which single pages are read at random and every second is written; (pool - payload) / payload over the "
        "second half, median (quartiles) of samples.",
    ),
    (
        "build",
        "A build in little memory",
        "A part of Linux built by several compilers at once, the disk throttled (version 1 of blkio) for all arms. The "
        "goals follow the proposal of zswap (2013), where the build without a pool took 5.3 times as long as in ample "
        "memory, and a pool gave −53 % time and −76 % I/O. *Same total*: with the cap and as much on top as zswap's "
        "pool took, which a cgroup of version 1 does not count.",
    ),
    (
        "shrinkers",
        "Which entries of the pool leave",
        "By replay of a build's trace, of which the pool may take a fifth (*cold*: beside a process that holds 120 MiB "
        "and sleeps), and of a made-up one with a warm set and bursts of pages that are written once.",
    ),
    ("fits", "Programs that fit", "Wall time against the better of native and native with Pagetide's allocator."),
    (
        "start",
        "The start of a process",
        "Starts of `/bin/true` and of a shell script of 300 commands: natively, with the library alone, in a run. Of a "
        "block of starts the fastest counts, of blocks the median. *More* is the median of the differences from the "
        "native block beside it. [start.md](start.md) says where the time goes.",
    ),
    (
        "cap",
        "Real programs under a cap",
        "Each must end with the same output, in a cgroup without swap of the cap + 3 % + 32 MiB, and never exceed the "
        "cap by more than 3 % (sampled every 10 ms). The kernel's arm swaps to zram (LZ4) with the cap as its limit, so "
        "it has *more* memory than ours at the cap: what zram took comes on top. *Same total* is ours with that much.",
    ),
    ("programs", "Real programs of many kinds", "[programs.md](programs.md) has the table of single programs."),
    ("codecs", "Codecs", "Up to 2048 pages of each kind. In each field: ratio, µs in, µs out; a page that does not get smaller counts as it is."),
    (
        "versions",
        "Two builds in pairs",
        "The build of an earlier commit (old) and this one (new), in turn: programs that fit, memory under a cap of less "
        "than half of it, single pages at random, the README's example, 400 processes in one run. Seconds where no unit is named. "
        "A ratio is the median of the pairs; above 1 the new build is faster.",
    ),
    ("experiments", "Costs of the kernel's primitives", ""),
    ("findings", "Single findings", ""),
    ("picture", "The README's example", "One run, sampled by `pagetide stat`. It made [memory.svg](memory.svg)."),
)


# --- Stored runs ----------------------------------------------------------------------------------------------------


def slug(machine):
    """The machine's part of a directory's name: `amd-epyc-2`."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"\(.*?\)", "", machine["model"].lower()))
    return "-".join([*words[:2], str(machine["processors"])])


def commit():
    """The commit that is checked out, with `-dirty` where code differs from it; None outside of a repository."""

    def git(*words):
        return subprocess.run(["git", "-C", REPO, *words], capture_output=True, text=True)

    found = git("rev-parse", "--short=7", "HEAD").stdout.strip()
    changed = git("diff", "--quiet", "HEAD", "--", "Cargo.lock", "*.rs", "*Cargo.toml").returncode
    return found + "-dirty" * bool(changed) if found else None


def replace(path, text):
    """Writes a file whole or not at all: a test may read it meanwhile."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def store(benchmark, machine, command, columns, rows, variant="", title="", notes=(), **more):
    """Stores one table of a benchmark, and returns the path of its file."""
    date = str(datetime.date.today())
    run = {"benchmark": benchmark, "variant": variant, "title": title, "machine": machine, "date": date, "commit": commit()}
    run |= {"command": command, "columns": list(columns), "rows": list(rows), "notes": list(notes), **more}
    directory = RUNS / f"{date}-{slug(machine)}"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{key(run)}.json"
    path.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n")
    return path


def key(run):
    return "-".join(filter(None, (run["benchmark"], run.get("variant", ""))))


def stored_rows(path):
    """What a script stored: a file, or a directory of one file a row with `machine.json` beside them."""
    if not path.is_dir():
        return json.loads(path.read_text())
    machine = json.loads((path / "machine.json").read_text())
    rows = [json.loads(file.read_text()) for file in sorted(path.glob("*.json")) if file.name != "machine.json"]
    return {"machine": machine, "date": machine["date"], "rows": rows}


def tables(path):
    """The runs of a file, each with one table."""
    found = stored_rows(path)
    # Before there was one shape, start.py had another name for its rows.
    found.setdefault("rows", found.pop("results", None))
    if "columns" in found:
        return [found]
    made = TABLES.get(path.stem, plain)(found)
    common = {name: found.get(name) for name in ("machine", "time", "commit", "command", "transcribed") if found.get(name) != "unknown"}
    common = {"commit": None, "command": f"bench/{path.stem}.py", **{name: value for name, value in common.items() if value}}
    return [{"benchmark": path.stem, "date": found.get("date", path.parent.name[:10]), **common, **one} for one in made]


def load():
    """The newest run of each key; of some benchmarks the newest of each row."""
    runs = {}
    for directory in sorted(RUNS.iterdir()):
        for path in sorted(directory.iterdir()):
            for run in tables(path):
                if missing := [name for name in KEYS if name not in run]:
                    sys.exit(f"measured.py: {path.relative_to(REPO)} lacks {', '.join(missing)}")
                run["path"] = (path / "machine.json" if path.is_dir() else path).relative_to(REPO)
                runs.setdefault(key(run), []).append(run)
    return {name: newest(sorted(found, key=when)) for name, found in runs.items()}


def newest(runs):
    """The last of runs that are in order, with the rows of those before it that it has not measured itself."""
    return functools.reduce(with_rows_of, runs) if runs[-1]["benchmark"] in BY_ROW else runs[-1]


def when(run):
    """The day of a run, and the time (UTC) as far as it was stored."""
    return run["date"], run.get("time", "")


def with_rows_of(older, run):
    """A run with those rows of an older one that it has not measured itself."""
    first = run["columns"][0]["name"]
    measured = {row[first] for row in run["rows"]}
    return {**run, "rows": run["rows"] + [row for row in older["rows"] if row[first] not in measured]}


# --- The page -------------------------------------------------------------------------------------------------------


def number(value, digits):
    return str(value) if digits is None or isinstance(value, int) else f"{value:.{digits}f}"


def show(value, column):
    """One cell."""
    digits = column.get("digits")
    if value is None:
        return ""
    if isinstance(value, list):
        low, median, high = (number(one, digits) for one in value)
        return f"{median} ({low}–{high})"
    return number(value, digits) if isinstance(value, (int, float)) else value


def table(run):
    columns = run["columns"]
    heads = [f"{column['name']}, {column['unit']}" if column.get("unit") else column["name"] for column in columns]
    numeric = [all(not isinstance(row.get(column["name"]), str) for row in run["rows"]) for column in columns]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "|".join("---:" if numbers else "---" for numbers in numeric) + "|"
    for row in run["rows"]:
        yield "| " + " | ".join(show(row.get(column["name"]), column) for column in columns) + " |"


def origin(run):
    """Where, when and from what a table is."""
    facts = run["machine"]
    where = "machine unknown"
    if facts:
        where = f"{facts['processors']} × {facts['model']}, {facts['kernel']}"
        if facts.get("remark"):
            where += f" ({facts['remark']})"
    code = f"commit {run['commit']}" if run["commit"] else "commit not stored"
    source = f"[{run['path'].name}](../{run['path']})"
    if run.get("transcribed"):
        code = code.replace("commit", "published by commit")
        source = f"**transcribed** from earlier documents: {source}"
    return f"`{run['command']}` · {where} · {run['date']} · {code} · {source}"


def page(runs):
    known = [name for name, _, _ in SECTIONS]
    others = sorted({run["benchmark"] for run in runs.values()} - set(known))
    yield "# Measured"
    yield ""
    yield "Made by `bench/measured.py` from the runs that are stored below `bench/runs/`; do not edit it. Above each table"
    yield "stand the command, the machine, the day and the code that was measured. A table that says *transcribed* was typed"
    yield "from earlier documents, before runs were stored: nobody can look at its single rounds any more."
    yield ""
    yield "A field `a (b–c)` is a median with its quartiles. [testing.md](testing.md#benchmarks) says what the scripts need."
    for name, title, text in (*SECTIONS, *((name, name, "") for name in others)):
        found = [run for run in runs.values() if run["benchmark"] == name]
        if not found:
            continue
        yield ""
        yield f"## {title}"
        yield from ("", text) if text else ()
        for run in sorted(found, key=lambda run: (run.get("order", 0), run.get("variant", ""))):
            yield ""
            if run.get("title"):
                yield f"### {run['title']}"
                yield ""
            yield origin(run)
            yield ""
            yield from table(run)
            for note in run.get("notes", ()):
                yield ""
                yield note


# --- Quoted figures -------------------------------------------------------------------------------------------------


def stored(runs, name, first, column):
    """The number in a cell; a text that says why there is none."""
    run = runs.get(name)
    if run is None:
        return f"no run is called {name}"
    head = run["columns"][0]["name"]
    row = next((row for row in run["rows"] if row.get(head) == first), None)
    if row is None:
        return f"{name} has no row {first}"
    if column not in (one["name"] for one in run["columns"]):
        return f"{name} has no column {column}"
    value = row.get(column)
    if isinstance(value, list):
        value = value[1]
    if isinstance(value, str):
        found = re.search(r"-?\d+(?:\.\d+)?", value)
        value = float(found.group()) if found else None
    return f"{name}; {first}; {column} holds no number" if value is None else value


def documents():
    """Every Markdown file of the repository but the page itself."""
    return [path for path in sorted(REPO.rglob("*.md")) if path != PAGE and path.relative_to(REPO).parts[0] not in ("target", ".git")]


def wrong_quotes(runs):
    for path in documents():
        text = path.read_text()
        found = list(MARKER.finditer(text))
        place = path.relative_to(REPO)
        if len(found) != len(re.findall(r"<!-- figure: \w", text)):
            yield f"{place}: a `figure` comment does not stand behind a number, or does not name run; row; column"
        for quote in found:
            digits = re.sub(r"[  ]", "", quote[1])
            line = text.count("\n", 0, quote.start()) + 1
            value = stored(runs, *(part.strip() for part in quote.groups()[2:]))
            if isinstance(value, str):
                yield f"{place}:{line}: {value}"
                continue
            places = len(digits.partition(".")[2])
            if abs(float(digits) - value) > 0.5 * 10**-places + 1e-9:
                yield f"{place}:{line}: quotes {digits}, stored is {value:g} ({'; '.join(quote.groups()[2:])})"


def with_outputs(text, runs):
    """A document with what runs printed."""

    def block(found):
        run = runs.get(found[2], {})
        lines = run.get("output")
        return found[1] + ("".join(f"{line}\n" for line in lines) if lines else f"no run {found[2]} has an output\n") + found[4]

    return OUTPUT.sub(block, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something is not as it is stored")
    parser.add_argument("--keys", action="store_true", help="print what can be quoted")
    options = parser.parse_args()
    runs = load()
    if options.keys:
        for name, run in sorted(runs.items()):
            head = run["columns"][0]["name"]
            for row in run["rows"]:
                for column in run["columns"][1:]:
                    print(f"{name}; {row.get(head)}; {column['name']}: {show(row.get(column['name']), column)}")
        return 0
    text = "\n".join(page(runs)) + "\n"
    if not options.check:
        replace(PAGE, text)
    wrong = list(wrong_quotes(runs))
    for path in documents():
        found = path.read_text()
        made = with_outputs(found, runs)
        if made != found and options.check:
            wrong.append(f"{path.relative_to(REPO)}: what a run printed is not what it prints now: run bench/measured.py")
        elif made != found:
            replace(path, made)
    if options.check and PAGE.read_text() != text:
        wrong.insert(0, "docs/measured.md is not what bench/measured.py makes: run it")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
