-- psql's reconnect, single-step things, variables in SQL, query buffers, watch once, crosstab, pset formats.
SELECT 1 AS one
\g
SELECT 2 AS two \gdesc
SELECT nosuch \gdesc
\c -
SELECT 'reconnected';
CREATE TABLE k (a text, b int);
INSERT INTO k VALUES ('x', 1), ('y', 2);
\x on
SELECT * FROM k;
\x off
\pset format csv
SELECT * FROM k;
\pset format html
SELECT * FROM k;
\pset format unaligned
SELECT * FROM k;
\pset format aligned
\pset border 2
SELECT * FROM k;
\pset tuples_only on
SELECT * FROM k;
\pset tuples_only off
\set v 'it''s'
SELECT :'v', :"v", :v;
SELECT 1 \; SELECT 2 \g
\p
\r
SELECT a FROM k \g (format=csv)
SELECT * FROM k WHERE b = $1 \bind 2 \g
\encoding
\timing off
\set ECHO_HIDDEN off
SELECT count(*) AS n FROM k \gset pre_
\echo :pre_n
\copyright_is_left_out
\qecho to output
\warn to error
\! echo shell
\set FETCH_COUNT 1
SELECT * FROM k ORDER BY b;
SELECT 1 / (b - 2) FROM k ORDER BY b;
