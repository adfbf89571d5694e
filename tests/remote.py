#!/usr/bin/env python3
"""Pages on Redis servers that are alone, of a cluster, slow, cut off, damaged or killed.

    tests/remote.py [CASE...]      jobs, cluster, delay, cut, damage; all without one

jobs      a Python job, a sort and integrity.c wholly on one server: what they print natively
cluster   three primaries and three replicas, of which a primary is killed under load: no page is lost
delay     a proxy that holds everything back for 5 ms
cut       a proxy that closes its connections twice a second
damage    a proxy that changes a byte now and then: pages may be lost, and none is another

Needs redis-server and redis-cli, and a build of this checkout. Everything runs on loopback, and ends with the script.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PAGETIDE = REPO / "target" / "debug" / "pagetide"
PROGRAMS = REPO / "tests" / "programs"
POOL = ("--max-pool-percent", "1")
WAIT_SECONDS = 600


def free_port():
    """Below 55536: a server of a cluster listens 10000 ports higher too."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = random.randrange(20000, 32000)
            probe.bind(("127.0.0.1", port))
            return port


def until(what, so):
    started = time.monotonic()
    while not so():
        if time.monotonic() - started > WAIT_SECONDS:
            sys.exit(f"remote.py: {what} does not come about")
        time.sleep(0.05)


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def cli(port, *words):
    return subprocess.run(["redis-cli", "-p", str(port), *map(str, words)], capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def redis(*options, directory="/tmp"):
    """A server, which is killed at the end. Yields (port, process)."""
    port = free_port()
    command = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", directory, *options]
    server = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    try:
        until("a server that listens", lambda: listens(port))
        yield port, server
    finally:
        server.kill()
        server.wait()


class Proxy:
    """Between a run and a server: `disturb(bytes, to_client)` gives what is passed on, or None to close both ends."""

    def __init__(self, port, disturb):
        self.target, self.disturb, self.ends = port, disturb, threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while not self.ends.is_set():
            with contextlib.suppress(OSError):
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                for ends in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self.pass_on, args=ends, daemon=True).start()

    def pass_on(self, source, drain, to_client):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                data = self.disturb(data, to_client)
                if data is None:
                    break
                drain.sendall(data)
        for end in (source, drain):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self):
        self.ends.set()
        self.listener.close()


def build(name):
    path = REPO / "target" / "tmp" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-O2", "-pthread", "-o", path, PROGRAMS / f"{name}.c"], check=True)
    return path


def under(memory, ports, command, *options):
    """Starts a command in a run with all its pages on these servers."""
    remotes = [word for port in ports for word in ("--remote", f"redis://127.0.0.1:{port}")]
    words = [PAGETIDE, "run", "-q", "-m", memory, *POOL, *remotes, *options, "--", *command]
    return subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(run, what):
    out, err = run.communicate(timeout=WAIT_SECONDS)
    if run.returncode:
        sys.exit(f"remote.py: {what} ends with {run.returncode}\n{out}{err}")
    return out, err


def integrity(*more):
    return [build("integrity"), "--mib", 64, "--threads", 2, "--dir", "/var/tmp", *more]


def jobs():
    text = Path(tempfile.mkdtemp(prefix="pagetide-remote-")) / "lines"
    draw = random.Random(1)
    text.write_text("".join(f"{draw.getrandbits(64):x} line\n" for _ in range(2_000_000)))
    commands = {
        "a Python job": (["/usr/bin/python3", PROGRAMS / "dictjob.py", "--mib", 100, "--ops", 30000], "64M"),
        "a sort": (["sh", "-c", f"sort -S 200M --parallel=2 {text} | sha256sum"], "64M"),
    }
    try:
        with redis() as (port, _):
            for what, (command, memory) in commands.items():
                native = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
                out, _ = ended(under(memory, [port], command), what)
                if out != native:
                    sys.exit(f"remote.py: {what} prints {out!r} and natively {native!r}")
            ended(under("32M", [port], integrity("--ops", 30000)), "integrity")
            if cli(port, "dbsize") != "0":
                sys.exit("remote.py: a run has left values")
    finally:
        shutil.rmtree(text.parent)


def cluster():
    with contextlib.ExitStack() as stack:
        servers = {}
        for _ in range(6):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", 1500)
            port, server = stack.enter_context(redis(*options, directory=directory))
            servers[port] = server
        ports = list(servers)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        subprocess.run(["redis-cli", "--cluster", "create", *addresses, "--cluster-replicas", "1", "--cluster-yes"], check=True, stdout=subprocess.DEVNULL)
        until("a cluster", lambda: all("cluster_state:ok" in cli(port, "cluster", "info") for port in ports))
        run = under("32M", ports[:3], integrity("--seconds", 25))
        until("pages on the cluster", lambda: int(cli(ports[0], "dbsize") or 0) > 20)
        time.sleep(3)
        servers[ports[0]].send_signal(signal.SIGKILL)
        _, said = ended(run, "integrity on a cluster")
        print(f"  {said.strip()}")


def disturbed(name, disturb, command, *options, memory="24M"):
    with redis() as (port, _):
        proxy = Proxy(port, disturb)
        try:
            out, said = ended(under(memory, [proxy.port], command, *options), name)
            print(f"  {out.strip()}; {said.strip()}")
            return out
        finally:
            proxy.close()


def delay():
    def disturb(data, _to_client):
        time.sleep(0.005)
        return data

    out = disturbed("delay", disturb, [build("lost"), "--mib", 28, "--rounds", 1])
    if not out.startswith("0 of"):
        sys.exit("remote.py: pages were lost by a delay")


def cut():
    last = [time.monotonic()]

    def disturb(data, _to_client):
        if time.monotonic() - last[0] > 0.5:
            last[0] = time.monotonic()
            return None
        return data

    out = disturbed("cut", disturb, [build("lost"), "--rounds", 4])
    if not out.startswith("0 of"):
        sys.exit("remote.py: pages were lost by a connection that was cut")


def damage():
    draw, sent = random.Random(1), [0]

    def disturb(data, to_client):
        # Not in the first answers, by which it is asked what it is.
        sent[0] += len(data)
        if to_client and len(data) > 2000 and sent[0] > 1 << 20 and draw.random() < 0.01:
            at = draw.randrange(len(data) // 4, len(data) // 2)
            return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        return data

    out = disturbed("damage", disturb, [build("lost"), "--rounds", 4], "--remote-timeout", "5s")
    if out.startswith("0 of"):
        sys.exit("remote.py: no page was damaged: the test tests nothing")


CASES = {function.__name__: function for function in (jobs, cluster, delay, cut, damage)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    options = parser.parse_args()
    if wrong := [name for name in options.cases if name not in CASES]:
        parser.error(f"there is no case {', '.join(wrong)}")
    for name in options.cases or CASES:
        started = time.monotonic()
        print(f"{name} …", flush=True)
        CASES[name]()
        print(f"{name}: well, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TMPDIR", "/var/tmp")
    main()
