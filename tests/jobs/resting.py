"""Forks while threads load libraries and a timer's handler reads: faults come with locks of the loader held."""

import ctypes
import os
import signal
import threading

pages = [bytearray(os.urandom(64)) * 1024 for _ in range(600)]
loader = ctypes.CDLL(None)
loader.dlopen.restype = ctypes.c_void_p
loader.dlclose.argtypes = [ctypes.c_void_p]
names = [b"libm.so.6", b"libresolv.so.2", b"libanl.so.1", b"libutil.so.1"]
signal.signal(signal.SIGALRM, lambda *_: sum(pages[os.getpid() % 600][::4096]))
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
done = False


def load():
    turn = 0
    while not done:
        library = loader.dlopen(names[turn % 4], os.RTLD_NOW)
        turn += 1
        sum(pages[turn * 7 % 600][::4096])
        loader.dlclose(library)


threads = [threading.Thread(target=load, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for turn in range(30):
    pid = os.fork()
    if not pid:
        os._exit(any(len(page) != sum(1 for _ in page[::4096]) * 4096 for page in pages[:50]))
    for page in pages:
        page[17] = turn
    assert os.waitpid(pid, 0)[1] == 0
done = True
for thread in threads:
    thread.join()
signal.setitimer(signal.ITIMER_REAL, 0)
good = all(page[17] == 29 for page in pages)
print(good)
assert good
