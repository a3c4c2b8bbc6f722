-- Many rows and big values, by sums, so that the output stays small.
CREATE TABLE big (i int, v text);
INSERT INTO big SELECT i, repeat(chr(97 + i % 26), 200) FROM generate_series(1, 20000) i;
SELECT count(*), sum(length(v)), md5(string_agg(v, '' ORDER BY i)) FROM big;
SELECT md5(repeat('x', 5000000)), length(repeat('é', 1000000));
\o /dev/null
SELECT * FROM big;
SELECT repeat('long', 500000);
\o
\set FETCH_COUNT 1000
\o /dev/null
SELECT * FROM big;
\o
\unset FETCH_COUNT
COPY big TO PROGRAM 'cat > /dev/null';
\copy big to '/dev/null'
UPDATE big SET v = v || 'x' WHERE i % 2 = 0;
DELETE FROM big WHERE i % 3 = 0;
SELECT count(*), sum(length(v)) FROM big;
CREATE TABLE copied (LIKE big INCLUDING ALL);
INSERT INTO copied SELECT * FROM big;
SELECT count(*) FROM copied;
TRUNCATE big;
SELECT count(*) FROM big;
