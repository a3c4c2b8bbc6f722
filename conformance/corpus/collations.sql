-- Collations: explicit, on columns, conflicts, own ones, nondeterministic.
CREATE TABLE t (c text COLLATE "C", p text COLLATE "POSIX", d text);
INSERT INTO t VALUES ('b', 'b', 'b'), ('A', 'A', 'A'), ('ä', 'ä', 'ä');
SELECT c FROM t ORDER BY c;
SELECT c FROM t ORDER BY c COLLATE "POSIX" DESC;
SELECT * FROM t WHERE c < p;
SELECT c || p AS x FROM t ORDER BY x;
SELECT collation FOR (c), collation FOR ('x'), pg_collation_for(d) FROM t LIMIT 1;
CREATE COLLATION mine (LOCALE = 'C');
SELECT 'a' < 'B' COLLATE mine;
CREATE COLLATION ci (PROVIDER = icu, LOCALE = 'und-u-ks-level2', DETERMINISTIC = false);
SELECT 'a' = 'A' COLLATE ci;
ALTER COLLATION mine RENAME TO yours;
ALTER TABLE t ALTER d TYPE text COLLATE yours;
DROP COLLATION yours;
CREATE INDEX ON t (d COLLATE "C" text_pattern_ops);
SELECT initcap('éa' COLLATE "C"), upper('é' COLLATE "C");
