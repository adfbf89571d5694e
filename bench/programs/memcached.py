"""memcached: fills it beyond its limit, and reads all that it still has."""

import hashlib
import socket
import sys

import server

ITEMS, BYTES, BATCH = 220_000, 1000, 500


def talk(path, request, end):
    """Sends a request and reads until the answer ends so."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(request)
        answer = bytearray()
        while not answer.endswith(end):
            part = connection.recv(1 << 20)
            if not part:
                sys.exit("memcached hangs up")
            answer += part
    return bytes(answer)


def is_ready(path):
    try:
        return talk(path, b"version\r\n", b"\r\n").startswith(b"VERSION")
    except OSError:
        return False


def value(number):
    return (hashlib.sha256(str(number).encode()).hexdigest() * 16)[:BYTES].encode()


with server.directory() as directory:
    path = directory / "socket"
    with server.running(["memcached", "-u", "root", "-m", "512", "-t", "2", "-s", path], lambda: is_ready(path)):
        for first in range(0, ITEMS, BATCH):
            sets = b"".join(b"set key%d 0 0 %d noreply\r\n%s\r\n" % (n, BYTES, value(n)) for n in range(first, first + BATCH))
            talk(path, sets + b"version\r\n", b"\r\n")
        digest, found = hashlib.sha256(), 0
        for first in range(0, ITEMS, BATCH):
            keys = b" ".join(b"key%d" % (n * 7919 % ITEMS) for n in range(first, first + BATCH))
            answer = talk(path, b"get " + keys + b"\r\n", b"END\r\n")
            found += answer.count(b"VALUE ")
            digest.update(answer)
print(found, digest.hexdigest())
