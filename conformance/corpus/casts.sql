-- Casts, implicit and explicit, unknown literals, polymorphic resolution.
SELECT 1::text, '1'::int + 1, CAST(1.7 AS int), 1.5::int, 2.5::int, 'true'::bool, 1::bool, 0::bool::int, '12'::varchar::int;
SELECT 'a'::char, 'abc'::char(2)::text, 65::"char", 'x'::name::text, '{1,2}'::text::int[], ARRAY['1','2']::int[];
SELECT 1 || 'a', 'a' || 1.5, 'a' || NULL, 1 = '1', '1' = 1.0;
SELECT '2026-11-29'::date::timestamp, now()::date = current_date, '1 day'::interval::text, 3600 * interval '1 second', '10:00'::time::interval;
SELECT int '5', float8 '1e3', interval '1' day, numeric(5,2) '1.239';
SELECT 'x'::text::int; SELECT 1::date; SELECT true + 1; SELECT '1'::json::int; SELECT '5'::jsonb::int;
SELECT pg_typeof(1), pg_typeof(1.0), pg_typeof('x'), pg_typeof(NULL), pg_typeof(ARRAY[1, 2.5]), pg_typeof(1 / 2.0), pg_typeof(CASE WHEN true THEN 1 ELSE 2.5 END);
SELECT coalesce(1, 'x'); SELECT greatest(1, '5'), least('a', 'b'); SELECT abs('-5'), length(12345::text);
SELECT 'pg_class'::regclass::oid = 1259, 1259::regclass, 'nosuch'::regtype;
