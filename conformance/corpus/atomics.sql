-- SQL functions with bodies, BEGIN ATOMIC, nested statements and odd words.
CREATE TABLE t (i int, v text);
CREATE FUNCTION two(a int) RETURNS int LANGUAGE sql BEGIN ATOMIC INSERT INTO t VALUES (a, 'two'); INSERT INTO t VALUES (a + 1, 'two'); SELECT a; END;
SELECT two(1);
CREATE PROCEDURE proc(a int) LANGUAGE sql BEGIN ATOMIC INSERT INTO t VALUES (a, CASE WHEN a > 0 THEN 'plus' ELSE 'minus' END); END;
CALL proc(5); CALL proc(-5);
CREATE FUNCTION nested() RETURNS text LANGUAGE sql BEGIN ATOMIC SELECT CASE (SELECT count(*) FROM t) WHEN 0 THEN 'none' ELSE CASE WHEN true THEN 'some' END END; END;
SELECT nested();
BEGIN; CREATE FUNCTION inblock() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; END; SELECT inblock(); ROLLBACK;
CREATE OR REPLACE FUNCTION begin_end() RETURNS int LANGUAGE sql RETURN 7; SELECT begin_end();
CREATE TABLE "begin" ("end" int, "commit" text); INSERT INTO "begin" VALUES (1, 'rollback'); SELECT "end", "commit" FROM "begin"; DROP TABLE "begin";
SELECT begin.x AS "end" FROM (SELECT 1 AS x) begin;
SELECT pg_get_functiondef('two'::regproc);
DROP TABLE t; DROP TABLE t CASCADE;
SELECT two(1);
