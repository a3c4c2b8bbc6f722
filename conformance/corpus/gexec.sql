-- Generated statements: \gexec with DDL, DML and blocks, loops by \if, row counts.
CREATE TABLE t (i int);
SELECT format('INSERT INTO t VALUES (%s)', i) FROM generate_series(1, 5) i \gexec
SELECT 'BEGIN' UNION ALL SELECT 'INSERT INTO t VALUES (6)' UNION ALL SELECT 'ROLLBACK' \gexec
SELECT format('CREATE TABLE g%s (i int)', i), format('INSERT INTO g%s VALUES (%s)', i, i) FROM generate_series(1, 3) i \gexec
SELECT (SELECT count(*) FROM g1), (SELECT sum(i) FROM t);
SELECT 'SELECT nosuch', 'SELECT 1', 'VACUUM t', 'CREATE INDEX CONCURRENTLY ON t (i)' \gexec
\echo :ROW_COUNT :ERROR :LAST_ERROR_SQLSTATE
SELECT count(*) > 3 AS enough FROM t \gset
\if :enough
INSERT INTO t VALUES (100) RETURNING i;
\else
SELECT 'no';
\endif
UPDATE t SET i = i + 1 \g
\echo :ROW_COUNT
\set ON_ERROR_STOP on
SELECT i FROM t ORDER BY i;
SELECT 1/0;
SELECT 'never';
