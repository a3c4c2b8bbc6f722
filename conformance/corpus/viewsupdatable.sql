-- Views over views, check options, instead-of rules, columns renamed, dependencies.
CREATE TABLE t (i int, v text); CREATE VIEW v1 AS SELECT i AS id, v AS name FROM t WHERE i < 100; CREATE VIEW v2 AS SELECT * FROM v1 WHERE id > 0 WITH LOCAL CHECK OPTION; CREATE VIEW v3 AS SELECT * FROM v1 WHERE id > 0 WITH CASCADED CHECK OPTION;
INSERT INTO v2 VALUES (1, 'a'), (500, 'outside of v1'); INSERT INTO v2 VALUES (-1, 'x'); INSERT INTO v3 VALUES (500, 'x');
SELECT * FROM t ORDER BY i;
UPDATE v1 SET id = id + 1, name = upper(name) RETURNING *;
DELETE FROM v3 WHERE id = 2 RETURNING *;
INSERT INTO v1 VALUES (5, 'up') ON CONFLICT DO NOTHING;
ALTER VIEW v1 RENAME COLUMN name TO label; SELECT * FROM v2 LIMIT 0;
ALTER VIEW v1 SET (check_option = local); \d+ v1
SELECT table_name, is_updatable, check_option FROM information_schema.views WHERE table_schema = 'public' ORDER BY 1;
CREATE VIEW joined AS SELECT a.i FROM t a JOIN t b USING (i); UPDATE joined SET i = 1;
ALTER TABLE t DROP COLUMN v; ALTER TABLE t ALTER i TYPE bigint; DROP VIEW v1;
CREATE VIEW v4 AS SELECT nosuch; CREATE VIEW v1 AS SELECT 1;
