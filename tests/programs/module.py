#!/usr/bin/env python3
"""module: uses the Python module `pagetide` (PYTHONPATH has it), under Pagetide or not.

    module.py [--expect]        with --expect a run is expected, of --memory 64M

Exit status: 0 all well, 1 not as it should be."""

import array
import io
import mmap
import sys
import time
import warnings

MIB = 1 << 20


def main():
    expects = "--expect" in sys.argv
    warnings.simplefilter("always")
    with warnings.catch_warnings(record=True) as said:
        import pagetide

        before = pagetide.stats()
        pagetide.stats()
    assert (before is not None) == expects, before
    assert len(said) == (0 if expects else 1) and all("does not belong" in str(one.message) for one in said), said

    area = mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, len(area), mmap.PAGESIZE):
        area[page] = page // mmap.PAGESIZE % 251
    pagetide.cold(area)
    if expects:
        assert pagetide.limit() == 64 * MIB
        # They leave within moments.
        while pagetide.stats().swapped < before.swapped + 16 * MIB:
            time.sleep(0.01)
    told = io.StringIO()
    with pagetide.watch("read", file=told):
        pagetide.prefetch(memoryview(area)[: 4 * MIB])
        for page in range(0, len(area), mmap.PAGESIZE):
            assert area[page] == page // mmap.PAGESIZE % 251, page
    assert told.getvalue().startswith("pagetide: read: "), told.getvalue()
    if expects:
        assert pagetide.stats().own_faults > before.own_faults
        assert " faults, waited " in told.getvalue(), told.getvalue()
    with pagetide.pinned(area) as same:
        assert same is area
    # Whatever has a buffer, read-only too, and shorter than a page.
    for other in (b"bytes" * 10000, bytearray(100), array.array("d", [1.0] * 100000), memoryview(b""), b""):
        pagetide.cold(other)
        pagetide.prefetch(other)
        with pagetide.pinned(other):
            pass
    for wrong, error in ((5, TypeError), ("text", TypeError), (memoryview(bytearray(100))[::2], BufferError)):
        try:
            pagetide.cold(wrong)
        except error:
            continue
        raise AssertionError(f"{wrong!r} was taken")
    if expects:
        try:
            with pagetide.pinned(bytearray(200 * MIB)):
                raise AssertionError("200 MiB were pinned in 64")
        except OSError as refused:
            assert "the cap has no room for it" in str(refused), refused

    @pagetide.watch
    def plain(number):
        return number + 1

    @pagetide.watch("named", file=told)
    def named(depth):
        return depth and named(depth - 1)

    assert plain(1) == 2 and named(2) == 0 and told.getvalue().count("named: ") == 3


main()
