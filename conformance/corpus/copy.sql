-- COPY in and out, in a block and outside, with errors in the middle.
CREATE TABLE c (i int, t text);
COPY c FROM STDIN;
1	one
2	two
\.
COPY c (t, i) FROM STDIN (FORMAT csv, HEADER);
t,i
"three, with comma",3
\.
COPY c TO STDOUT;
COPY (SELECT i * 10 FROM c ORDER BY i) TO STDOUT (FORMAT csv);
COPY c FROM STDIN;
4	four
bad	row
5	five
\.
BEGIN;
COPY c FROM STDIN;
6	six
\.
SELECT count(*) FROM c;
ROLLBACK;
SELECT count(*) FROM c;
\copy c FROM PROGRAM 'printf "7\tseven\n8\teight\n"'
\copy (SELECT * FROM c ORDER BY i) TO STDOUT
COPY nowhere FROM STDIN;
COPY c FROM STDIN (FORMAT nonsense);
SELECT * FROM c ORDER BY i;
