"""Holds so many MiB for so many seconds: unmanaged.py MIB SECONDS."""

import sys
import time

kept = [bytes([nth % 251]) * (1 << 20) for nth in range(int(sys.argv[1]))]
time.sleep(float(sys.argv[2]))
