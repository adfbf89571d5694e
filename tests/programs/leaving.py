#!/usr/bin/env python3
"""leaving: takes the swap file of its own run out of use, with too much in it and then with less.

    leaving.py PAGETIDE

Run it with --memory 96M. Exit status: 0 all well, 1 not as it should be."""

import hashlib
import json
import mmap
import os
import subprocess
import sys

MIB = 1 << 20


def fill():
    area = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.write(os.urandom(MIB))
    return area, hashlib.sha256(area).digest()


def check(areas):
    for number, (area, digest) in enumerate(areas):
        if hashlib.sha256(area).digest() != digest:
            sys.exit(f"MiB number {number} has changed")


def command(verb, *options):
    return [sys.argv[1], verb, str(os.getppid()), *options]


def pagetide(verb, *options):
    return subprocess.run(command(verb, *options), capture_output=True, text=True)


def begin(verb):
    return subprocess.Popen(command(verb), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def on_disk():
    return json.loads(pagetide("stat", "--json").stdout)["bytes"]["now"]["disk"]


def main():
    areas = [fill() for _ in range(180)]
    if on_disk() < 60 * MIB:
        sys.exit(f"{on_disk()} bytes on the disk")
    off = pagetide("swapoff")
    if off.returncode != 1 or "there is no room" not in off.stderr:
        sys.exit(f"swapoff without room: {off}")
    check(areas)
    for area, _ in areas[40:]:
        area.close()
    off = pagetide("swapoff")
    if off.returncode != 0 or on_disk() != 0:
        sys.exit(f"swapoff: {off}, {on_disk()} bytes on the disk")
    check(areas[:40])
    on = pagetide("swapon")
    areas[40:] = [fill() for _ in range(100)]
    if on.returncode != 0 or on_disk() < 20 * MIB:
        sys.exit(f"swapon: {on}, {on_disk()} bytes on the disk")
    check(areas)
    # One that is killed in the middle has begun what two others, at once, bring to its end.
    for area, _ in areas[40:]:
        area.close()
    killed = begin("swapoff")
    killed.kill()
    killed.communicate()
    both = [begin("swapoff"), begin("swapoff")]
    said = [running.communicate() for running in both]
    if any(running.returncode for running in both) or on_disk() != 0:
        sys.exit(f"swapoff by two: {said}, {on_disk()} bytes on the disk")
    check(areas[:40])


main()
