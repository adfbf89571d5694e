#!/usr/bin/env python3
"""A dictionary-heavy job with random access: the hardest of the ordinary loads for swap.

Builds a dict of str -> [int, tuple, bytes] of about --mib MiB and then reaches --ops of its entries in random order:
most are read and checked, some are changed. The same options print the same result.

stdout: entries and checksum. stderr: one line of JSON with the seconds of each phase. Exit status 1: wrong contents.
"""

import argparse
import gc
import json
import random
import sys
import time
import zlib

BYTES_PER_ENTRY = 1180
WRITES_PERCENT = 20
TEXT_WORDS = "alpha beta gamma delta epsilon 2024 00 id= page memory null true false http://example.org/ item {} []".split()


def make_text(rng):
    return " ".join(w if i % 5 else str(i * 40503 % 99991) for i, w in enumerate(rng.choices(TEXT_WORDS, k=300_000))).encode()


def build(rng, count):
    """Keys are inserted in order; their places in the hash table are not in order."""
    text = make_text(rng)
    span = len(text) - 1200
    table = {}
    for i in range(count):
        start = i * 7919 % span
        body = text[start : start + 200 + int(rng.random() * 900)]
        table[f"user:{i * 2654435761 % 2**32:08x}:{i}"] = [i * 1_000_003, (i % 97, f"group-{i % 1013}", i * 0.5), body, zlib.crc32(body)]
    return table


def access(rng, table, keys, ops):
    checksum = changed = 0
    for op in range(ops):
        entry = table[keys[int(rng.random() * len(keys))]]
        if zlib.crc32(entry[2]) != entry[3]:
            sys.exit(f"dictjob: WRONG CONTENTS at operation {op}")
        if op % 100 < WRITES_PERCENT:
            entry[2] = entry[2][::-1]
            entry[3] = zlib.crc32(entry[2])
            entry[0] += 1
            changed += 1
        checksum = (checksum * 31 + entry[0] + entry[3]) % 2**61
    return checksum, changed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=700, help="memory to fill (default %(default)s)")
    parser.add_argument("--ops", type=int, default=300_000, help="random accesses (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    gc.disable()
    rng = random.Random(options.seed)
    started = time.monotonic()
    table = build(rng, options.mib * 2**20 // BYTES_PER_ENTRY)
    built = time.monotonic()
    checksum, changed = access(rng, table, list(table), options.ops)
    accessed = time.monotonic()
    print(f"dictjob: {len(table)} entries, {options.ops} accesses, {changed} changed, checksum {checksum:016x}")
    sys.stdout.flush()
    print(json.dumps({"build_seconds": round(built - started, 3), "access_seconds": round(accessed - built, 3)}), file=sys.stderr)


if __name__ == "__main__":
    main()
