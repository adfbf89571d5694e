#!/usr/bin/env python3
"""Draws docs/memory.svg: where the memory of the README's example is while it runs.

    bench/picture.py             # runs the example, stores what was sampled below bench/runs/, and draws it
    bench/picture.py --draw      # runs nothing: draws the newest stored run

The example runs as the README has it (after `cargo build --release`). Four times a second `pagetide stat --json` says
what is in the program, in the pool and on disk. The picture needs Python's standard library only.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path

import measured

PAGETIDE = measured.REPO / "target" / "release" / "pagetide"
PICTURE = measured.REPO / "docs" / "memory.svg"
EXAMPLE = ["python3", "examples/analytics.py"]
CAP_MIB = 250
INTERVAL_SECONDS = 0.25
MIB = 1 << 20

# Readable on white and on GitHub's dark background alike.
GREY, CAP_COLOUR, DATA_COLOUR = "#7a828c", "#e5484d", "#7a828c"
BANDS = (("program", "in the program", "#3b82f6"), ("pool", "compressed in the pool", "#0fa58f"), ("disk", "on disk", "#9a7be8"))
WIDTH, HEIGHT = 860, 350
LEFT, RIGHT, TOP, BOTTOM = 52, 92, 26, 36


def machine():
    """The facts that stand beside the figures."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    return {"kernel": kernel, "processors": os.cpu_count(), "model": model, "memory_mib": memory, "load": os.getloadavg()[0]}


def sample(pagetide, pid):
    """One look at a run; None where it has ended."""
    result = subprocess.run([pagetide, "stat", "--json", str(pid)], capture_output=True, text=True)
    if result.returncode:
        return None
    found = json.loads(result.stdout)
    now = found["bytes"]["now"]
    engine = now["frames"] + now["metadata"]
    return {
        "seconds": round(found["elapsed_s"], 2),
        # What the engine needs for itself is a few MiB: frames and tables count with the program.
        "program": now["resident"] + now["unmanaged"] + engine,
        "pool": now["pool"],
        "disk": now["disk"],
        "data": now["resident"] + now["unmanaged"] + now["swapped"],
        "total": now["total"],
    }


def run(options):
    """Runs the example, and stores what was sampled."""
    if not options.pagetide.exists():
        sys.exit("picture.py: cargo build --release comes first")
    facts = machine()
    program = options.pagetide.relative_to(measured.REPO) if options.pagetide.is_relative_to(measured.REPO) else options.pagetide
    command = [f"./{program}", "run", "--memory", f"{CAP_MIB}M", "--", *EXAMPLE]
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=measured.REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    samples = []
    while process.poll() is None:
        if found := sample(options.pagetide, process.pid):
            samples.append(found)
        time.sleep(INTERVAL_SECONDS)
    seconds = time.monotonic() - started
    output, errors = process.communicate()
    sys.stdout.write(errors + output)
    if process.returncode:
        sys.exit(f"picture.py: the example ended with {process.returncode}")
    highest = {name: max(one[name] for one in samples) / MIB for name in ("total", "data", "pool", "disk")}
    rows = [
        {"figure": "seconds in all", "value": round(seconds, 1)},
        {"figure": "cap, MiB", "value": CAP_MIB},
        {"figure": "in memory at most, MiB", "value": round(highest["total"])},
        {"figure": "data of the program at most, MiB", "value": round(highest["data"])},
        {"figure": "in the pool at most, MiB", "value": round(highest["pool"])},
        {"figure": "on disk at most, MiB", "value": round(highest["disk"])},
    ]
    columns = [{"name": "figure"}, {"name": "value"}]
    said = [line for line in (errors + output).splitlines() if line.strip()]
    return measured.store("picture", facts, shlex.join(command), columns, rows, output=said, samples=samples)


# --- Drawing --------------------------------------------------------------------------------------------------------


def steps(most, count):
    """Round numbers for an axis."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if most / step <= count)
    return range(0, int(most) + 1, step)


def draw(stored):
    samples = [{**dict.fromkeys(stored["samples"][0], 0), "seconds": 0}, *stored["samples"]]
    cap = next(row["value"] for row in stored["rows"] if row["figure"] == "cap, MiB")
    seconds = samples[-1]["seconds"]
    most = 1.055 * max(max(one["data"], one["total"] + one["disk"], one["program"] + one["pool"] + one["disk"]) for one in samples) / MIB

    def x(at):
        return LEFT + (WIDTH - LEFT - RIGHT) * at / seconds

    def y(mib):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * mib / most

    def points(pairs):
        return " ".join(f"{x(at):.1f},{y(mib):.1f}" for at, mib in pairs)

    def label(at, mib, text, colour, anchor="middle", weight="600", size=14, dy=0):
        return (
            f'<text x="{x(at):.1f}" y="{y(mib) + dy:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}" '
            f'font-weight="{weight}">{text}</text>'
        )

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="-apple-system, \'Segoe UI\', \'DejaVu Sans\', Helvetica, Arial, sans-serif" role="img">',
        "<title>Memory of the example over time: in the program, in the compressed pool, on disk, and the cap</title>",
    ]
    for mib in steps(most, 8):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mib):.1f}" y2="{y(mib):.1f}" stroke="{GREY}" stroke-opacity="0.25"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(mib) + 4:.1f}" fill="{GREY}" text-anchor="end" font-size="12">{mib}</text>')
    out.append(f'<text x="{LEFT - 8}" y="{TOP - 4}" fill="{GREY}" text-anchor="end" font-size="12">MiB</text>')
    for at in steps(seconds, 12):
        out.append(f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 18}" fill="{GREY}" text-anchor="middle" font-size="12">{at} s</text>')

    below, middles = [0.0] * len(samples), {}
    for name, _, colour in BANDS:
        above = [low + one[name] / MIB for low, one in zip(below, samples)]
        edge = [(one["seconds"], mib) for one, mib in zip(samples, above)]
        floor = [(one["seconds"], mib) for one, mib in zip(samples, below)]
        out.append(f'<polygon points="{points(edge + floor[::-1])}" fill="{colour}" fill-opacity="0.88"/>')
        middles[name] = (below, above)
        below = above
    data = points([(one["seconds"], one["data"] / MIB) for one in samples])
    out.append(f'<polyline points="{data}" fill="none" stroke="{DATA_COLOUR}" stroke-width="2" stroke-dasharray="2 4" stroke-linecap="round"/>')
    out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(cap):.1f}" y2="{y(cap):.1f}" stroke="{CAP_COLOUR}" stroke-width="2.5"/>')

    # A label stands where its band is widest of those in the middle of the time.
    def widest(name, low=0.3, high=0.8):
        lower, upper = middles[name]
        places = [i for i, one in enumerate(samples) if low * seconds <= one["seconds"] <= high * seconds] or range(len(samples))
        # Of a window of some seconds the narrowest counts, since that is as high as the label may be.
        reach = max(1, len(samples) // 12)
        room = {i: min(upper[j] - lower[j] for j in range(max(0, i - reach), min(len(samples), i + reach + 1))) for i in places}
        i = max(room, key=room.get)
        return samples[i]["seconds"], (lower[i] + upper[i]) / 2

    for name, text, _ in BANDS:
        at, mib = widest(name)
        out.append(label(at, mib, text, "#ffffff", dy=5))
    for text, dy in (("cap", -3), (f"{cap} MiB", 14)):
        out.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y(cap) + dy:.1f}" fill="{CAP_COLOUR}" font-size="14" font-weight="600">{text}</text>')
    peak = max(one["data"] for one in samples) / MIB
    out.append(label(0.52 * seconds, peak, f"all that the program holds: {peak:.0f} MiB", GREY, dy=-9))
    out.append("</svg>")
    PICTURE.write_text("\n".join(out) + "\n")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="run nothing: draw the newest stored run")
    parser.add_argument("--pagetide", type=Path, default=PAGETIDE, help="the program to run (default target/release)")
    return parser.parse_args()


def main(options):
    if not options.draw:
        print(f"stored {run(options).relative_to(measured.REPO)}")
    runs = measured.load()
    if "picture" not in runs:
        sys.exit("picture.py: no run is stored: call it without --draw")
    draw(runs["picture"])
    return 0


if __name__ == "__main__":
    sys.exit(main(parse()))
