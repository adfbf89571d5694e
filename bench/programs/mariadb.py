"""MariaDB: a server of its own, a table that is filled, sorted, joined and changed, a check of it, and an orderly end."""

import subprocess

import server

SQL = """
CREATE DATABASE job; USE job;
SET SESSION sort_buffer_size = 64 << 20, max_heap_table_size = 64 << 20, tmp_table_size = 64 << 20;
CREATE TABLE visit (id INT PRIMARY KEY, person INT, page VARCHAR(20), note CHAR(32), KEY (person)) ENGINE = InnoDB;
INSERT INTO visit SELECT seq, seq * 7919 % 50021, CONCAT('page ', seq * 40503 % 9973), MD5(seq) FROM seq_1_to_500000;
SELECT COUNT(*), SUM(CRC32(note)), MAX(note) FROM visit;
SELECT COUNT(*), SUM(CRC32(page)) FROM (SELECT page, note FROM visit ORDER BY note, id LIMIT 400000) sorted;
UPDATE visit SET note = UPPER(note) WHERE id % 5 = 2;
SELECT COUNT(*) FROM visit a JOIN visit b ON a.person = b.person AND a.id < b.id WHERE a.id % 10 = 0;
SELECT SUM(person), SUM(CRC32(note)) FROM visit WHERE id % 3 = 1;
CHECK TABLE visit;
"""

with server.directory() as directory:
    data, path, log = directory / "data", directory / "socket", directory / "log"
    made = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    options = ["--no-defaults", "--user=root", f"--datadir={data}", f"--socket={path}", "--skip-networking", "--innodb-buffer-pool-size=192M"]
    options += ["--innodb-flush-log-at-trx-commit=0", "--innodb-log-file-size=64M"]
    client = ["mariadb", "--no-defaults", f"--socket={path}", "-uroot", "-N", "-B"]
    ready = lambda: server.answers([*client, "-e", "SELECT 1"])  # noqa: E731
    with server.running(["mariadbd", *options], ready, log=log):
        print(subprocess.run(client, input=SQL.encode(), stdout=subprocess.PIPE, check=True).stdout.decode(), end="")
