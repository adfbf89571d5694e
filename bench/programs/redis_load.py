"""redis under redis-benchmark, SETs and GETs, while it saves in the background.

    redis_load.py KEYS OPERATIONS

Prints the time of one operation in µs while the save runs, over SETs and GETs."""

import json
import subprocess
import sys
import time

import server

BYTES, PIPELINE, CLIENTS = 1000, 16, 20

keys, operations = int(sys.argv[1]), int(sys.argv[2])

with server.directory() as directory:
    path = directory / "socket"

    def client(*words):
        return subprocess.run(["redis-cli", "-s", path, *words], check=True, stdout=subprocess.PIPE, text=True).stdout

    def benchmark(kinds, count):
        """Seconds that so many operations of each kind take."""
        command = ["redis-benchmark", "-s", path, "-q", "-t", kinds, "-n", count, "-r", keys, "-d", BYTES, "-P", PIPELINE, "-c", CLIENTS]
        started = time.monotonic()
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - started

    options = ["--port", 0, "--unixsocket", path, "--dir", directory, "--save", "", "--appendonly", "no"]
    with server.running(["redis-server", *options], lambda: path.exists() and server.answers(["redis-cli", "-s", path, "ping"])):
        # Keys are drawn at random: twice as many leave few of them out.
        benchmark("set", 2 * keys)
        client("bgsave")
        seconds = benchmark("set,get", operations)
        while "rdb_bgsave_in_progress:0" not in client("info", "persistence"):
            time.sleep(0.05)
        if "rdb_last_bgsave_status:ok" not in client("info", "persistence"):
            sys.exit("the background save failed")
        client("config", "set", "save", "")
print(json.dumps({"value": seconds * 1e6 / (2 * operations)}))
