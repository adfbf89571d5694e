"""Runs of a command, and what they gave."""

import os
import shlex
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field

from .cgroup import Cgroup, Swap
from .commands import pagetide_command
from .paths import PAGETIDE, portable
from .procfs import stolen_seconds
from .sampling import Sampling, sampled, watched
from .script import BenchError
from .sizes import MIB

TIMEOUT_SECONDS = 1800
# What a cgroup adds to a cap, so that the kernel's limit does not strike before ours is measured (docs/testing.md).
SLACK_FACTOR = 1.03
SLACK_BYTES = 32 * MIB


@dataclass
class Run:
    """What one run of a command gave."""

    command: list
    status: int = 0
    timed_out: str = ""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    stolen_seconds: float = 0.0
    major_faults: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    resident_peak_bytes: int = 0
    page_tables_peak_bytes: int = 0
    counted_peak_bytes: int = 0  # resident and page tables at the same moment
    usage_peak_bytes: int = 0
    oom_kills: int = 0
    swap_used_peak_bytes: int = 0  # what zram and zswap took, outside the cgroup
    extra: dict = field(default_factory=dict)

    def require_success(self):
        # The end of a pipe may have status 0 though what writes to it was killed.
        killed = f"{self.oom_kills} killed for want of memory" if self.oom_kills else ""
        if failed := self.timed_out or killed or self.status:
            tail = (self.stderr + self.stdout).decode(errors="replace")[-600:]
            raise BenchError(f"`{shlex.join(map(str, self.command))[:300]}` ended with {failed}\n{tail}")
        return self

    def figures(self):
        """For JSON: everything but the outputs."""
        hidden = ("stdout", "stderr", "command")
        figures = {name: value for name, value in vars(self).items() if name not in hidden}
        return {**figures, "command": portable(shlex.join(map(str, self.command)))}


def run_in(cgroup, command, env=None, sampling=Sampling.NONE, timeout_seconds=TIMEOUT_SECONDS, cwd=None, watch=None):
    """Runs a command inside the cgroup from its first instruction on, and measures it."""
    run = Run(list(map(str, command)))
    environment = {**os.environ, "PYTHONHASHSEED": "0", **(env or {})}
    # A shell moves itself into the cgroup and becomes the command.
    entering = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(cgroup.path / "cgroup.procs"), *run.command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started, stolen_before = time.monotonic(), stolen_seconds()
        # Not in our session: a ^C unwinds us, and the cgroup ends the command.
        process = subprocess.Popen(
            entering, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, cwd=cwd, start_new_session=True
        )

        def give_up():
            run.timed_out = f"time-out after {timeout_seconds} s"
            cgroup.kill_all()

        timer = threading.Timer(timeout_seconds, give_up)
        timer.start()
        try:
            with sampled(sampling, cgroup, run), watched(watch, process.pid):
                _, status, usage = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
        run.wall_seconds = time.monotonic() - started
        run.stolen_seconds = stolen_seconds() - stolen_before
        process.returncode = run.status = os.waitstatus_to_exitcode(status)
        run.cpu_seconds = usage.ru_utime + usage.ru_stime
        run.major_faults = usage.ru_majflt
        for stream, name in ((out, "stdout"), (err, "stderr")):
            stream.seek(0)
            setattr(run, name, stream.read())
    run.oom_kills, run.usage_peak_bytes = cgroup.oom_kills(), cgroup.peak_usage_bytes()
    return run


def run_native(command, **options):
    """Without a limit."""
    with Cgroup() as cgroup:
        return run_in(cgroup, command, **options)


def run_kernel(config, limit_bytes, command, sampling=Sampling.NONE, **options):
    """In a cgroup of limit_bytes with the kernel's swap; run.swap_used_peak_bytes is Z."""
    if config.zswap == "Y" and sampling is Sampling.NONE:
        sampling = Sampling.SWAP_POOL
    with config.memory_settings(), config.swap_space() as space, Cgroup(limit_bytes, Swap.ALLOWED) as cgroup:
        run = run_in(cgroup, command, sampling=sampling, **options)
        run.extra["zram"] = space.statistics()
        run.swap_used_peak_bytes += run.extra["zram"]["used_peak"]
        return run


def run_pagetide(cap_bytes, command, pagetide=PAGETIDE, run_options=(), **options):
    """In a cgroup without swap, of the cap and the slack of docs/testing.md."""
    with Cgroup(int(cap_bytes * SLACK_FACTOR) + SLACK_BYTES, Swap.NONE) as cgroup:
        return run_in(cgroup, pagetide_command(cap_bytes, command, pagetide, run_options), **options)
