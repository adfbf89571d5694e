"""memcached: fills it beyond its limit, and reads all that it still has."""

import hashlib

import memcached_server
from memcached_server import ask

ITEMS, BYTES, BATCH = 220_000, 1000, 500


def value(number):
    return (hashlib.sha256(str(number).encode()).hexdigest() * 16)[:BYTES].encode()


with memcached_server.connected(512) as connection:
    for first in range(0, ITEMS, BATCH):
        sets = b"".join(b"set key%d 0 0 %d noreply\r\n%s\r\n" % (n, BYTES, value(n)) for n in range(first, first + BATCH))
        ask(connection, sets + b"version\r\n", b"\r\n")
    digest, found = hashlib.sha256(), 0
    for first in range(0, ITEMS, BATCH):
        keys = b" ".join(b"key%d" % (n * 7919 % ITEMS) for n in range(first, first + BATCH))
        answer = ask(connection, b"get " + keys + b"\r\n", b"END\r\n")
        found += answer.count(b"VALUE ")
        digest.update(answer)
print(found, digest.hexdigest())
