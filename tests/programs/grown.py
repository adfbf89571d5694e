#!/usr/bin/env python3
"""grown: holds more than its first cap and what a pool of that size takes, after the cap was raised.

    grown.py PAGETIDE

Run it with --memory 64M --no-disk. Exit status: 0 all well, 1 not as it should be."""

import hashlib
import os
import subprocess
import sys

MIB = 1 << 20


def main():
    areas = [os.urandom(MIB // 2) + bytes(MIB // 2) for _ in range(40)]
    said = subprocess.run([sys.argv[1], "set", "--pid", str(os.getppid()), "memory=400M"], capture_output=True, text=True)
    if said.returncode:
        sys.exit(f"set: {said}")
    areas += [os.urandom(MIB // 2) + bytes(MIB // 2) for _ in range(540)]
    first = [hashlib.sha256(area).digest() for area in areas]
    if [hashlib.sha256(area).digest() for area in areas] != first:
        sys.exit("contents have changed")


main()
