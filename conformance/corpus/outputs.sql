-- Output of wide, empty, multi-line and zero-column results, in expanded and aligned forms.
SELECT 'a' AS "multi
line", E'one\ntwo' AS v, 1.50 AS n;
\x
SELECT E'one\ntwo' AS v, NULL AS nothing;
SELECT 1 WHERE false;
\x auto
SELECT repeat('w', 150) AS wide, repeat('x', 60) AS wider;
\x off
SELECT 1 WHERE false;
SELECT FROM generate_series(1, 2);
\a
SELECT 1, 'two', NULL;
\t
SELECT 1, 'two';
\a
\t
\pset linestyle unicode
\pset border 2
SELECT 'ä日' AS c, -1 AS d;
\pset null '(null)'
\pset numericlocale off
\pset footer off
SELECT 1234567.891, NULL;
\pset format wrapped
\pset columns 40
SELECT repeat('wrap me ', 12) AS w;
\pset format asciidoc
SELECT 1 AS a;
\pset format latex
SELECT 1 AS a, '_' AS b;
\pset fieldsep ';'
\pset format unaligned
SELECT 1, 2;
\C 'a title'
SELECT 3;
