"""PostgreSQL: a cluster of its own, a table that is filled, sorted, joined and changed, and an orderly end."""

import subprocess

import postgres_server
import server

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


with server.directory() as directory, postgres_server.running(directory, "64MB") as client:
    command = postgres_server.as_user([*client, "-v", "ON_ERROR_STOP=1"])
    answer = subprocess.run(list(map(str, command)), input=SQL.encode(), stdout=subprocess.PIPE, check=True)
print(answer.stdout.decode(), end="")
