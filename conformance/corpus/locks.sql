-- Locks that a session takes and sees of itself, advisory ones included.
CREATE TABLE l (i int);
LOCK TABLE l;
BEGIN;
LOCK TABLE l IN SHARE MODE;
SELECT mode FROM pg_locks WHERE relation = 'l'::regclass AND pid = pg_backend_pid();
COMMIT;
SELECT pg_advisory_lock(1), pg_try_advisory_lock(2);
SELECT objid, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objsubid = 1 ORDER BY objid;
SELECT pg_advisory_unlock(1), pg_advisory_unlock(2), pg_advisory_unlock(3);
BEGIN;
SELECT pg_advisory_xact_lock(4);
COMMIT;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objsubid = 1;
SET lock_timeout = '10ms';
SELECT 1;
SET statement_timeout = '20ms';
SELECT pg_sleep(1);
SELECT 'after the timeout';
