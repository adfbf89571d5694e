"""Pages of real programs, of seven kinds.

  python heap    objects of many kinds (bench/heap_dump.py)
  gcc heap       the compiler in the middle of a large file
  sqlite         a database in memory: orders, with an index
  floats         an array of float64: a random walk
  integers       arrays of int64: counts, identifiers and sorted keys
  text           the kernel's documentation
  code           the compiler's own instructions
"""

import itertools
import os
import random
import signal
import sqlite3
import subprocess
import time
from array import array
from pathlib import Path

from .inputs import heap_file, linux_source
from .paths import DATA

PAGE = 4096
PAGES_MAX = 8192
NUMBERS = 3 << 18
GCC_SECONDS = 0.7


def save(name, data):
    path = DATA / f"{name.replace(' ', '-')}.pages"
    path.write_bytes(data[: PAGES_MAX * PAGE])
    return path


def anonymous_pages(pid):
    """What a process has in private memory that it may write, without pages of zeroes."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            where, rights, _, _, inode, *_ = line.split()
            if not rights.startswith("rw-p") or inode != "0" or "[v" in line:
                continue
            start, end = (int(word, 16) for word in where.split("-"))
            memory.seek(start)
            while start < end:
                chunk = memory.read(min(end - start, 1 << 20))
                if not chunk:
                    break
                found += [page for at in range(0, len(chunk), PAGE) if any(page := chunk[at : at + PAGE])]
                start += len(chunk)
    return b"".join(found)


def gcc_heap():
    sources = DATA / "kernel.c"
    # Each kind of statement, many times over.
    sources.write_text("\n".join(f"struct s{n} {{ int a, b[{n % 7 + 1}]; struct s{n} *next; }};\nint f{n}(struct s{n} *p, int x) {{ int y = x; while (p) {{ y += p->a * {n} + p->b[0]; if (y > {n}) y -= f{max(n - 1, 0)}(0, y & {n}); p = p->next; }} return y; }}" for n in range(20000)))
    compiler = subprocess.run(["gcc", "-print-prog-name=cc1"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    with subprocess.Popen([compiler, "-quiet", "-O2", sources, "-o", os.devnull]) as process:
        try:
            time.sleep(GCC_SECONDS)
            process.send_signal(signal.SIGSTOP)
            return save("gcc heap", anonymous_pages(process.pid))
        finally:
            process.kill()


def sqlite():
    base = sqlite3.connect(":memory:")
    base.execute("create table orders (id integer primary key, customer text, city text, total real, placed text)")
    cities = ("Lisbon", "Porto", "Braga", "Faro", "Évora", "Coimbra")
    base.executemany("insert into orders values (?, ?, ?, ?, ?)", ((n, f"customer {n * 7919 % 100003}", cities[n % 6], n * 37 % 9973 / 100, f"2024-{n % 12 + 1:02}-{n % 28 + 1:02}") for n in range(400_000)))
    base.execute("create index by_customer on orders (customer)")
    return save("sqlite", base.serialize())


def floats():
    """As a numpy array has them: 8 bytes each, one behind the other."""
    draw = random.Random(1).gauss
    return save("floats", array("d", itertools.accumulate(draw(0, 1) for _ in range(NUMBERS))).tobytes())


def integers():
    draw = random.Random(2)
    counts = array("q", (int(draw.expovariate(1 / 40)) for _ in range(NUMBERS // 3)))
    identifiers = array("q", (draw.randrange(1 << 40) for _ in range(NUMBERS // 3)))
    keys = array("q", sorted(draw.randrange(1 << 32) for _ in range(NUMBERS // 3)))
    return save("integers", counts.tobytes() + identifiers.tobytes() + keys.tobytes())


def text():
    tree = DATA / linux_source() / "Documentation"
    return save("text", b"".join(path.read_bytes() for path in sorted(tree.rglob("*.rst"))))


def code():
    compiler = subprocess.run(["gcc", "-print-prog-name=cc1"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    whole = Path(compiler).read_bytes()
    return save("code", whole[len(whole) // 4 :])


# By kind: what writes its file of pages, and says where.
MAKERS = {"python heap": heap_file, "gcc heap": gcc_heap, "sqlite": sqlite, "floats": floats, "integers": integers, "text": text, "code": code}
