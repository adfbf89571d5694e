"""Families in PID namespaces of their own, also one within another and with their own /proc. Needs root."""

import ctypes
import os

from family import good, line

libc = ctypes.CDLL(None, use_errno=True)
PID, MOUNTS, PRIVATE = 0x20000000, 0x20000, 1 << 14 | 1 << 18


def call(name, *arguments):
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)


def child(todo):
    pid = os.fork()
    if not pid:
        os._exit(0 if todo() else 1)
    return os.waitpid(pid, 0)[1] == 0


def inside(flags, todo):
    return child(lambda: call("unshare", flags) or child(todo))


def first():
    return os.getpid() == 1 and line(1)


def hidden():
    call("mount", b"none", b"/", None, PRIVATE, None)
    call("mount", b"proc", b"/proc", b"proc", 0, None)
    return first() and inside(PID, first)


print(inside(PID, first), inside(PID | MOUNTS, hidden), good())
