"""DuckDB: tables in memory that are joined, grouped and sorted."""

import duckdb

connection = duckdb.connect(":memory:")
connection.execute("SET threads = 2")
connection.execute("""
CREATE TABLE visit AS SELECT i AS id, i * 7919 % 50021 AS person, 'page ' || (i * 40503 % 9973) AS page, i % 977 AS seconds,
    md5(i::VARCHAR) AS note FROM range(3000000) r(i);
CREATE TABLE person AS SELECT i AS id, 'group ' || (i % 97) AS kind FROM range(50021) r(i);
""")
for query in (
    "SELECT kind, count(*), sum(seconds), max(note) FROM visit JOIN person ON person.id = visit.person GROUP BY kind ORDER BY kind",
    "SELECT count(*), sum(seconds) FROM (SELECT page, person, sum(seconds) AS seconds FROM visit GROUP BY page, person)",
    "SELECT note, id FROM visit ORDER BY note LIMIT 20",
    "SELECT md5(string_agg(note, '' ORDER BY id)) FROM visit WHERE id % 10 = 3",
):
    for row in connection.execute(query).fetchall():
        print(*row)
