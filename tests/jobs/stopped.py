"""Stops when it has an engine."""

import os
import signal

kept = [os.urandom(1 << 20) for _ in range(20)]
os.kill(os.getpid(), signal.SIGSTOP)
