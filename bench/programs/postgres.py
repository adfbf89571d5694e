"""PostgreSQL: a cluster of its own, a table that is filled, sorted, joined and changed, and an orderly end."""

import os
import pwd
import subprocess
from pathlib import Path

import server

PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"))
SQL = """
SET work_mem = '160MB';
SET maintenance_work_mem = '160MB';
SET max_parallel_workers_per_gather = 0;
CREATE UNLOGGED TABLE visit AS SELECT i AS id, i * 7919 % 50021 AS person, 'page ' || (i * 40503 % 9973) AS page, md5(i::text) AS note
    FROM generate_series(1::bigint, 400000) i;
CREATE INDEX ON visit(person);
SELECT count(*), md5(string_agg(note, '' ORDER BY note)) FROM visit;
SELECT count(*), count(DISTINCT page), max(note) FROM visit;
SELECT count(*) FROM visit a JOIN visit b ON a.note = b.note AND a.person = b.person;
UPDATE visit SET note = upper(note) WHERE id % 5 = 2;
SELECT sum(person), md5(string_agg(note, '' ORDER BY id)) FROM visit WHERE id % 3 = 1;
"""


def as_user(command):
    """PostgreSQL refuses to run as root."""
    if os.geteuid():
        return command
    user = pwd.getpwnam("postgres")
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command]


with server.directory() as directory:
    if not os.geteuid():
        os.chown(directory, pwd.getpwnam("postgres").pw_uid, -1)
    data, log = directory / "data", directory / "log"
    made = as_user([PROGRAMS / "initdb", "-D", data, "-A", "trust", "--no-sync", "--locale=C"])
    subprocess.run(list(map(str, made)), check=True, stdout=subprocess.DEVNULL, cwd="/")
    options = ["-D", data, "-k", directory, "-c", "listen_addresses=", "-c", "shared_buffers=64MB", "-c", "fsync=off", "-c", "autovacuum=off"]
    client = ["psql", "-h", directory, "-d", "postgres", "-XAtq"]
    ready = lambda: server.answers(as_user([*client, "-c", "SELECT 1"]))  # noqa: E731
    with server.running(as_user([PROGRAMS / "postgres", *options]), ready, log=log):
        answer = subprocess.run(list(map(str, as_user([*client, "-v", "ON_ERROR_STOP=1"]))), input=SQL.encode(), stdout=subprocess.PIPE, check=True)
print(answer.stdout.decode(), end="")
