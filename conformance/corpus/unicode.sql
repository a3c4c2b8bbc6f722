-- Identifiers and texts outside of ASCII, quoting, reserved words, length limits.
CREATE TABLE "Größe 日本" ("ключ" int, "select" text, "a""b" int, "with space" int);
INSERT INTO "Größe 日本" VALUES (1, '😀', 2, 3);
SELECT * FROM "Größe 日本";
SELECT "ключ" AS "😀" FROM "Größe 日本" AS "日";
SELECT größe FROM "Größe 日本";
CREATE TABLE abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz (i int);
SELECT U&"d\0061t\+000061" FROM (SELECT 1 AS "data") s;
SELECT 1 AS select;
SELECT select FROM x;
CREATE TABLE user (i int);
SELECT length('😀'), octet_length('😀'), '😀' < '😁', E'\U0001F600', U&'\+01F600';
SELECT "";
SELECT 'a' AS "a", 'b' AS "A", 'c' AS A;
CREATE TABLE Mixed (Case_ int); SELECT case_ FROM MIXED; DROP TABLE mixed;
SELECT 'ſ' ILIKE 'S', lower('İ'), upper('ß');
