-- psql's describe commands and the catalogs behind them.
CREATE SCHEMA ns;
CREATE TABLE ns.t (id int PRIMARY KEY, v text DEFAULT 'x' CHECK (v <> ''), w int REFERENCES ns.t);
CREATE INDEX tv ON ns.t (v);
CREATE VIEW ns.vw AS SELECT id FROM ns.t;
CREATE SEQUENCE ns.sq;
CREATE FUNCTION ns.fn(int) RETURNS int LANGUAGE sql AS 'SELECT $1';
CREATE TYPE ns.en AS ENUM ('a');
\d ns.t
\d+ ns.vw
\d ns.sq
\di ns.*
\dt ns.*
\ds ns.*
\dv ns.*
\df ns.*
\dT ns.*
\dn ns
\dO nosuch
\d nosuch
\sf ns.fn
\sv ns.vw
\dconfig search_path
\dx plpgsql
SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'ns' ORDER BY 1;
SELECT column_name, data_type, is_nullable FROM information_schema.columns WHERE table_schema = 'ns' AND table_name = 't' ORDER BY ordinal_position;
SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'ns.t'::regclass AND contype <> 'n' ORDER BY conname;
SELECT pg_get_indexdef('ns.tv'::regclass), pg_get_viewdef('ns.vw'), format_type(23, -1), obj_description('pg_class'::regclass);
SELECT relkind, count(*) FROM pg_class WHERE relnamespace = 'ns'::regnamespace GROUP BY 1 ORDER BY 1;
SELECT to_regclass('ns.t'), to_regclass('nosuch'), current_schema, current_schemas(false), current_database() = current_catalog;
SELECT pg_table_is_visible('ns.t'::regclass), has_column_privilege('ns.t', 'v', 'SELECT'), pg_size_pretty(1234567::bigint);
