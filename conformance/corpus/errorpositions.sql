-- Errors with positions: long lines, many lines, non-ASCII before the error, in functions, in later statements.
SELECT nosuch FROM pg_class;
SELECT 1,
       2,
       nosuch,
       4;
SELECT 'ä日本€', nosuch;
SELECT 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', nosuch, 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb';
BEGIN;
SELECT nosuch FROM pg_class;
ROLLBACK;
BEGIN;
SELECT 1;
SELECT nosuch FROM pg_class;
ROLLBACK;
SELECT 1\; SELECT nosuch\; SELECT 2;
SELECT 1\; SELECT 'ü'\; SELEC 2;
BEGIN\; SELECT 1\; SELECT nosuch;
ROLLBACK;
COMMIT\; SELECT nosuch;
INSERT INTO nosuch VALUES (1);
UPDATE pg_class SET nosuch = 1;
CREATE TABLE t (a int, a int);
CREATE TABLE t (a nosuchtype);
CREATE FUNCTION f() RETURNS int LANGUAGE sql AS $$ SELECT nosuch $$;
CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 1 END $$;
PREPARE p AS SELECT nosuch;
DECLARE c CURSOR WITH HOLD FOR SELECT nosuch;
COPY (SELECT nosuch) TO STDOUT;
EXPLAIN SELECT nosuch;
DO 'BEGIN PERFORM nosuch; END';
SELECT * FROM json_to_record('{}');
SELECT "unclosed
";
SELECT 'unclosed
';
)SELECT 1;
SELECT 1 WHERE;
SELECT 1::;
SELECT abs('x', 1);
SELECT 1 + 'x';
SELECT '1' + '1';
SELECT CAST('x' AS int);
SELECT (1;
  SELECT * FROM pg_class WHERE relname == 'x';
\set VERBOSITY verbose
BEGIN;
SELECT nosuch;
ROLLBACK;
\set VERBOSITY sqlstate
SELECT nosuch;
SELECT 1/0;
\set VERBOSITY terse
SELECT nosuch;
