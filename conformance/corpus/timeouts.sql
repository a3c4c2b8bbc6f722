-- Statements ended by timeouts, alone and in blocks, and what goes on after them.
CREATE TABLE t (i int);
SET statement_timeout = '30ms';
SELECT pg_sleep(2);
INSERT INTO t SELECT 1 FROM pg_sleep(2);
BEGIN;
INSERT INTO t VALUES (2);
SELECT pg_sleep(2);
INSERT INTO t VALUES (3);
COMMIT;
SELECT count(*) FROM t;
DO $$ BEGIN PERFORM pg_sleep(2); END $$;
BEGIN; SAVEPOINT s; SELECT pg_sleep(2); ROLLBACK TO s; SET LOCAL statement_timeout = 0; INSERT INTO t VALUES (4); COMMIT;
SELECT 1\; SELECT pg_sleep(2)\; SELECT 3;
SET statement_timeout = 0;
SELECT i FROM t;
BEGIN; SET LOCAL lock_timeout = '10ms'; LOCK t; COMMIT;
SELECT 'alive';
