"""What programs read, made once and kept below target/bench-data."""

import random
import subprocess
from pathlib import Path

from .commands import python, require
from .paths import DATA, REPO
from .script import progress

LINUX_ARCHIVE = Path("/usr/src/linux-source-6.1.tar.xz")


def heap_file():
    """The file of real heap pages, made at first use."""
    path = DATA / "heap.pages"
    if not path.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        subprocess.run(python(REPO / "bench" / "heap_dump.py", path), check=True, stdout=subprocess.DEVNULL)
    return path


def write_sort_file(path, size_bytes):
    """Lines of varied length with random keys, the same each time."""
    DATA.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    tails = [" ".join(rng.choices(("error", "info", "page", "user", "2024", "ok", "/index.html", "GET"), k=rng.randrange(2, 12))) for _ in range(997)]
    temporary, written = path.with_suffix(".partial"), 0
    with open(temporary, "w") as output:
        while written < size_bytes:
            lines = "".join(f"{rng.getrandbits(48):012x} {tails[i % 997]}\n" for i in range(20_000))
            output.write(lines)
            written += len(lines)
    temporary.replace(path)


def make_once(name, script):
    """Something in the directory of the data that a shell script makes as `partial`."""
    if not (DATA / name).exists():
        progress(f"making {name}")
        DATA.mkdir(parents=True, exist_ok=True)
        subprocess.run(["sh", "-c", f"set -e; rm -rf partial; mkdir partial; {script}; mv partial {name}"], check=True, cwd=DATA)
    return name


def linux_source():
    """A large C project that any machine can have."""
    require({"linux-source-6.1": LINUX_ARCHIVE})
    return make_once("linux", f"tar -C partial --strip-components=1 -xf {LINUX_ARCHIVE}")
