#!/usr/bin/env python3
"""MariaDB with a large buffer pool under sysbench, then a check of all tables.

Makes a database in a temporary directory, prepares tables larger than comfortable, runs a fixed number of transactions, and asks
the server to check its tables. Needs mariadbd, mariadb-install-db, mariadb and sysbench. The output is the same on
each run.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAMS = ("mariadbd", "mariadb-install-db", "mariadb", "sysbench")
TABLES = 4
BYTES_PER_ROW = 240


def quiet(command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        sys.exit(f"mariadb_sysbench: {command[0]} failed:\n{result.stdout[-2000:]}")
    return result.stdout


class Server:
    def __init__(self, directory, buffer_pool_mib):
        self.data, self.socket = directory / "data", directory / "db.sock"
        self.buffer_pool_mib = buffer_pool_mib
        self.user = ["--user=root"] if os.geteuid() == 0 else []

    def __enter__(self):
        common = ["--no-defaults", f"--datadir={self.data}", *self.user]
        quiet(["mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db"])
        sizes = [f"--innodb-buffer-pool-size={self.buffer_pool_mib}M", "--innodb-flush-log-at-trx-commit=0"]
        network = [f"--socket={self.socket}", "--skip-networking"]
        self.process = subprocess.Popen(["mariadbd", *common, *sizes, *network], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not self.socket.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit("mariadb_sysbench: the server does not start")
            time.sleep(0.1)
        self.query("CREATE DATABASE sbtest")
        return self

    def __exit__(self, *_exception):
        self.process.terminate()
        self.process.wait()

    def query(self, text):
        return quiet(["mariadb", "--no-defaults", f"--socket={self.socket}", "-uroot", "-N", "-e", text])

    def sysbench(self, workload, rows, events, action):
        connection = ["--db-driver=mysql", f"--mysql-socket={self.socket}", "--mysql-user=root", "--rand-seed=1"]
        load = [f"--tables={TABLES}", f"--table-size={rows}", "--threads=2", "--time=0", f"--events={events}"]
        return quiet(["sysbench", f"oltp_{workload}", *connection, *load, action])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=300, help="data in the tables (default %(default)s)")
    parser.add_argument("--events", type=int, default=5000, help="transactions (default %(default)s)")
    parser.add_argument("--workload", choices=("read_write", "read_only"), default="read_write", help="of sysbench (default %(default)s)")
    parser.add_argument("--pool", type=int, metavar="MIB", help="size of the buffer pool (default twice --mib)")
    options = parser.parse_args()
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        sys.exit(f"mariadb_sysbench: not installed: {', '.join(missing)}")
    rows = options.mib * 2**20 // BYTES_PER_ROW // TABLES
    with tempfile.TemporaryDirectory() as name, Server(Path(name), options.pool or options.mib * 2) as server:
        server.sysbench(options.workload, rows, options.events, "prepare")
        report = server.sysbench(options.workload, rows, options.events, "run")
        print(report, file=sys.stderr)
        transactions = int(re.search(r"transactions:\s+(\d+)", report)[1])
        tables = ", ".join(f"sbtest.sbtest{number + 1}" for number in range(TABLES))
        checks = server.query(f"CHECK TABLE {tables}").split("\n")
        healthy = sum(line.endswith("OK") for line in checks)
    print(f"mariadb_sysbench: {transactions} transactions, {healthy} of {TABLES} tables healthy")
    sys.exit(0 if healthy == TABLES and transactions >= options.events else 1)


if __name__ == "__main__":
    main()
