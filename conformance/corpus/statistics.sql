-- Statistics views and functions that an application asks, by facts that do not change.
CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 100); ANALYZE t;
SELECT attname, n_distinct, null_frac FROM pg_stats WHERE tablename = 't';
SELECT pg_relation_size('t') > 0, pg_total_relation_size('t') > pg_table_size('t'), pg_indexes_size('t') > 0, pg_size_bytes('1 MB');
SELECT state, backend_type FROM pg_stat_activity WHERE pid = pg_backend_pid();
SELECT count(*) FROM pg_stat_database WHERE datname = current_database();
SELECT relname, indexrelname FROM pg_stat_user_indexes WHERE relname = 't';
SELECT pg_stat_reset(); SELECT pg_stat_get_backend_pid(1) IS NOT NULL;
SELECT age(xmin) >= 0, xmax, cmin, tableoid::regclass FROM t WHERE i = 1;
SELECT pg_column_size(1), pg_column_size('abc'::text), pg_typeof(ctid) FROM t LIMIT 1;
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 't'::regclass;
SELECT txid_current() > 0, pg_current_wal_lsn() > '0/0', pg_xact_status(pg_current_xact_id());
SELECT pg_get_userbyid(10), pg_encoding_to_char(6), pg_client_encoding(), pg_postmaster_start_time() < now();
SELECT pg_export_snapshot() IS NOT NULL; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_export_snapshot() IS NOT NULL; COMMIT;
