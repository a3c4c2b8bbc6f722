-- XML functions where built in, hashing, random with a seed, uuid, bit strings, system functions.
SELECT xmlelement(name a, xmlattributes(1 AS x), 'text'), xmlforest(1 AS one), xmlconcat('<a/>', '<b/>'), xml_is_well_formed('<a>');
SELECT xpath('/a/text()', '<a>t</a>'); SELECT * FROM xmltable('/r/i' PASSING '<r><i n="1"/><i n="2"/></r>' COLUMNS n int PATH '@n');
SELECT query_to_xml('SELECT 1 AS a', true, false, '');
SELECT hashtext('a'), md5(''), encode(sha512('x'), 'hex'), crc32('abc'), length(gen_random_uuid()::text), uuid_extract_version(uuidv7());
SELECT setseed(0.3); SELECT random() BETWEEN 0 AND 1, random(1, 1);
SELECT B'1010' & B'0110', B'1' << 1, bit_count(B'111'), get_bit(B'101', 1), set_byte('\x00', 0, 5), bit_length('ab'), B'10'::int, 5::bit(8);
SELECT current_setting('server_version_num')::int >= 150000, pg_collation_actual_version(100) IS NULL, to_hex(-1), parse_ident('a."B"'), num_nulls(1, NULL), num_nonnulls(1, NULL);
SELECT pg_input_is_valid('x', 'int4'); SELECT * FROM pg_input_error_info('x', 'int4');
SELECT string_agg(chr(i), '') FROM generate_series(33, 126) i; SELECT any_value(x) FROM (VALUES (1)) t (x); SELECT array_sample(ARRAY[1], 1), array_shuffle(ARRAY[1]), array_sort(ARRAY[3, 1]), array_reverse(ARRAY[1, 2]);
