"""Kills itself when its pages are out of memory."""

import os
import signal

pages = [os.urandom(2048) * 512 for _ in range(90)]
os.kill(os.getpid(), signal.SIGKILL)
