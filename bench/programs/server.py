"""What the servers of this directory share: a directory of their own, a start, a wait and an end."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WAIT_SECONDS = 300


@contextlib.contextmanager
def directory():
    """A directory for a server's files, which anybody may enter."""
    path = Path(tempfile.mkdtemp(prefix="pagetide-server-", dir="/var/tmp"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def running(command, is_ready, stop=None, log=None):
    """A server that runs while the block does."""
    with open(log or "/dev/null", "wb") as output:
        server = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_ready():
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{command[0]} does not start (status {server.poll()})\n{Path(log).read_text(errors='replace')[-2000:] if log else ''}")
            time.sleep(0.05)
        yield server
        (stop or server.terminate)()
        if status := server.wait(WAIT_SECONDS):
            sys.exit(f"{command[0]} ends with status {status}")
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def answers(command):
    """Whether a command succeeds."""
    return subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
