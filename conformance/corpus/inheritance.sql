-- Inheritance: ONLY, column merging, dropping.
CREATE TABLE city (name text, pop int); CREATE TABLE capital (country text) INHERITS (city);
INSERT INTO city VALUES ('a', 1); INSERT INTO capital VALUES ('b', 2, 'B');
SELECT * FROM city ORDER BY name;
SELECT * FROM ONLY city;
UPDATE city SET pop = pop + 1;
ALTER TABLE city ADD COLUMN mayor text DEFAULT 'm';
SELECT * FROM capital;
ALTER TABLE capital DROP COLUMN mayor;
CREATE TABLE twice (pop bigint) INHERITS (city);
CREATE TABLE both (pop int) INHERITS (city);
ALTER TABLE both NO INHERIT city;
DROP TABLE city;
DROP TABLE city CASCADE;
SELECT * FROM both;
