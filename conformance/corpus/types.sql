-- Types and their output.
SELECT 1::smallint, 2::int, 3::bigint, 1.50::numeric, 1e10::float8, 'NaN'::float4, 'Infinity'::float8;
SELECT true, 'text', 'c'::char(3), 'v'::varchar(2), E'tab\tnewline\n', U&'\0041';
SELECT date '2026-02-28', time '12:34:56', timestamp '2026-01-01', interval '1 day 2 hours', timestamptz '2026-01-01 00:00Z';
SELECT '\xdeadbeef'::bytea, B'101', X'ff';
SELECT ARRAY[1, 2, NULL], '{{a,b},{c,d}}'::text[], ARRAY[]::int[];
SELECT '{"a": [1, {"b": null}]}'::jsonb, '{"a":1,"a":2}'::json, jsonb_path_query('[1,2]', '$[*]');
SELECT '10.0.0.0/8'::inet, '08:00:2b:01:02:03'::macaddr, 'f47ac10b-58cc-4372-a567-0e02b2c3d479'::uuid;
SELECT int4range(1, 5), '[2026-01-01,2026-02-01)'::daterange, '{[1,3),[5,7)}'::int4multirange;
SELECT point(1, 2), box '(1,1),(0,0)', '(1,2)'::point <-> '(4,6)'::point;
SELECT 'a fat cat'::tsvector, 'fat & !dog'::tsquery, xmlparse(CONTENT '<a>b</a>');
SELECT row(1, 'a', NULL), (row(1, 2)).*;
SELECT NULL, NULL::int, COALESCE(NULL, 'x');
SELECT 'ünïcödé ✓ 漢字', length('漢字'), 'x' COLLATE "C" < 'y';
\x on
SELECT 1 AS one, 'two' AS "Two; three";
\x off
SELECT generate_series(1, 3) AS n, repeat('-', 5);
\gdesc
SELECT 1 AS a, 'b' AS b \gset
SELECT :a, :'b';
