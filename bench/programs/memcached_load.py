"""memcached with values of 1000 bytes: SETs of all keys, then pipelined GETs.

    memcached_load.py ITEMS ORDER GETS      ORDER: uniform, zipf (exponent 1)

Looks whether each value is the one of its key. Prints the time of one GET in µs."""

import json
import random
import sys
import time

import memcached_server
from memcached_server import ask

BYTES, BATCH = 1000, 200
WORDS = b"session cart user token visited page expires cookie basket item price 2024-11-21 true false null ".split()
TEXT = b" ".join(random.Random(1).choices(WORDS, k=100_000))

items, order, gets = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def value(number):
    """Text that follows from the number."""
    start = number * 2654435761 % (len(TEXT) - BYTES)
    return b"%012d%s" % (number, TEXT[start : start + BYTES - 12])


def number_of(draw):
    if order == "uniform":
        return draw.randrange(items)
    rank = int(items ** draw.random())
    return rank * 7919 % items


with memcached_server.connected(items * BYTES * 3 // 2 >> 20) as connection:
    started = time.monotonic()
    for first in range(0, items, BATCH):
        sets = b"".join(b"set key%d 0 0 %d noreply\r\n%s\r\n" % (n, BYTES, value(n)) for n in range(first, min(first + BATCH, items)))
        ask(connection, sets + b"version\r\n", b"\r\n")
    filled, draw = time.monotonic(), random.Random(2)
    for _ in range(gets // BATCH):
        numbers = [number_of(draw) for _ in range(BATCH)]
        got = ask(connection, b"get " + b" ".join(b"key%d" % n for n in numbers) + b"\r\n", b"END\r\n")
        wanted = b"".join(b"VALUE key%d 0 %d\r\n%s\r\n" % (n, BYTES, value(n)) for n in numbers)
        if got != wanted + b"END\r\n":
            sys.exit("memcached gives another value, or none")
    ended = time.monotonic()
print(json.dumps({"value": (ended - filled) * 1e6 / (gets // BATCH * BATCH), "fill_us_per_set": (filled - started) * 1e6 / items}))
