"""What a Python program can ask of the run of Pagetide that it belongs to.

    import pagetide

    pagetide.limit()                 # the cap of the run, in bytes
    pagetide.stats().swapped         # figures of the run and of this process
    pagetide.cold(array)             # will not be needed for a while: send it out
    pagetide.prefetch(array)         # will be needed soon: bring it in
    with pagetide.pinned(array):     # stays in memory meanwhile
        ...
    with pagetide.watch("load"):     # says at its end what the block cost; also a decorator: @pagetide.watch
        ...

Arrays are whatever gives its memory by the buffer protocol, in one piece: bytes, bytearray, memoryview, array, mmap, NumPy
arrays, Arrow buffers.

Outside of a run nothing happens: limit() and stats() return None, the others do nothing, and the first call says so by a
warning. The module needs nothing but ctypes; it finds the library that `pagetide run` has preloaded.
"""

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import sys
import time
import warnings
from typing import NamedTuple, Optional

__all__ = ["Stats", "cold", "limit", "pinned", "prefetch", "stats", "watch"]

_MADV_WILLNEED, _MADV_PAGEOUT = 3, 21
_PAGE = mmap.PAGESIZE


class Stats(NamedTuple):
    """Figures of the run, and of this process (own_*). Sizes are in bytes, times in nanoseconds."""

    cap: int
    memory: int
    resident: int
    pool: int
    swapped: int
    disk: int
    processes: int
    own_resident: int
    own_faults: int
    own_stalled_ns: int


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]  # fmt: skip


_library = ctypes.CDLL(None, use_errno=True)
_library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_library.mlock.argtypes = _library.munlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_get, _release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
_get.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_release.argtypes, _release.restype = [ctypes.POINTER(_Buffer)], None


@functools.lru_cache(maxsize=None)
def _say_once(reason):
    warnings.warn(f"pagetide: {reason}: its calls do nothing", RuntimeWarning, stacklevel=4)


def stats() -> Optional[Stats]:
    """The figures of this moment; None outside of a run."""
    numbers = (ctypes.c_uint64 * len(Stats._fields))()
    try:
        failed = _library.pagetide_fill_stats(numbers, ctypes.c_size_t(ctypes.sizeof(numbers)))
    except AttributeError:
        failed = True
    if failed:
        _say_once("this process does not belong to a run")
        return None
    return Stats(*numbers)


def limit() -> Optional[int]:
    """The cap of the run, in bytes; it may change while the run goes on. None outside of a run."""
    now = stats()
    return now and now.cap


@contextlib.contextmanager
def _memory(array):
    """The address and the bytes of an array. TypeError if it has no buffer, BufferError if that is not in one piece."""
    buffer = _Buffer()
    _get(array, ctypes.byref(buffer), 0)
    try:
        yield buffer.buf or 0, buffer.len
    finally:
        _release(ctypes.byref(buffer))


def _check(result):
    if result:
        number = ctypes.get_errno()
        hint = ": the cap has no room for it" if number == errno.ENOMEM else ""
        raise OSError(number, os.strerror(number) + hint)


def _advise(array, advice):
    with _memory(array) as (address, length):
        if stats() is None:
            return
        # Whole pages only: others may have the rest of the first and the last one.
        first, last = -(-address // _PAGE) * _PAGE, (address + length) // _PAGE * _PAGE
        if last > first:
            _check(_library.madvise(first, last - first, advice))


def cold(array):
    """Sends an array out: it will not be needed for a while. Whoever touches it gets it back, a page at a time."""
    _advise(array, _MADV_PAGEOUT)


def prefetch(array):
    """Brings an array in, as far as there is room: it will be needed soon."""
    _advise(array, _MADV_WILLNEED)


@contextlib.contextmanager
def pinned(array):
    """Brings an array in and keeps it in memory during the block. OSError (ENOMEM) if the cap has no room for that. Pins of
    the same memory do not nest."""
    with _memory(array) as (address, length):
        is_here = stats() is not None and length > 0
        if is_here:
            _check(_library.mlock(address, length))
        try:
            yield array
        finally:
            if is_here:
                _library.munlock(address, length)


class watch(contextlib.ContextDecorator):
    """Says on standard error, at its end, what a block or a function cost: its time, the faults of this process for pages
    that were out, and how long its threads waited for them (summed over threads)."""

    def __new__(cls, label=None, **options):
        self = super().__new__(cls)
        if callable(label):
            # @pagetide.watch without parentheses.
            self.__init__(getattr(label, "__name__", "function"), **options)
            return self(label)
        return self

    def __init__(self, label="block", *, file=None):
        self.label, self.file, self.begun = label, file, []

    def _recreate_cm(self):
        return self

    def __enter__(self):
        self.begun.append((time.monotonic(), stats()))
        return self

    def __exit__(self, *_):
        began, before = self.begun.pop()
        seconds, after = time.monotonic() - began, stats()
        if before is None or after is None:
            told = "not under Pagetide"
        else:
            faults, waited = after.own_faults - before.own_faults, (after.own_stalled_ns - before.own_stalled_ns) / 1e9
            told = f"{faults} faults, waited {waited:.2f} s for pages; {after.swapped >> 20} MiB of the run are swapped"
        print(f"pagetide: {self.label}: {seconds:.2f} s, {told}", file=self.file or sys.stderr)


_watchers = []


def load_ipython_extension(ipython):
    """`%load_ext pagetide`: shows under each cell where the memory of the run is, and what the cell cost."""
    from IPython.display import display

    from ._notebook import Watcher

    if stats() is None:
        return
    watcher = Watcher(ipython, stats, display)
    watcher.register()
    _watchers.append(watcher)


def unload_ipython_extension(_):
    """`%unload_ext pagetide`."""
    while _watchers:
        _watchers.pop().unregister()
