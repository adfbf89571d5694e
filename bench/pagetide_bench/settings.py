"""Settings of the kernel."""

from pathlib import Path

from .procfs import chosen
from .resource import Resource

ZSWAP = Path("/sys/module/zswap/parameters")
THP = Path("/sys/kernel/mm/transparent_hugepage")
PAGE_CLUSTER = Path("/proc/sys/vm/page-cluster")
SWAPPINESS = Path("/proc/sys/vm/swappiness")


class Setting(Resource):
    """Writes a kernel setting and puts the old value back."""

    def __init__(self, path, value):
        self.path, self.value, self.before = Path(path), str(value), None

    def open(self):
        before = chosen(self.path)
        if before != self.value:
            try:
                self.path.write_text(self.value)
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror}: writing {self.value}", str(self.path)) from None
            self.before = before

    def close(self):
        if self.before is not None:
            self.path.write_text(self.before)
            self.before = None
