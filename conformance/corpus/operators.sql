-- Own operators, operator classes, casts, access methods' errors, statistics objects.
CREATE FUNCTION eqmod(int, int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 % 10 = $2 % 10';
CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = eqmod, COMMUTATOR = ===, RESTRICT = eqsel);
SELECT 11 === 21, 11 === 22, 1 OPERATOR(public.===) 11;
SELECT 'a' === 'b';
CREATE OPERATOR CLASS oc FOR TYPE int USING btree AS OPERATOR 1 <, FUNCTION 1 btint4cmp(int, int);
CREATE CAST (int AS bool) WITH INOUT;
CREATE STATISTICS s (ndistinct, mcv) ON relname, relkind FROM pg_class;
CREATE TABLE t (a int, b int);
CREATE STATISTICS s (ndistinct, mcv) ON a, b FROM t;
ALTER STATISTICS s SET STATISTICS 10;
INSERT INTO t SELECT i % 5, i % 5 FROM generate_series(1, 100) i;
ANALYZE t;
SELECT stxname, stxkind FROM pg_statistic_ext WHERE stxname = 's';
DROP STATISTICS s;
CREATE ACCESS METHOD am TYPE TABLE HANDLER nosuch;
SELECT OPERATOR(pg_catalog.-) 5, 2 OPERATOR(pg_catalog.+) 3, 5 = ANY ('{1,5}'), ROW(1, 2) < ROW(1, 3), ROW(1, 2) = (SELECT 1, 2);
SELECT 1 + 2 * 3 - 4 / 2 % 3, NOT true = false, 1 BETWEEN 0 AND 2, 1 BETWEEN SYMMETRIC 2 AND 0, 'a' IS NOT DISTINCT FROM 'a', 1 <> 2, 1 != 2, true IS UNKNOWN, 2 ^ 3 ^ 2;
DROP OPERATOR === (int, int);
