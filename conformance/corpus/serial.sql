-- SERIALIZABLE and REPEATABLE READ sessions: writes, savepoints, temporary tables, functions.
SET default_transaction_isolation = 'serializable';
CREATE TABLE t (i int); CREATE TEMP TABLE tt (i int);
INSERT INTO t VALUES (1) RETURNING i;
BEGIN; SELECT sum(i) FROM t; INSERT INTO t SELECT sum(i) + 1 FROM t; INSERT INTO tt VALUES (1); SAVEPOINT a; DELETE FROM t; ROLLBACK TO a; COMMIT;
SELECT i FROM t ORDER BY i;
DO $$ BEGIN INSERT INTO t VALUES (10); RAISE NOTICE '%', current_setting('transaction_isolation'); END $$;
SET default_transaction_isolation = 'repeatable read';
INSERT INTO t VALUES (20) RETURNING current_setting('transaction_isolation');
BEGIN; SET TRANSACTION ISOLATION LEVEL READ COMMITTED; INSERT INTO t VALUES (21); SHOW transaction_isolation; COMMIT;
BEGIN; SAVEPOINT s; SET TRANSACTION ISOLATION LEVEL READ COMMITTED; ROLLBACK;
SET default_transaction_deferrable = on; BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY; SELECT count(*) FROM t; SHOW transaction_deferrable; COMMIT;
SET default_transaction_isolation = 'nonsense';
RESET ALL; SHOW transaction_isolation;
SELECT i FROM t ORDER BY i;
