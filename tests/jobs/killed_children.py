"""Six children one after another, each of which fills most of the swap file and is killed. Prints g for each good one."""

import os
import random
import signal


def fill():
    random.seed(os.getpid())
    pages = [random.randbytes(4000) for _ in range(24000)]
    random.seed(os.getpid())
    os.write(writes, b"g" if all(page == random.randbytes(4000) for page in pages) else b"w")
    signal.pause()


for nth in range(6):
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        fill()
    os.close(writes)
    print(os.read(reads, 1).decode(), end="", flush=True)
    os.kill(child, signal.SIGKILL)
    os.wait()
    os.close(reads)
print()
