-- NULL in comparisons, aggregates, ordering and psql's display of it.
\pset null '<null>'
SELECT NULL, NULL = NULL, NULL IS NULL, 1 IS DISTINCT FROM NULL, coalesce(NULL, 2), nullif(1, 1), greatest(1, NULL, 3), NULL OR true, NULL AND false;
SELECT count(*), count(x), sum(x), avg(x), min(x), array_agg(x) FROM (VALUES (1), (NULL), (3)) t (x);
SELECT x FROM (VALUES (1), (NULL), (3)) t (x) ORDER BY x;
SELECT x FROM (VALUES (1), (NULL), (3)) t (x) ORDER BY x DESC NULLS LAST;
SELECT 1 WHERE NULL;
SELECT 1 NOT IN (2, NULL), 1 IN (1, NULL), ROW(1, NULL) IS NULL, ROW(NULL, NULL) IS NULL, ROW(1, NULL) IS NOT NULL;
CREATE TABLE uniq (a int, b int, UNIQUE NULLS NOT DISTINCT (a, b));
INSERT INTO uniq VALUES (1, NULL);
INSERT INTO uniq VALUES (1, NULL);
CREATE TABLE nn (a int NOT NULL, b text);
INSERT INTO nn (b) VALUES ('x');
ALTER TABLE nn ALTER a DROP NOT NULL;
INSERT INTO nn (b) VALUES ('x') RETURNING *;
ALTER TABLE nn ALTER a SET NOT NULL;
