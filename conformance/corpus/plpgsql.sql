-- Functions, procedures, DO, dollar quotes with statements inside.
CREATE TABLE log (at serial, line text);
CREATE FUNCTION note(text) RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
  INSERT INTO log (line) VALUES ($1 || '; COMMIT; -- not a statement');
  RAISE NOTICE 'noted %', $1;
END
$body$;
SELECT note('a');
DO $$ BEGIN PERFORM note('b'); PERFORM note('c'); END $$;
DO $$ DECLARE i int; BEGIN FOR i IN 1..3 LOOP INSERT INTO log (line) VALUES ('loop ' || i); END LOOP; END $$;
CREATE PROCEDURE add_two(a text, INOUT n int) LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log (line) VALUES (a), (a); n := n + 2; END $$;
CALL add_two('proc', 40);
CREATE FUNCTION atomic_body() RETURNS bigint LANGUAGE sql
BEGIN ATOMIC
  INSERT INTO log (line) VALUES ('atomic; one');
  SELECT CASE WHEN true THEN count(*) ELSE 0 END FROM log;
END;
SELECT atomic_body();
CREATE FUNCTION caught() RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM 1/0; RETURN 'no'; EXCEPTION WHEN division_by_zero THEN INSERT INTO log (line) VALUES ('caught'); RETURN 'caught'; END $$;
SELECT caught();
CREATE FUNCTION many() RETURNS SETOF log LANGUAGE sql AS 'SELECT * FROM log ORDER BY at';
SELECT * FROM many();
CREATE FUNCTION trig() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.line := upper(NEW.line); RETURN NEW; END $$;
CREATE TRIGGER up BEFORE INSERT ON log FOR EACH ROW EXECUTE FUNCTION trig();
INSERT INTO log (line) VALUES ('shout') RETURNING *;
