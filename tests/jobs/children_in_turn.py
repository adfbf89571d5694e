"""Children one after another, while their launcher is stopped: each takes the memory that the one before has left."""

import os
import signal
import time

launcher = os.getppid()
os.kill(launcher, signal.SIGSTOP)
try:
    for nth in range(12):
        child = os.fork()
        if not child:
            kept = bytearray(os.urandom(4096) * 3072)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        # Whoever is short looks for the ended once in 2 ms.
        time.sleep(0.005)
finally:
    os.kill(launcher, signal.SIGCONT)
