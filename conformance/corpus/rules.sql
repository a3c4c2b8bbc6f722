-- Rules and views that can and cannot be written.
CREATE TABLE base (id int, v text, hidden bool DEFAULT false);
CREATE VIEW vis AS SELECT id, v FROM base WHERE NOT hidden;
INSERT INTO vis VALUES (1, 'a');
UPDATE vis SET v = 'b' WHERE id = 1 RETURNING *;
CREATE VIEW agg AS SELECT count(*) AS n FROM base;
INSERT INTO agg VALUES (1);
UPDATE agg SET n = 1;
CREATE RULE agg_ins AS ON INSERT TO agg DO INSTEAD INSERT INTO base (id) VALUES (NEW.n);
INSERT INTO agg VALUES (42);
SELECT * FROM base ORDER BY id;
CREATE RULE noop AS ON DELETE TO base DO INSTEAD NOTHING;
DELETE FROM base;
SELECT * FROM agg;
CREATE TABLE hist (id int, was text);
CREATE RULE keep AS ON UPDATE TO base DO ALSO INSERT INTO hist VALUES (OLD.id, OLD.v);
UPDATE base SET v = 'c';
SELECT * FROM hist ORDER BY id;
CREATE RULE tell AS ON UPDATE TO hist DO ALSO NOTIFY hist_changed;
UPDATE hist SET was = 'x';
CREATE OR REPLACE VIEW vis AS SELECT id, v, hidden FROM base;
CREATE OR REPLACE VIEW vis AS SELECT id FROM base;
CREATE VIEW sec WITH (security_barrier, security_invoker) AS SELECT * FROM base;
\d+ sec
CREATE RECURSIVE VIEW nums (n) AS VALUES (1) UNION ALL SELECT n + 1 FROM nums WHERE n < 4;
SELECT * FROM nums;
DROP RULE noop ON base;
DROP TABLE base;
DROP TABLE base CASCADE;
