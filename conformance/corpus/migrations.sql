-- What a migration tool does: a lock, a table of versions, each step in its block, one concurrently, one that fails.
SELECT pg_advisory_lock(72707369);
CREATE TABLE IF NOT EXISTS schema_migrations (version bigint PRIMARY KEY, dirty boolean NOT NULL, applied timestamptz DEFAULT '2026-11-29');
BEGIN; CREATE TABLE account (id bigserial PRIMARY KEY, email text NOT NULL); INSERT INTO schema_migrations (version, dirty) VALUES (1, false); COMMIT;
BEGIN; ALTER TABLE account ADD COLUMN name text; UPDATE account SET name = email; ALTER TABLE account ALTER name SET DEFAULT ''; INSERT INTO schema_migrations (version, dirty) VALUES (2, false); COMMIT;
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS account_email ON account (email); INSERT INTO schema_migrations (version, dirty) VALUES (3, false);
BEGIN; INSERT INTO schema_migrations (version, dirty) VALUES (4, true); ALTER TABLE account ADD COLUMN name text; INSERT INTO schema_migrations (version, dirty) VALUES (4, false); COMMIT;
BEGIN; TRUNCATE schema_migrations; INSERT INTO schema_migrations (version, dirty) VALUES (3, false); COMMIT;
SELECT version, dirty FROM schema_migrations ORDER BY 1;
SELECT current_database() = current_catalog, current_schema(); SELECT count(1) FROM information_schema.tables WHERE table_schema = current_schema() AND table_name = 'schema_migrations';
SELECT pg_advisory_unlock(72707369);
\d account
