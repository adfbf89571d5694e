#!/usr/bin/python3
"""Attacks the broker that hands out /dev/userfaultfd: what it gives, to whom, and whether it goes on.

    tests/broker.py [--seed N] PAGETIDE        (as root; systemd-socket-activate is tried where it is)

Prints a line for each attack that failed, and ends with the number of failures.
"""

import argparse
import array
import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAGIC, VERSION, USERFAULTFD, THINGS = b"pagetide", 1, 4, range(1, 9)
IOC_NEW, MEMBER, STRANGER = 0xAA00, 1, 65534
GROUP = "daemon"  # of which user 1 is a member


def question(thing, magic=MAGIC, version=VERSION):
    return struct.pack("<8sII", magic, version, thing)


def connect(path):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(str(path))
    return peer


def ask(path, thing=USERFAULTFD):
    """The error that is answered (0: none), and the descriptors that came."""
    with connect(path) as peer:
        peer.send(question(thing))
        message, control, *_ = peer.recvmsg(64, socket.CMSG_SPACE(4 * 8))
    if len(message) != 16:
        return errno.ECONNRESET, []
    magic, version, error = struct.unpack("<8sII", message)
    assert (magic, version) == (MAGIC, VERSION), message
    given = array.array("i")
    for level, kind, data in control:
        assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        given.frombytes(data[: len(data) // 4 * 4])
    return error, list(given)


def as_user(user, job):
    """Runs `job` in a child that is `user`; returns its exit status."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            status = job()
        except BaseException as problem:
            print(f"user {user}: {problem!r}", file=sys.stderr)
        finally:
            os._exit(status)
    return child


def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome(path, thing=USERFAULTFD):
    """As an exit status: 0 if what comes is the device and makes a full userfaultfd, else the error."""
    import fcntl

    error, given = ask(path, thing)
    if error:
        return error if not given else 98
    if len(given) != 1 or not fcntl.fcntl(given[0], fcntl.F_GETFL) & os.O_RDWR:
        return 97
    fd = fcntl.ioctl(given[0], IOC_NEW, os.O_CLOEXEC)
    return 0 if fd >= 0 else 96


class Broker:
    def __init__(self, pagetide, folder, limit=None, wrapper=(), options=()):
        self.path = folder / "socket"
        self.log = (folder / "log").open("w+")
        own = () if wrapper else ("--socket", self.path)
        command = [*wrapper, pagetide, "broker", "--group", GROUP, *own, *options]

        def prepare():
            if limit:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log, preexec_fn=prepare)
        while not self.answers():
            if self.process.poll() is not None:
                raise SystemExit(f"the broker ended: {self.said()}")
            time.sleep(0.01)

    def answers(self):
        with contextlib.suppress(OSError):
            return connect(self.path) is not None
        return False

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def kill(self):
        self.process.kill()
        self.process.wait()


class Check:
    def __init__(self):
        self.failures = 0

    def equal(self, what, found, wanted):
        if found != wanted:
            self.failures += 1
            print(f"FAILED {what}: {found}, not {wanted}", flush=True)


def who(check, broker):
    path = broker.path
    check.equal("a member", status_of(as_user(MEMBER, lambda: outcome(path))), 0)
    check.equal("root", status_of(as_user(0, lambda: outcome(path))), 0)
    check.equal("a stranger", status_of(as_user(STRANGER, lambda: outcome(path))), errno.EACCES)
    check.equal("a user without a name", status_of(as_user(1234567, lambda: outcome(path))), errno.EACCES)
    for thing in THINGS:
        if thing != USERFAULTFD:
            check.equal(f"thing {thing}, to root", outcome(path, thing), errno.EACCES)
            check.equal(f"thing {thing}, to a stranger", status_of(as_user(STRANGER, lambda: outcome(path, thing))), errno.EACCES)


def stranger_in_namespace(check, broker):
    """Root in a user namespace of a stranger's is a stranger."""
    inside = ["unshare", "--user", "--map-root-user"]

    def possible():
        return subprocess.run([*inside, "true"], stderr=subprocess.DEVNULL).returncode

    script = shutil.copy(__file__, broker.path.parent)

    def job():
        return subprocess.run([*inside, "/usr/bin/python3", script, "--ask", broker.path]).returncode

    if status_of(as_user(STRANGER, possible)) == 0:
        check.equal("root in a user namespace of a stranger", status_of(as_user(STRANGER, job)), errno.EACCES)


def nonsense(check, broker, seed):
    """Random messages, with and without descriptors; peers that go at once, or never read."""
    chance = random.Random(seed)
    for _ in range(2000):
        kind = chance.randrange(6)
        with contextlib.suppress(ConnectionError, BlockingIOError), connect(broker.path) as peer:
            length = chance.choice([0, 1, 15, 16, 17, 64, 4096])
            if kind == 0:
                peer.send(chance.randbytes(length))
            elif kind == 1:
                damaged = bytearray(question(USERFAULTFD))
                damaged[chance.randrange(16)] ^= 1 << chance.randrange(8)
                peer.send(damaged)
                assert not any(socket.CMSG_LEN(0) < len(data) for *_, data in peer.recvmsg(64, 64)[1]), damaged
            elif kind == 2:
                socket.send_fds(peer, [question(USERFAULTFD)], [0, 1, 2])
            elif kind == 3:
                peer.send(question(USERFAULTFD))
                peer.send(question(USERFAULTFD))
                peer.shutdown(socket.SHUT_RDWR)
            elif kind == 4:
                peer.send(question(chance.choice([0, 9, 2**31, 2**32 - 1])))
                check.equal("a thing that is none", peer.recv(64), b"")
    check.equal("a member after nonsense", status_of(as_user(MEMBER, lambda: outcome(broker.path))), 0)


def crowd(check, broker, strangers):
    """A member is served while users that may not hold thousands of connections."""

    def flood():
        os.close(0)
        held = []
        while True:
            try:
                peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                peer.setblocking(False)
                peer.connect(str(broker.path))
                held.append(peer)
            except (BlockingIOError, OSError):
                held = held[len(held) // 2 :]
            if len(held) > 300:
                held = held[150:]

    floods = [as_user(user, flood) for user in strangers]
    try:
        for _ in range(200):
            check.equal("a member in a crowd", status_of(as_user(MEMBER, lambda: patient(broker.path))), 0)
    finally:
        for child in floods:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def patient(path):
    """As Pagetide asks: anew when a connection was lost."""
    for _ in range(50):
        try:
            status = outcome(path)
        except (ConnectionError, BrokenPipeError):
            continue
        if status != errno.ECONNRESET:
            return status
    return 95


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("pagetide", type=Path, nargs="?")
    options = parser.parse_args()
    if options.ask:
        return outcome(options.ask)
    if not options.pagetide:
        parser.error("PAGETIDE is missing")
    print(f"seed {options.seed}", flush=True)
    check = Check()
    with tempfile.TemporaryDirectory(prefix="pagetide-broker-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        folder = Path(folder)
        broker = Broker(options.pagetide, folder)
        try:
            who(check, broker)
            stranger_in_namespace(check, broker)
            before = broker.descriptors()
            nonsense(check, broker, options.seed)
            crowd(check, broker, [STRANGER, 1000001, 1000002])
            # Of the crowd some may still wait to be accepted: asked once more there may be more for a moment.
            while (left := broker.descriptors()) > before and broker.process.poll() is None:
                time.sleep(0.01)
            check.equal("descriptors of the broker", left, before)
            again = subprocess.run([options.pagetide, "broker", "--socket", broker.path], capture_output=True, text=True)
            check.equal("a second broker", (again.returncode, "already" in again.stderr), (125, True))
            broker.kill()
            check.equal("a stranger is named once", broker.said().count("user nobody does not get"), 1)
            # Killed: its socket is taken over. Then with hardly any descriptors.
            broker = Broker(options.pagetide, folder, limit=12)
            check.equal("a member after a restart", status_of(as_user(MEMBER, lambda: outcome(broker.path))), 0)
            crowd(check, broker, [STRANGER])
        finally:
            broker.kill()
        broker.path.unlink()
        if shutil.which("systemd-socket-activate"):
            wrapper = ["systemd-socket-activate", "--seqpacket", "-l", broker.path]
            broker = Broker(options.pagetide, folder, wrapper=wrapper)
            try:
                os.chmod(broker.path, 0o666)
                who(check, broker)
            finally:
                broker.kill()
    print(f"{check.failures} failures", flush=True)
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
