"""A memory cgroup (version 1) for one run."""

import contextlib
import enum
import itertools
import os
import signal
import time
from pathlib import Path

from .procfs import read_fields
from .resource import Resource
from .script import BenchError


def memory_controller():
    """Where the memory controller of cgroup v1 is mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(left.split()[4])
    raise BenchError("the memory controller of cgroup v1 is not mounted (boot with systemd.unified_cgroup_hierarchy=0)")


class Swap(enum.Enum):
    ALLOWED = "allowed"
    NONE = "none"


class Cgroup(Resource):
    """A memory cgroup for one run. limit_bytes None: no limit."""

    numbers = itertools.count(1)

    def __init__(self, limit_bytes=None, swap=Swap.NONE):
        self.limit_bytes, self.swap = limit_bytes, swap
        self.path = memory_controller() / f"pagetide-bench-{os.getpid()}-{next(self.numbers)}"

    def open(self):
        if os.geteuid() != 0:
            raise BenchError("memory cgroups need root")
        self.path.mkdir()
        self.write("memory.swappiness", 0 if self.swap is Swap.NONE else 60)
        if self.limit_bytes is None:
            return
        self.write("memory.limit_in_bytes", self.limit_bytes)
        if self.swap is Swap.NONE and (self.path / "memory.memsw.limit_in_bytes").exists():
            self.write("memory.memsw.limit_in_bytes", self.limit_bytes)

    def close(self):
        if not self.path.exists():
            return
        self.kill_all()
        self.write("memory.force_empty", 0)
        self.path.rmdir()

    def write(self, name, value):
        (self.path / name).write_text(str(value))

    def processes(self):
        try:
            return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]
        except OSError:  # the cgroup has gone: another thread of ours has closed it
            return []

    def kill_all(self):
        """Ends what still runs inside, and waits until it is gone."""
        deadline = time.monotonic() + 30
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise BenchError(f"processes {pids} in {self.path} do not end")
            time.sleep(0.02)

    def oom_kills(self):
        return read_fields(self.path / "memory.oom_control").get("oom_kill", 0)

    def peak_usage_bytes(self):
        """Of everything that is charged, page cache and kernel memory included."""
        return int((self.path / "memory.max_usage_in_bytes").read_text())

    def resident_bytes(self):
        """Anonymous and shared memory, at this moment."""
        fields = read_fields(self.path / "memory.stat")
        return fields["total_rss"] + fields["total_shmem"]

    def page_table_bytes(self):
        return sum(page_table_bytes(pid) for pid in self.processes())


def page_table_bytes(pid):
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as status:
            text = status.read(4096)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    at = text.find(b"VmPTE:")
    return int(text[at + 6 : text.index(b"kB", at)]) * 1024 if at >= 0 else 0
