"""40 MiB that four processes share since a fork: 160 to anybody who adds them up."""

import os
import time

kept = bytearray(40 << 20)
# In place: a copy of what it is made of would pass the cap for a moment, which strict may see.
for start in range(0, len(kept), 1 << 20):
    kept[start : start + (1 << 20)] = os.urandom(1 << 20)
for _ in range(3):
    if not os.fork():
        time.sleep(3)
        os._exit(0)
time.sleep(3)
