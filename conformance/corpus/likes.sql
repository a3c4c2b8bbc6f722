-- CREATE TABLE in its forms: LIKE, OF, options, IF NOT EXISTS, unlogged, storage, typed tables.
CREATE TABLE src (id int PRIMARY KEY, v text DEFAULT 'd' NOT NULL CHECK (v <> ''), g int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE l1 (LIKE src); CREATE TABLE l2 (LIKE src INCLUDING ALL); CREATE TABLE l3 (LIKE src INCLUDING DEFAULTS EXCLUDING CONSTRAINTS, extra int);
\d l1
\d l2
\d l3
CREATE TABLE IF NOT EXISTS src (x int);
CREATE TABLE src (x int);
CREATE TYPE ct AS (a int, b text); CREATE TABLE typed OF ct (a PRIMARY KEY); INSERT INTO typed VALUES (1, 'x'); ALTER TABLE typed ADD c int; ALTER TYPE ct ADD ATTRIBUTE c int CASCADE; SELECT * FROM typed;
CREATE UNLOGGED TABLE ul (i int) WITH (fillfactor = 50, autovacuum_enabled = off);
CREATE TABLE (i int);
CREATE TABLE e ();
CREATE TABLE bad (i int) WITH (nosuch = 1);
CREATE TABLE st (a text STORAGE EXTERNAL, b text COMPRESSION pglz);
CREATE TABLE ts (i int) TABLESPACE nosuch;
CREATE TABLE dup (i int PRIMARY KEY, j int PRIMARY KEY);
CREATE LOCAL TEMP TABLE lt (i int); CREATE GLOBAL TEMPORARY TABLE gt (i int);
SELECT relname, relpersistence FROM pg_class WHERE relname IN ('ul', 'lt', 'gt', 'e') ORDER BY 1;
