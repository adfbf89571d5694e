"""A benchmark as a script: one at a time, unwound by signals, with errors of one line."""

import contextlib
import fcntl
import signal
import sys
from pathlib import Path

from .paths import REPO


class BenchError(Exception):
    """Something outside the measured programs is not as it must be; the message says what to do."""


def main_guard(parse, main):
    """Runs a script: signals unwind it, errors are one line, only one benchmark runs at a time."""
    options = parse()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    try:
        with only_one_benchmark():
            sys.exit(main(options))
    except BenchError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")


@contextlib.contextmanager
def only_one_benchmark():
    (REPO / "target").mkdir(exist_ok=True)
    with open(REPO / "target" / "bench.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BenchError("another benchmark of this checkout is running") from None
        yield


def progress(text):
    print(f"  {text}", file=sys.stderr, flush=True)
