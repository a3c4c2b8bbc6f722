-- Set-returning functions, in FROM and in the target list, with ordinality, tablesample, generate_series of kinds.
SELECT generate_series(1, 3), generate_series(1, 2);
SELECT * FROM generate_series(5, 1, -2) WITH ORDINALITY;
SELECT * FROM generate_series(timestamp '2026-01-01', '2026-01-01 02:00', '1 hour');
SELECT generate_series(1, 3, 0);
SELECT * FROM regexp_split_to_table('a,b', ',') AS x (v);
SELECT i, unnest(ARRAY['a','b']) FROM generate_series(1, 2) i;
SELECT * FROM string_to_table('x|y', '|'), generate_subscripts(ARRAY[7,8], 1);
SELECT CASE WHEN true THEN generate_series(1, 2) END;
SELECT max(generate_series(1, 3));
SELECT * FROM pg_options_to_table(ARRAY['a=1']);
CREATE TABLE t AS SELECT generate_series(1, 1000) AS i;
SELECT count(*) FROM t TABLESAMPLE SYSTEM (100);
SELECT count(*) < 1000 FROM t TABLESAMPLE BERNOULLI (10) REPEATABLE (1);
SELECT count(*) FROM t TABLESAMPLE nosuch (1);
SELECT sum(i) FROM (SELECT i FROM t ORDER BY i LIMIT 10 OFFSET 5) s;
SELECT string_agg(i::text, ',') FROM generate_series(1, 400) i;
SELECT repeat('long ', 2000);
SELECT i, repeat('x', i) FROM generate_series(0, 60, 20) i;
