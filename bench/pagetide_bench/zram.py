"""A zram device, in use as the only swap."""

import subprocess
import time
from pathlib import Path

from .resource import Resource
from .script import BenchError

ZRAM_CONTROL = Path("/sys/class/zram-control")
ZRAM_DISK_BYTES = 8 << 30


class Zram(Resource):
    """A zram device of its own, in use as the only swap device."""

    def __init__(self, algorithm):
        self.algorithm, self.number = algorithm, None

    def open(self):
        if len(Path("/proc/swaps").read_text().splitlines()) > 1:
            raise BenchError("swap is in use on this machine: `swapoff -a` first, the arms must not share it")
        if not ZRAM_CONTROL.exists():
            raise BenchError("no zram here: `modprobe zram`, or build a kernel with it")
        self.number = int((ZRAM_CONTROL / "hot_add").read_text())
        (self.sys / "comp_algorithm").write_text(self.algorithm)
        (self.sys / "disksize").write_text(str(ZRAM_DISK_BYTES))
        deadline = time.monotonic() + 5
        while not Path(self.device).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        subprocess.run(["mkswap", self.device], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["swapon", "--priority", "100", self.device], check=True)

    def close(self):
        if self.number is None:
            return
        if self.device in Path("/proc/swaps").read_text():
            subprocess.run(["swapoff", self.device], check=True)
        (self.sys / "reset").write_text("1")
        (ZRAM_CONTROL / "hot_remove").write_text(str(self.number))
        self.number = None

    @property
    def device(self):
        return f"/dev/zram{self.number}"

    @property
    def sys(self):
        return Path(f"/sys/block/zram{self.number}")

    def statistics(self):
        """The fields of mm_stat that matter here, in bytes."""
        fields = [int(word) for word in (self.sys / "mm_stat").read_text().split()]
        return {"stored": fields[0], "compressed": fields[1], "used": fields[2], "used_peak": fields[4]}
