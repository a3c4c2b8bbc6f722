-- Ranges and multiranges, exclusion constraints, their operators and canonical forms.
SELECT '[1,5)'::int4range, '(1,5]'::int4range, 'empty'::int4range, '[2026-01-01,2026-02-01]'::daterange, '[1.5,2.5]'::numrange;
SELECT int4range(1, 5) @> 3, int4range(1, 5) && int4range(5, 9), int4range(1, 5) -|- int4range(5, 9), int4range(1, 5) + int4range(5, 9), int4range(1, 9) * int4range(5, 20), int4range(1, 9) - int4range(5, 20);
SELECT lower(int4range(1, 5)), upper(int4range(1, 5)), lower_inc('(1,2)'::numrange), isempty('(1,1)'::numrange), upper_inf('[1,)'::int4range);
SELECT '{[1,3),[5,9)}'::int4multirange, int4multirange(int4range(1, 3), int4range(2, 6)), unnest('{[1,3),[5,9)}'::int4multirange);
SELECT range_merge(int4range(1, 2), int4range(8, 9)), range_agg(r) FROM (VALUES (int4range(1, 3)), (int4range(3, 6))) t (r);
SELECT '[5,1)'::int4range;
SELECT int4range(1, 3) - int4range(2, 3), int4range(1, 9) - int4range(3, 4);
CREATE TABLE booking (during tsrange, EXCLUDE USING gist (during WITH &&));
INSERT INTO booking VALUES ('[2026-01-01 10:00, 2026-01-01 11:00)');
INSERT INTO booking VALUES ('[2026-01-01 10:30, 2026-01-01 12:00)');
INSERT INTO booking VALUES ('[2026-01-01 11:00, 2026-01-01 12:00)') RETURNING during;
SELECT count(*) FROM booking WHERE during @> timestamp '2026-01-01 11:30';
CREATE TYPE floatrange AS RANGE (subtype = float8, subtype_diff = float8mi);
SELECT floatrange(1.5, 2.5), '[1,2]'::floatrange && '[2,3]'::floatrange;
