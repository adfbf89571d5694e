#!/usr/bin/env python3
"""A redis server that saves in the background (a forked child) while clients write, then restarts from what it saved.

Starts redis-server on a Unix socket in a temporary directory, loads about --mib MiB, begins a background save, changes
a part of the keys meanwhile, checks every key, restarts the server from the dump and checks that it holds the
state of the moment of the save. Needs redis-server; speaks its protocol itself. The output is the same on each run.
"""

import argparse
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

BATCH = 500
VALUE_BYTES_MAX = 1900
VALUE_BYTES_MEAN = 1100  # with what redis needs beside
WORDS = b"session cart user token visited page expires cookie basket item price 2024-11-21 true false null ".split()
TEXT = b" ".join(random.Random(1).choices(WORDS, k=300_000))


class Redis:
    """A connection: commands out in batches, replies back."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.reader = self.socket.makefile("rb")

    def commands(self, batch):
        parts = []
        for command in batch:
            parts.append(b"*%d\r\n" % len(command))
            parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in command]
        self.socket.sendall(b"".join(parts))
        return [self.reply() for _ in batch]

    def command(self, *words):
        return self.commands([words])[0]

    def reply(self):
        line = self.reader.readline().rstrip()
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise RuntimeError(f"redis: {rest.decode()}")
        if kind == b"$":
            return None if rest == b"-1" else self.reader.read(int(rest) + 2)[:-2]
        return rest


class Server:
    def __init__(self, directory):
        self.directory, self.socket_path = directory, directory / "redis.sock"

    def __enter__(self):
        arguments = ["--port", "0", "--unixsocket", self.socket_path, "--dir", self.directory, "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(["redis-server", *arguments], stdout=subprocess.DEVNULL)
        return self.connect()

    def __exit__(self, *_exception):
        self.process.terminate()
        self.process.wait()
        self.socket_path.unlink(missing_ok=True)

    def connect(self):
        """Waits until the server listens and has loaded its dump."""
        deadline = time.monotonic() + 120
        while True:
            try:
                connection = Redis(self.socket_path)
                connection.command(b"PING")
                return connection
            except (OSError, RuntimeError):
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.05)


def key_of(number):
    return b"user:%d:session" % number


def value_of(number, generation):
    """Varied text that follows from the two numbers alone."""
    mixed = (number * 2654435761 + generation * 40503) % 2**32
    start = mixed % (len(TEXT) - VALUE_BYTES_MAX)
    return b"%d %d %s" % (number, generation, TEXT[start : start + 100 + (mixed >> 8) % (VALUE_BYTES_MAX - 100)])


def batches(numbers):
    numbers = list(numbers)
    return (numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH))


def store(redis, numbers, generation):
    for batch in batches(numbers):
        redis.commands([(b"SET", key_of(n), value_of(n, generation)) for n in batch])


def check(redis, count, generation_of):
    checksum = 0
    for batch in batches(range(count)):
        values = redis.commands([(b"GET", key_of(n)) for n in batch])
        for number, value in zip(batch, values):
            if value != value_of(number, generation_of(number)):
                sys.exit(f"redis_bgsave: WRONG VALUE of key {number}: {value and value[:60]!r}")
            checksum = zlib.crc32(value, checksum)
    return checksum


def save_meanwhile(redis, work):
    """Begins a background save, does the work, waits for the save."""
    redis.command(b"BGSAVE")
    work()
    while b"rdb_bgsave_in_progress:0" not in redis.command(b"INFO", b"persistence"):
        time.sleep(0.05)
    if b"rdb_last_bgsave_status:ok" not in redis.command(b"INFO", b"persistence"):
        sys.exit("redis_bgsave: the background save failed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=300, help="data to load (default %(default)s)")
    options = parser.parse_args()
    if not shutil.which("redis-server"):
        sys.exit("redis_bgsave: redis-server is not installed")
    count = options.mib * 2**20 // VALUE_BYTES_MEAN
    with tempfile.TemporaryDirectory() as name:
        with Server(Path(name)) as redis:
            store(redis, range(count), 1)
            save_meanwhile(redis, lambda: store(redis, range(0, count, 5), 2))
            after = check(redis, count, lambda number: 2 if number % 5 == 0 else 1)
        with Server(Path(name)) as redis:
            saved = check(redis, count, lambda _number: 1)
    print(f"redis_bgsave: {count} keys, now {after:08x}, saved {saved:08x}")


if __name__ == "__main__":
    main()
