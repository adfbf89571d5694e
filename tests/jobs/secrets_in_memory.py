"""Holds lines that are easy to find on a disk, until its input ends."""

import sys

pages = [b"PAGETIDE-SECRET-%d " % page * 200 for page in range(16000)]
print("ready", flush=True)
sys.stdin.read()
