-- MERGE: every action, conditions, errors, returning where the version has it.
CREATE TABLE tgt (id int PRIMARY KEY, n int, note text); CREATE TABLE src (id int, d int);
INSERT INTO tgt VALUES (1, 10, ''), (2, 20, ''), (3, 30, ''); INSERT INTO src VALUES (1, 1), (2, -20), (4, 4);
MERGE INTO tgt t USING src s ON t.id = s.id WHEN MATCHED AND t.n + s.d = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET n = t.n + s.d WHEN NOT MATCHED AND s.d > 100 THEN DO NOTHING WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.d, 'new');
SELECT * FROM tgt ORDER BY id;
MERGE INTO tgt t USING (VALUES (1), (1)) s (id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = 0;
MERGE INTO tgt t USING src s ON t.id = s.id WHEN MATCHED THEN UPDATE SET nosuch = 1;
MERGE INTO tgt t USING src s ON t.id = s.id WHEN NOT MATCHED BY SOURCE THEN UPDATE SET note = 'orphan';
MERGE INTO tgt t USING src s ON t.id = s.id WHEN MATCHED THEN UPDATE SET note = 'm' RETURNING merge_action(), t.*;
SELECT * FROM tgt ORDER BY id;
WITH s AS (SELECT 77 AS id) MERGE INTO tgt USING s ON tgt.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id);
BEGIN READ ONLY;
MERGE INTO tgt t USING src s ON t.id = s.id WHEN MATCHED THEN DELETE;
ROLLBACK;
EXPLAIN (COSTS OFF) MERGE INTO tgt t USING src s ON t.id = s.id WHEN MATCHED THEN DELETE;
