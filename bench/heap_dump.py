#!/usr/bin/env python3
"""Makes a file of real heap pages, for `touch --fill heap:FILE`.

Builds Python objects of many kinds in this process and copies its anonymous memory (the heap and the anonymous arenas)
from /proc/self/mem: non-zero pages of 4 KiB, in address order. They hold what heaps hold: pointers, counts, strings,
floats, free blocks. The script turns off address randomisation for itself where `setarch` exists, so that the pages
are (nearly) the same each time.
"""

import argparse
import gc
import json
import os
import random
import shutil
import sys
from array import array
from pathlib import Path

PAGE_BYTES = 4096
CHUNK_BYTES = 1 << 20
ZERO_PAGE = bytes(PAGE_BYTES)
PART_BYTES = 86 * 1024
WORDS = "order invoice parcel refund red blue green large small winter summer shelf crate bottle glass paper".split()


def rerun_without_randomisation():
    """The same pages each time: fixed addresses and fixed string hashes."""
    if os.environ.get("PAGETIDE_HEAP_DUMP") or not shutil.which("setarch"):
        return
    environment = {**os.environ, "PAGETIDE_HEAP_DUMP": "1", "PYTHONHASHSEED": "0"}
    os.execvpe("setarch", ["setarch", "-R", sys.executable, *sys.argv], environment)


class Account:
    def __init__(self, number, rng):
        self.number, self.balance, self.name = number, rng.gauss(1000.0, 300.0), f"account {number}"
        self.history = [(day, rng.randrange(10_000), rng.random() < 0.5) for day in range(rng.randrange(8))]


def build_part(rng, number):
    """About 64 KiB of objects of many kinds, as they lie side by side in a long-running interpreter."""
    rows = [(number * 100 + i, f"user-{rng.randrange(10**6)}", i * 0.25, None, i % 3 == 0) for i in range(100)]
    index = {name: {"id": row, "tags": [row % 7, row % 11]} for row, name, *_ in rows}
    accounts = [Account(number * 20 + i, rng) for i in range(20)]
    counts = [0] * 300
    for row in rows:
        counts[row[0] % 300] += 1
    text = " ".join(f"{name} paid {row * 17 % 9973} for {rng.choice(WORDS)}" for row, name, *_ in rows[:40])
    record = json.dumps({"part": number, "rows": rows[:12], "kind": rng.choice(WORDS)}).encode()
    samples = array("d", (rng.randrange(1000) / 8 for _ in range(200)))
    return rows, index, accounts, counts, text, record, samples, rng.randbytes(512)


def build_objects(mib):
    rng = random.Random(1)
    return [build_part(rng, number) for number in range(mib * 2**20 // PART_BYTES)]


def anonymous_ranges():
    """The writable private mappings without a file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        name = fields[5] if len(fields) > 5 else ""
        if fields[1] == "rw-p" and name in ("", "[heap]"):
            yield tuple(int(part, 16) for part in fields[0].split("-"))


def non_zero_pages(ranges):
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for start, end in ranges:
            for address in range(start, end, CHUNK_BYTES):
                memory.seek(address)
                try:
                    chunk = memory.read(min(CHUNK_BYTES, end - address))
                except OSError:  # a guard page or the like
                    continue
                for at in range(0, len(chunk), PAGE_BYTES):
                    page = chunk[at : at + PAGE_BYTES]
                    if page != ZERO_PAGE:
                        yield page


def dump(path, page_count_max):
    ranges = list(anonymous_ranges())
    pages_written = 0
    temporary = path.with_suffix(".partial")
    with open(temporary, "wb") as output:
        for page in non_zero_pages(ranges):
            if pages_written == page_count_max:
                break
            output.write(page)
            pages_written += 1
    temporary.replace(path)
    return pages_written


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--mib", type=int, default=64, help="size of the heap and largest size of the file (default %(default)s)")
    options = parser.parse_args()
    rerun_without_randomisation()
    gc.disable()
    objects = build_objects(options.mib)
    pages = dump(options.output, options.mib * 2**20 // PAGE_BYTES)
    print(f"{pages} pages of {len(objects)} parts in {options.output}")


if __name__ == "__main__":
    main()
