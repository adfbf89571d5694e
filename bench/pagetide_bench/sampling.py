"""Threads of the benchmark that look at a run while it goes on."""

import contextlib
import enum
import threading

from .kernel import zswap_pool_bytes

SAMPLE_SECONDS = 0.010
WATCH_SECONDS = 0.25


class Sampling(enum.Enum):
    NONE = 0
    SWAP_POOL = 1  # zswap's pool, whose peak the kernel does not keep
    MEMORY = 2  # what the cgroup's processes hold


def sample_memory(cgroup, run):
    resident, page_tables = cgroup.resident_bytes(), cgroup.page_table_bytes()
    run.resident_peak_bytes = max(run.resident_peak_bytes, resident)
    run.page_tables_peak_bytes = max(run.page_tables_peak_bytes, page_tables)
    run.counted_peak_bytes = max(run.counted_peak_bytes, resident + page_tables)


def sample_swap_pool(_cgroup, run):
    run.swap_used_peak_bytes = max(run.swap_used_peak_bytes, zswap_pool_bytes())


SAMPLERS = {Sampling.MEMORY: sample_memory, Sampling.SWAP_POOL: sample_swap_pool}


@contextlib.contextmanager
def repeatedly(seconds, work):
    """Calls `work` every so many seconds, from a thread of this process, while the block runs."""
    done = threading.Event()

    def loop():
        while not done.wait(seconds):
            work()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def sampled(sampling, cgroup, run):
    """Samples from a thread of this process while the block runs."""
    if sampling is Sampling.NONE:
        yield
        return

    def sample():
        with contextlib.suppress(OSError):  # the cgroup has gone
            SAMPLERS[sampling](cgroup, run)

    with repeatedly(SAMPLE_SECONDS, sample):
        yield


@contextlib.contextmanager
def watched(watch, pid):
    """Calls `watch` with the pid, from a thread of this process, while the block runs."""
    if watch is None:
        yield
        return
    with repeatedly(WATCH_SECONDS, lambda: watch(pid)):
        yield
