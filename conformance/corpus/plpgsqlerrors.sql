-- plpgsql: errors with context, exceptions, diagnostics, asserts, dynamic SQL, cursors.
\set SHOW_CONTEXT always
CREATE FUNCTION deep(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  IF n = 0 THEN
    RETURN 1 / n;
  END IF;
  RETURN deep(n - 1);
END $$;
SELECT deep(2);
CREATE FUNCTION diag() RETURNS text LANGUAGE plpgsql AS $$ DECLARE st text; ms text; ct text; BEGIN PERFORM deep(1); EXCEPTION WHEN OTHERS THEN GET STACKED DIAGNOSTICS st = RETURNED_SQLSTATE, ms = MESSAGE_TEXT, ct = PG_EXCEPTION_CONTEXT; RETURN st || '|' || ms || '|' || ct; END $$;
SELECT diag();
DO $$ BEGIN RAISE DEBUG 'd'; RAISE LOG 'l'; RAISE INFO 'i'; RAISE NOTICE 'n %', 1; RAISE WARNING 'w'; END $$;
SET client_min_messages = 'error';
DO $$ BEGIN RAISE NOTICE 'unseen'; RAISE WARNING 'unseen'; END $$;
SET client_min_messages = 'debug1';
DO $$ BEGIN RAISE DEBUG 'seen'; END $$;
RESET client_min_messages;
DO $$ BEGIN ASSERT 1 = 2, 'not equal'; END $$;
DO $$ BEGIN EXECUTE 'SELECT nosuch' ; END $$;
DO $$ DECLARE v text; BEGIN EXECUTE format('SELECT %L || $1', 'a') INTO v USING 'b'; RAISE NOTICE '%', v; END $$;
DO $$ DECLARE n int; BEGIN SELECT i INTO STRICT n FROM generate_series(1, 2) i; END $$;
DO $$ DECLARE n int; BEGIN SELECT 1 INTO STRICT n WHERE false; END $$;
DO $$ BEGIN RAISE unique_violation USING MESSAGE = 'mine', COLUMN = 'c', CONSTRAINT = 'k', DATATYPE = 'd', SCHEMA = 's'; END $$;
DO $$ BEGIN RAISE SQLSTATE 'AB123'; END $$;
DO $$ BEGIN BEGIN RAISE EXCEPTION 'inner'; EXCEPTION WHEN raise_exception THEN RAISE; END; END $$;
DO $$ DECLARE c CURSOR (k int) FOR SELECT generate_series(1, k); v int; BEGIN OPEN c (3); FETCH c INTO v; RAISE NOTICE 'first %', v; MOVE c; FETCH c INTO v; RAISE NOTICE 'third %', v; CLOSE c; END $$;
DO $$ <<lab>> DECLARE i int := 0; BEGIN LOOP i := i + 1; CONTINUE WHEN i = 2; EXIT lab WHEN i > 3; RAISE NOTICE '%', i; END LOOP; END $$;
DO $$ DECLARE r record; n int; BEGIN CREATE TEMP TABLE tt AS SELECT 1 AS a; UPDATE tt SET a = 2; GET DIAGNOSTICS n = ROW_COUNT; RAISE NOTICE '% %', n, FOUND; FOREACH n IN ARRAY ARRAY[7, 8] LOOP RAISE NOTICE '%', n; END LOOP; END $$;
DO $$ BEGIN syntax error here; END $$;
CREATE FUNCTION noret() RETURNS int LANGUAGE plpgsql AS $$ BEGIN END $$;
SELECT noret();
CREATE FUNCTION setof() RETURNS SETOF int LANGUAGE plpgsql AS $$ BEGIN RETURN NEXT 1; RETURN QUERY SELECT 2; RETURN QUERY EXECUTE 'SELECT 3'; END $$;
SELECT * FROM setof();
SELECT * FROM nosuch_in_sql(1);
