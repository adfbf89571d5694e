"""A swap file of the kernel's, in use as the only swap."""

import os
import subprocess
from pathlib import Path

from .resource import Resource
from .script import BenchError


class SwapFile(Resource):
    """A swap file, in use as the only swap."""

    def __init__(self, directory, size):
        self.path, self.size = Path(directory) / f"pagetide-bench-{os.getpid()}.swap", size

    def open(self):
        if len(Path("/proc/swaps").read_text().splitlines()) > 1:
            raise BenchError("swap is in use on this machine: `swapoff -a` first")
        with open(self.path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.size)
        self.path.chmod(0o600)
        subprocess.run(["mkswap", self.path], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["swapon", self.path], check=True)

    def close(self):
        if str(self.path) in Path("/proc/swaps").read_text():
            subprocess.run(["swapoff", self.path], check=True)
        self.path.unlink(missing_ok=True)

    @staticmethod
    def statistics():
        """As of a zram device: what a file holds takes no memory."""
        return {"used_peak": 0}
