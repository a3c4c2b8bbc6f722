-- psql's own way of asking: describe, conditionals, generated queries, \gx, \watch-like loops.
CREATE TABLE shown (id int PRIMARY KEY, note text DEFAULT 'x;y', CHECK (id > 0));
COMMENT ON COLUMN shown.note IS 'a note';
\d shown
\d+ shown
\dt shown
\dn public
SELECT 1 AS a, 2 AS b \gx
SELECT 'INSERT INTO shown VALUES (' || i || ')' FROM generate_series(1, 3) i \gexec
SELECT * FROM shown \crosstabview id note note
\if :{?nosuch}
SELECT 'never';
\else
SELECT 'else';
\endif
\echo :ROW_COUNT :SQLSTATE :ERROR
SELECT 1/0;
\echo :SQLSTATE :LAST_ERROR_MESSAGE
\set AUTOCOMMIT off
INSERT INTO shown VALUES (10);
ROLLBACK;
INSERT INTO shown VALUES (11);
COMMIT;
\set AUTOCOMMIT on
SELECT id FROM shown ORDER BY id;
\conninfo_is_left_out
