-- Geometric, network and other types with their own output.
SELECT point '(1,2)', lseg '[(0,0),(1,1)]', box '(2,2),(0,0)', path '((0,0),(1,0),(1,1))', polygon '((0,0),(1,0),(1,1))', circle '<(1,1),2>', line '{1,-1,0}';
SELECT point '(1,1)' <-> point '(4,5)', box '(2,2),(0,0)' && box '(3,3),(1,1)', area(box '(2,2),(0,0)'), center(circle '<(1,1),2>'), point '(1,1)' <@ circle '<(0,0),2>';
SELECT inet '192.168.1.5/24', cidr '10.0.0.0/8', macaddr '08:00:2b:01:02:03', inet '::1', host(inet '10.1.2.3/8'), network(inet '10.1.2.3/8'), inet '10.1.2.3' << cidr '10.0.0.0/8', masklen('10.0.0.0/8');
SELECT cidr '10.0.0.1/8';
SELECT '11111111-2222-3333-4444-555555555555'::uuid, 'zzz'::uuid;
SELECT '16/B374D848'::pg_lsn - '16/B374D800'::pg_lsn, '10:20:10,14,15'::pg_snapshot, '(0,1)'::tid;
SELECT '<a x="1">t</a>'::xml;
SELECT 'a fat cat'::tsvector, 'fat & (rat | cat)'::tsquery, 'pg_class'::regclass, 'int4'::regtype, 'now'::regproc, 'abs(int)'::regprocedure;
SELECT 'nosuchtable'::regclass;
SELECT true, 'yes'::bool, 'off'::bool, 'maybe'::bool;
SELECT '\x00ff'::bytea, 'a\\001b'::bytea, '\xzz'::bytea;
SET bytea_output = 'escape';
SELECT '\x00ff41'::bytea;
SELECT ROW(1, 'a b', NULL, '(x)'), ROW(ROW(1, 2), 3);
