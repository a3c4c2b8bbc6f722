-- What a session sees of the fence: its own text, the read-only default (differences.ts).
SELECT current_query();
SHOW default_transaction_read_only;
SHOW transaction_read_only;
BEGIN;
SHOW transaction_read_only;
COMMIT;
BEGIN READ ONLY;
SHOW transaction_read_only;
COMMIT;
