"""PostgreSQL with buffers of MIB in shared memory, under pgbench with eight clients.

    pgbench.py MIB SCALE SECONDS

The sums of all tables have to agree, and amcheck has to find the indexes right. Prints the time of one transaction in ms,
over all clients."""

import json
import re
import subprocess
import sys

import postgres_server
import server

mib, scale, seconds = sys.argv[1:]
SUMS = """
SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)
   AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) FROM pgbench_history)
   AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history);
CREATE EXTENSION amcheck;
SELECT count(bt_index_check(oid, true)) FROM pg_class WHERE relname LIKE 'pgbench%pkey';
"""

with server.directory() as directory, postgres_server.running(directory, f"{mib}MB", "shared_memory_type=mmap", "huge_pages=off") as client:

    def run(command, **options):
        words = list(map(str, postgres_server.as_user(command)))
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, cwd="/", **options).stdout

    bench = ["pgbench", "-h", directory]
    run([*bench, "-q", "-i", "-s", scale, "postgres"], stderr=subprocess.DEVNULL)
    said = run([*bench, "-c", "8", "-j", "2", "-T", seconds, "postgres"])
    if "failed transactions: 0 " not in said:
        sys.exit(said)
    answer = run([*client, "-v", "ON_ERROR_STOP=1"], input=SUMS)
    if answer.split() != ["t", "3"]:
        sys.exit(f"the tables are wrong: {answer}")
    tps = float(re.search(r"tps = ([0-9.]+)", said)[1])
print(json.dumps({"value": 1000 / tps, "fill_ns_per_page": 0, "transactions_per_second": tps}))
