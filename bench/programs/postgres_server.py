"""A PostgreSQL server with a cluster of its own."""

import contextlib
import os
import pwd
import subprocess
from pathlib import Path

import server

PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"))


def as_user(command):
    """PostgreSQL refuses to run as root."""
    if os.geteuid():
        return command
    user = pwd.getpwnam("postgres")
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command]


@contextlib.contextmanager
def running(directory, shared_buffers, *settings):
    """Yields the words of a client."""
    if not os.geteuid():
        os.chown(directory, pwd.getpwnam("postgres").pw_uid, -1)
    data, log = directory / "data", directory / "log"
    made = as_user([PROGRAMS / "initdb", "-D", data, "-A", "trust", "--no-sync", "--locale=C"])
    subprocess.run(list(map(str, made)), check=True, stdout=subprocess.DEVNULL, cwd="/")
    options = ["-D", data, "-k", directory]
    for setting in ("listen_addresses=", f"shared_buffers={shared_buffers}", "fsync=off", "autovacuum=off", *settings):
        options += ["-c", setting]
    client = ["psql", "-h", directory, "-d", "postgres", "-XAtq"]
    ready = lambda: server.answers(as_user([*client, "-c", "SELECT 1"]))  # noqa: E731
    with server.running(as_user([PROGRAMS / "postgres", *options]), ready, log=log):
        yield client
