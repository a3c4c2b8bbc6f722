-- RETURNING in every statement, with expressions, old and new, empty results, tags.
CREATE TABLE r (id serial PRIMARY KEY, v int);
INSERT INTO r (v) SELECT i FROM generate_series(1, 3) i RETURNING id, v * 2 AS d, 'c' AS c;
UPDATE r SET v = v + 1 WHERE v > 1 RETURNING r.*, tableoid::regclass;
UPDATE r SET v = 0 WHERE false RETURNING *;
DELETE FROM r WHERE id = 1 RETURNING old.v;
DELETE FROM r WHERE id = 2 RETURNING *;
UPDATE r SET v = 100 RETURNING old.v, new.v;
INSERT INTO r (v) VALUES (1) RETURNING nosuch;
INSERT INTO r (v) VALUES (5), (6);
UPDATE r SET v = 7;
DELETE FROM r;
INSERT INTO r SELECT WHERE false;
\gset none_
INSERT INTO r (v) VALUES (42) RETURNING v AS kept \gset
\echo :kept
