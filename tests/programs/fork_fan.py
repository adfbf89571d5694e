#!/usr/bin/env python3
"""A parent with a full heap forks children that read all of it and write a part.

The parent holds --mib MiB (bytes of several kinds and lists of ints). Each child checks the whole, overwrites a fifth
of it in its own way, checks that it finds what it wrote and that the rest is as before, and reports a checksum. The
parent then checks that its own memory has not changed. The same options print the same result.

Exit status: 0 all well, 1 wrong contents or a child that failed.
"""

import argparse
import gc
import os
import random
import sys
import zlib
from array import array

CHUNK_BYTES = 64 * 1024
LIST_LENGTH = 8192  # about 320 KiB: 64 KiB of pointers and 8192 ints of 32 bytes
LISTS_SHARE = 0.3
WORDS = b"fork child parent page copy on write shared private memory wakes sleeps reads ".split()


def make_chunk(rng, number):
    """Text, random bytes, small integers or nearly nothing."""
    kind = number % 4
    if kind == 0:
        words = b" ".join(rng.choices(WORDS, k=600))
        return bytearray((words * (CHUNK_BYTES // len(words) + 1))[:CHUNK_BYTES])
    if kind == 1:
        return bytearray(rng.randbytes(CHUNK_BYTES))
    if kind == 2:
        return bytearray(array("I", (number * 1000 + i * i % 1999 for i in range(CHUNK_BYTES // 4))).tobytes())
    chunk = bytearray(CHUNK_BYTES)
    chunk[number % CHUNK_BYTES] = 1 + number % 255
    return chunk


def make_list(rng, number):
    base = rng.getrandbits(40)
    return [base + number * i for i in range(LIST_LENGTH)]


def make_data(rng, mib):
    list_count = int(mib * 2**20 * LISTS_SHARE / (LIST_LENGTH * 40))
    chunk_count = int(mib * 2**20 * (1 - LISTS_SHARE) / CHUNK_BYTES)
    return [make_chunk(rng, i) for i in range(chunk_count)], [make_list(rng, i) for i in range(list_count)]


def checksums(chunks, lists):
    return [zlib.crc32(c) for c in chunks], [sum(values) for values in lists]


def change_fifth(chunks, lists, child):
    for i in range(child % 5, len(chunks), 5):
        chunks[i][:] = bytes(255 - b for b in chunks[i][:1024]) + bytes(chunks[i][1024:])[::-1]
    for i in range(child % 5, len(lists), 5):
        lists[i][:] = [value + child + 1 for value in lists[i]]


def child_work(chunks, lists, expected, child):
    """Returns the child's checksum; raises if it finds wrong contents."""
    if checksums(chunks, lists) != expected:
        raise ValueError("the child does not find what the parent wrote")
    change_fifth(chunks, lists, child)
    chunk_sums, list_sums = checksums(chunks, lists)
    for found, before in ((chunk_sums, expected[0]), (list_sums, expected[1])):
        for i, (new, old) in enumerate(zip(found, before)):
            if (new == old) == (i % 5 == child % 5):
                raise ValueError(f"part {i} is {'unchanged' if new == old else 'changed'}")
    if list_sums[child % 5] != expected[1][child % 5] + (child + 1) * LIST_LENGTH:
        raise ValueError("the child's own write is lost")
    return zlib.crc32(repr((chunk_sums, list_sums)).encode())


def fork_child(chunks, lists, expected, child):
    """Returns (pid, read end of a pipe with one line of result)."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return pid, read_end
    status = 1
    try:
        os.close(read_end)
        os.write(write_end, f"checksum {child_work(chunks, lists, expected, child):08x}".encode())
        status = 0
    except Exception as error:  # the parent must hear of it, whatever it is
        os.write(write_end, f"FAILED: {error!r}".encode())
    finally:
        os._exit(status)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=300, help="memory of the parent (default %(default)s)")
    parser.add_argument("--children", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    gc.disable()
    chunks, lists = make_data(random.Random(options.seed), options.mib)
    expected = checksums(chunks, lists)
    sys.stdout.flush()
    children = [fork_child(chunks, lists, expected, child) for child in range(options.children)]
    failures = 0
    for number, (pid, read_end) in enumerate(children):
        with os.fdopen(read_end, "rb") as pipe:
            result = pipe.read().decode() or "died"
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(f"child {number}: {result}" + (f" (status {status})" if status else ""))
        failures += status != 0
    unchanged = checksums(chunks, lists) == expected
    print(f"parent: {'unchanged' if unchanged else 'CHANGED'}, checksum {zlib.crc32(repr(expected).encode()):08x}")
    sys.exit(0 if unchanged and not failures else 1)


if __name__ == "__main__":
    main()
