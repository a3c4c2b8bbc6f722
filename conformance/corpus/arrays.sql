-- Arrays: constructors, slices, operators, unnest, aggregates, errors.
SELECT ARRAY[1,2,3], ARRAY[[1,2],[3,4]], '{a,"b c",NULL,"q\"q"}'::text[], '[2:4]={7,8,9}'::int[];
SELECT (ARRAY[1,2,3,4])[2:3], (ARRAY[[1,2],[3,4]])[2][1], array_dims('[2:4]={7,8,9}'::int[]), array_upper(ARRAY[1,2], 1);
SELECT ARRAY[1,2] || 3, 0 || ARRAY[1], ARRAY[1] || ARRAY[2,3], array_append(ARRAY[1], NULL), array_remove(ARRAY[1,2,1], 1);
SELECT ARRAY[1,2] @> ARRAY[2], ARRAY[1] <@ ARRAY[1,2], ARRAY[1,2] && ARRAY[3], 2 = ANY (ARRAY[1,2]), 2 < ALL (ARRAY[3,4]);
SELECT * FROM unnest(ARRAY[1,2], ARRAY['a','b','c']) WITH ORDINALITY AS t (n, s, o);
SELECT array_agg(i ORDER BY i DESC) FROM generate_series(1, 4) i;
SELECT array_to_string(ARRAY[1,NULL,3], ',', '*'), string_to_array('a,b,,c', ','), array_position(ARRAY['x','y'], 'y');
CREATE TABLE arr (id int PRIMARY KEY, tags text[] DEFAULT '{}', grid int[][]);
INSERT INTO arr VALUES (1, ARRAY['a','b'], '{{1,2},{3,4}}'), (2, DEFAULT, NULL);
UPDATE arr SET tags[4] = 'd' WHERE id = 1 RETURNING *;
UPDATE arr SET tags = array_cat(tags, '{e}') RETURNING id, cardinality(tags);
SELECT id, tags[1:2] FROM arr WHERE 'b' = ANY (tags);
SELECT '{1,2'::int[];
SELECT '{{1,2},{3}}'::int[];
SELECT ARRAY[1,'x'];
SELECT ARRAY[]; 
SELECT array_fill(7, ARRAY[2,2]), trim_array(ARRAY[1,2,3], 2);
