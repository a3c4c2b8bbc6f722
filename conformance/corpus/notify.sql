-- LISTEN and NOTIFY to oneself; the sender's pid differs from run to run and is left out by the test.
LISTEN one;
NOTIFY one, 'first';
SELECT 1;
BEGIN;
NOTIFY one, 'second';
SELECT pg_notify('one', 'third');
COMMIT;
BEGIN;
NOTIFY one, 'never';
ROLLBACK;
UNLISTEN *;
NOTIFY one, 'unheard';
SELECT 2;
