-- Large objects through functions and psql's own commands, which open a block by themselves.
SELECT lo_create(4711);
BEGIN;
SELECT lo_put(4711, 0, '\x616263');
SELECT lo_get(4711);
COMMIT;
SELECT lo_from_bytea(4712, '\xff00');
SELECT encode(lo_get(4712), 'hex');
\lo_unlink 4711
\lo_unlink 4711
SELECT lo_unlink(4712);
SELECT lo_get(4712);
