-- Errors with their positions, hints, contexts and details.
\set VERBOSITY verbose
\set SHOW_CONTEXT always
SELECT nosuch;
SELECT * FRM pg_class;
SELECT 'äöü', nosuch FROM pg_class;
INSERT INTO nowhere VALUES (1);
CREATE TABLE e (i int PRIMARY KEY, j int REFERENCES e, CONSTRAINT positive CHECK (j > 0));
INSERT INTO e VALUES (1, 1), (1, 1);
INSERT INTO e VALUES (2, 99);
INSERT INTO e VALUES (3, -1);
INSERT INTO e (i) VALUES (NULL);
SELECT 1/0;
SELECT 'x'::int;
SELECT sum();
SELECT 'a' || 1 + 2;
DO $$
BEGIN
  RAISE EXCEPTION 'mine' USING ERRCODE = 'P1234', DETAIL = 'more', HINT = 'do', TABLE = 'e';
END $$;
CREATE FUNCTION bad() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN nosuch; END $$;
SELECT bad();
CREATE FUNCTION worse() RETURNS int LANGUAGE sql AS 'SELECT nosuch';
SELECT 1 AS "unterminated;
";
SELECT $1;
VALUES (1), (2, 3);
