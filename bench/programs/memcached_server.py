"""A memcached at a socket, for programs that measure it or compare what it gives."""

import contextlib
import socket
import sys

import server


def ask(connection, request, end):
    """Sends a request and reads until the answer ends so."""
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
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            return ask(connection, b"version\r\n", b"\r\n").startswith(b"VERSION")
    except OSError:
        return False


@contextlib.contextmanager
def connected(memory_mib):
    """A connection to a server that holds so much at most."""
    with server.directory() as directory:
        path = directory / "socket"
        command = ["memcached", "-u", "root", "-m", memory_mib, "-t", 2, "-s", path]
        with server.running(command, lambda: is_ready(path)), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            yield connection
