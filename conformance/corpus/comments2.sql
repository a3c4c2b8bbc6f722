-- COMMENT ON of many kinds, and how they are shown.
CREATE TABLE t (i int CONSTRAINT pos CHECK (i > 0)); CREATE VIEW v AS SELECT 1 AS x; CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE INDEX ix ON t (i); CREATE SEQUENCE s;
COMMENT ON TABLE t IS 'table; with -- odd /* text */';
COMMENT ON COLUMN t.i IS E'multi\nline';
COMMENT ON CONSTRAINT pos ON t IS 'c'; COMMENT ON VIEW v IS 'v'; COMMENT ON FUNCTION f() IS 'f'; COMMENT ON INDEX ix IS 'ix'; COMMENT ON SEQUENCE s IS 's'; COMMENT ON SCHEMA public IS 'p';
SELECT obj_description('t'::regclass), col_description('t'::regclass, 1), obj_description('f()'::regprocedure);
COMMENT ON TABLE t IS NULL;
SELECT obj_description('t'::regclass) IS NULL;
COMMENT ON TABLE nosuch IS 'x';
\d+ t
\dd pos
