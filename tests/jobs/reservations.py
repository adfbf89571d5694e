"""Reserves, shrinks and moves address space that it never touches, then fills 90 MiB. Prints its resident KiB."""

import ctypes
import re

libc = ctypes.CDLL(None)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
for _ in range(40):
    at = libc.mmap(None, ctypes.c_size_t(16 << 20), 0, 0x4022, -1, ctypes.c_long(0))
    at = libc.mremap(ctypes.c_void_p(at), ctypes.c_size_t(16 << 20), ctypes.c_size_t(20 << 10), 1)
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(20 << 10))
pages = [bytes([nth % 250 + 1]) * (1 << 20) for nth in range(90)]
print(re.search("RssAnon:[ \t]*(\\d+)", open("/proc/self/status").read())[1])
assert all(page.count(page[0]) == 1 << 20 for page in pages)
