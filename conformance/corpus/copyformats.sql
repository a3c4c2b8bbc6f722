-- COPY: formats, options, encodings, defaults, partial columns, views, errors with their line.
CREATE TABLE c (id int, t text, n numeric);
COPY c FROM STDIN WITH (FORMAT csv, DELIMITER ';', QUOTE '''', NULL 'nil', HEADER true);
id;t;n
1;'a;b';1.5
2;nil;nil
3;'it''s';3
\.
COPY c TO STDOUT WITH (FORMAT csv, FORCE_QUOTE *, HEADER);
COPY c (t) TO STDOUT WITH (NULL '<>');
COPY c TO STDOUT (DELIMITER '|');
COPY c FROM STDIN;
4	tab\there	4
5	new\nline	\N
6	back\\slash	6
7	\u00e4\x41\101	7
\.
SELECT * FROM c WHERE id > 3 ORDER BY id;
COPY c FROM STDIN (FREEZE);
8	x	1
\.
COPY c (id, id) FROM STDIN;
COPY c (nosuch) FROM STDIN;
COPY c FROM STDIN;
9	too few
\.
COPY c FROM STDIN;
9	too	1	many
\.
COPY c FROM STDIN;
9	bad	xx
\.
COPY c FROM STDIN (FORMAT csv);
10,"unterminated
\.
COPY c FROM STDIN WHERE id > 100;
50	no	1
150	yes	1
\.
SELECT id FROM c WHERE id >= 50;
COPY c FROM STDIN (HEADER match);
id	t	wrong
1	a	1
\.
COPY (SELECT 1, 'two', NULL) TO STDOUT;
COPY (INSERT INTO c VALUES (200, 'ret', 0) RETURNING id) TO STDOUT;
COPY (SELECT nosuch) TO STDOUT;
COPY c TO STDOUT (ENCODING 'LATIN1', FORMAT text, HEADER);
COPY c FROM '/etc/passwd';
COPY c TO PROGRAM 'cat';
CREATE VIEW cv AS SELECT * FROM c;
COPY cv TO STDOUT;
BEGIN READ ONLY;
COPY c FROM STDIN;
300	ro	1
\.
COMMIT;
BEGIN;
COPY c FROM STDIN;
400	in block	1
\.
COPY (SELECT count(*) FROM c WHERE id = 400) TO STDOUT;
ROLLBACK;
\copy c (id, t) from stdin csv
500,"via psql"
\.
\copy (select id, t from c where id = 500) to stdout csv header
COPY c FROM STDIN (ON_ERROR ignore);
600	ok	1
bad	row	1
\.
SELECT count(*) FROM c;
SELECT 1\; COPY (SELECT 2) TO STDOUT\; SELECT 3;
