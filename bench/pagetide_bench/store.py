"""Results of benchmarks, and the files that they are kept in.

Each file holds one benchmark's figures of one day and machine: {"machine": {...}, "date", "commit", "command", "rows":
[...]}, and what a benchmark has besides. `load` reads those, and what was stored before there was one shape.
"""

import datetime
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from .machine import cpu_model
from .paths import REPO, RUNS, portable

# A run that lasts over midnight belongs to the day on which it began.
TODAY = datetime.date.today()


def commit() -> str:
    """The commit that is measured; with a + if files that git knows have changed."""
    found = subprocess.run(["git", "-C", REPO, "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"], capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def command() -> str:
    return portable(shlex.join(["python3", os.path.relpath(sys.argv[0], REPO), *sys.argv[1:]]))


def result(facts: dict, rows: list, **more) -> dict:
    """One benchmark's figures in the shape that is stored."""
    time = f"{datetime.datetime.now(datetime.UTC):%H:%M}"
    return {"machine": facts, "date": str(TODAY), "time": time, "commit": commit(), "command": command(), "rows": rows, **more}


def directory() -> Path:
    """Where this day's results of this machine lie."""
    model = re.sub(r"[^a-z0-9]+", "-", cpu_model().lower()).strip("-")
    return RUNS / f"{TODAY}-{model}-{os.cpu_count()}"


def write(path: Path, data) -> None:
    """Whole or not at all: somebody may read it meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(data, indent=1, default=str) + "\n")
    partial.replace(path)


def save(options, facts: dict, rows: list, **more) -> None:
    """Writes the figures so far to where the options --json and --store want them."""
    paths = [options.json] if options.json else []
    if options.store:
        paths.append(directory() / f"{Path(sys.argv[0]).stem}.json")
    for path in paths:
        write(path, result(facts, rows, **more))


def load(path: Path) -> dict:
    """The figures of a file; of a directory NAME, those of a file a row and `machine.json` beside them."""
    path = Path(path)
    if not path.is_dir():
        found = json.loads(path.read_text())
        # Before there was one shape, each benchmark had another name for its rows.
        for name in ("results", "cases", "found", "traces", "loads"):
            if "rows" not in found and name in found:
                found["rows"] = found.pop(name)
        return {"date": path.parent.name[:10], "commit": "unknown", "command": "unknown", **found}
    facts = json.loads((path / "machine.json").read_text())
    rows = [json.loads(file.read_text()) for file in sorted(path.glob("*.json")) if file.name != "machine.json"]
    return {"machine": facts, "date": facts.pop("date"), "commit": "unknown", "command": "unknown", "rows": rows}


def newest(name: str) -> Path | None:
    """The newest results of a benchmark that are stored, in a file or in a directory of files."""
    found = [*RUNS.glob(f"*/{name}.json"), *(path.parent for path in RUNS.glob(f"*/{name}/machine.json"))]
    return max(found, key=lambda path: (path.parent.name, path.is_file()), default=None)
