#!/usr/bin/env python3
"""resized: changes the cap of its own run while its threads and a child work on their memory.

    resized.py PAGETIDE

Run it with --memory 160M. Exit status: 0 all well, 1 not as it should be."""

import hashlib
import json
import mmap
import os
import subprocess
import sys
import threading
import time

MIB = 1 << 20
AREAS = 110
# Reports of the run are made of samples 20 ms apart: a cap is passed a little for a moment.
PASSED = 1.03


def fill():
    area = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.write(os.urandom(MIB // 2) + b"\1" * (MIB // 2))
    return area, hashlib.sha256(area).digest()


def check(areas):
    for number, (area, digest) in enumerate(areas):
        if hashlib.sha256(area).digest() != digest:
            os.write(2, f"MiB number {number} has changed\n".encode())
            os._exit(1)


def pagetide(verb, *options):
    return subprocess.run([sys.argv[1], verb, *options], capture_output=True, text=True)


def launcher():
    return os.getppid()


def resize(size):
    said = pagetide("set", "--pid", str(launcher()), f"memory={size}M")
    if said.returncode:
        sys.exit(f"set: {said}")


def until(what, holds):
    while True:
        stat = json.loads(pagetide("stat", str(launcher()), "--json").stdout)
        if holds(stat):
            return
        time.sleep(0.02)


def total(stat):
    return stat["bytes"]["now"]["total"]


def main():
    areas = [fill() for _ in range(AREAS)]
    stop = threading.Event()

    def work():
        while not stop.is_set():
            check(areas)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for round in range(3):
        until("it fits", lambda stat: total(stat) > 100 * MIB)
        small = 48 + 16 * round
        resize(small)
        until("memory comes down to a lower cap", lambda stat: total(stat) <= PASSED * small * MIB and stat["free_bytes"] >= 0)
        # One that is born while the cap is low, and lives when it is high.
        child = os.fork()
        if child == 0:
            check(areas[::8])
            os._exit(0)
        resize(400)
        if os.waitpid(child, 0)[1]:
            sys.exit("the child found something else")
    stop.set()
    for thread in threads:
        thread.join()
    check(areas)
    if pagetide("set", "--pid", str(launcher()), "memory=15M").returncode != 2:
        sys.exit("15 MiB were taken for a cap")


main()
