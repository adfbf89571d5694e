"""A disk that gives and takes only so many bytes a second (blkio, version 1)."""

from pathlib import Path

from .resource import Resource
from .script import BenchError

BLKIO = Path("/sys/fs/cgroup/blkio")


class Throttle(Resource):
    """A blkio cgroup in which the disk behind a directory gives and takes so many bytes a second."""

    def __init__(self, directory, bytes_per_second):
        self.path = BLKIO / "pagetide-bench-build"
        device = Path(directory).stat().st_dev
        self.limit = f"{device >> 8 & 0xFFF}:{device & 0xFF} {bytes_per_second}"

    def open(self):
        if not BLKIO.exists():
            raise BenchError("there is no blkio controller of cgroup version 1 here")
        self.path.mkdir()
        for way in ("read", "write"):
            (self.path / f"blkio.throttle.{way}_bps_device").write_text(self.limit)

    def close(self):
        self.path.rmdir()

    def command(self, words):
        """The same command, which puts itself into the cgroup first."""
        return ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(self.path / "cgroup.procs"), *words]
