-- The session's identity, role settings, SET ROLE inside blocks and functions.
SELECT current_user = session_user, current_role = user, pg_has_role(current_user, 'MEMBER');
BEGIN; SET LOCAL ROLE NONE; SELECT current_user = session_user; ROLLBACK;
SET ROLE nosuch; SET SESSION AUTHORIZATION nosuch;
CREATE FUNCTION who() RETURNS bool LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN RETURN current_user = session_user; END $$; SELECT who();
CREATE FUNCTION sr() RETURNS void LANGUAGE plpgsql AS $$ BEGIN SET LOCAL ROLE NONE; END $$; SELECT sr();
ALTER ROLE CURRENT_USER SET search_path = 'x'; ALTER ROLE CURRENT_USER RESET search_path;
ALTER ROLE CURRENT_USER CREATEDB; ALTER ROLE CURRENT_USER SUPERUSER; ALTER ROLE CURRENT_USER RENAME TO other;
ALTER DATABASE corpus SET work_mem = '5MB'; ALTER DATABASE corpus RESET ALL;
SELECT usesuper FROM pg_user WHERE usename = current_user; SELECT rolcanlogin FROM pg_roles WHERE rolname = current_user;
SELECT count(*) FROM pg_stat_activity WHERE pid = pg_backend_pid(); SELECT pg_backend_pid() = pg_backend_pid();
SELECT inet_client_addr() IS NOT NULL, inet_server_port() > 0, pg_is_in_recovery(), version() ~ 'PostgreSQL';
\conninfo_left_out
\password_left_out
