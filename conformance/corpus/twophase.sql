-- Two-phase commit: refused through the fence (differences.ts).
CREATE TABLE t (i int);
BEGIN;
INSERT INTO t VALUES (1);
PREPARE TRANSACTION 'one';
ROLLBACK;
COMMIT PREPARED 'one';
SELECT count(*) FROM t;
COMMIT PREPARED;
