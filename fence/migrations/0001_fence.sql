-- The fence: one permanent row per job, one empty gate table per generation (docs/fence-sql.md).
-- Runs as role fence_owner, which owns everything here. Every SECURITY DEFINER function fixes its search_path with
-- pg_temp last, so that no look-alike object of a user can stand in for one of these.

CREATE TABLE fence.schema_version (
  version integer PRIMARY KEY,
  installed_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);

-- INV-1: never deleted, never lowered. Heartbeats and renewals do not touch it: a REPEATABLE READ owner that reads it
-- must not get a 40001 from its own liveness.
CREATE TABLE fence.job (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE,
  generation bigint NOT NULL DEFAULT 0 CHECK (generation BETWEEN 0 AND 9007199254740991),
  holder text,
  holder_name text,
  nonce text,
  issuer text,
  incarnation text,
  raised_at timestamptz
);

-- That a generation took the job. INV-2, INV-7: a holder raises at most one generation of a job.
CREATE TABLE fence.claim (
  job_id integer NOT NULL,
  generation bigint NOT NULL,
  holder text NOT NULL,
  holder_name text NOT NULL,
  incarnation text NOT NULL,
  claimed_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
  -- Of the claim and not of the job's row, so that the next raise need not clear it: its own claim is open.
  closed_at timestamptz,
  progress jsonb,
  progress_at timestamptz,
  PRIMARY KEY (job_id, generation),
  CONSTRAINT claim_one_generation_per_holder UNIQUE (job_id, holder)
);

-- Server sessions that were admitted, so that a raise can end them, idle ones too (INV-13). Unlogged: after a crash
-- none of them lives, and registering costs no flush.
CREATE UNLOGGED TABLE fence.session (
  pid integer NOT NULL,
  backend_start timestamptz NOT NULL,
  job_id integer NOT NULL,
  generation bigint NOT NULL,
  holder text NOT NULL,
  PRIMARY KEY (pid, backend_start)
);
CREATE INDEX session_by_job ON fence.session (job_id, generation);

-- One row a generation: the raise only inserts, so that no beat of the owner before can hold it up.
-- B18: a beat touches neither fence.job nor a gate, so no transaction of the owner meets its own heartbeat.
CREATE TABLE fence.witness (
  job_id integer NOT NULL,
  generation bigint NOT NULL,
  counter bigint NOT NULL,
  nonce text NOT NULL,
  beaten_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  PRIMARY KEY (job_id, generation)
);

-- The sentinel: made as a gate is, by the same owner, and never open. A role that can lock it cannot be refused.
-- It has no column for the reason that gates have none: a grant on a column would open SELECT … FOR SHARE.
CREATE TABLE fence.never ();

-- The one way to fail with a code of class LF; also called by the proxy, under whatever role a transaction has.
CREATE FUNCTION fence.refuse(_code text, _message text, _detail text, _hint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, fence, pg_temp AS $$
BEGIN
  IF _code !~ '^LF[0-9]{3}$' THEN
    RAISE EXCEPTION 'fence.refuse: % is not a code of class LF', _code USING ERRCODE = '22023';
  END IF;
  RAISE EXCEPTION '%', _code || ': ' || _message USING ERRCODE = _code, DETAIL = _detail, HINT = _hint;
END $$;

-- Identity of this database's history. The oids are in it because a dump loaded into the same cluster keeps the rest;
-- the timeline is read from the WAL position, which after a promotion is right before pg_control is.
CREATE FUNCTION fence.incarnation() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, fence, pg_temp AS $$
  SELECT concat_ws('/',
    (SELECT system_identifier FROM pg_control_system()),
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
    (SELECT oid FROM pg_database WHERE datname = current_database()),
    'fence.job'::regclass::oid)
$$;

CREATE FUNCTION fence.gates(_job integer) RETURNS TABLE (gate regclass, generation bigint, open boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, fence, pg_temp AS $$
  SELECT c.oid::regclass,
         substring(c.relname FROM '^gate_[0-9]+_([0-9]{1,16})$')::bigint,
         -- Open to anybody but its owner, or owned by somebody else, who may open it.
         c.relowner <> (SELECT relowner FROM pg_class WHERE oid = 'fence.never'::regclass)
           OR EXISTS (SELECT FROM aclexplode(c.relacl) a WHERE a.grantee <> c.relowner AND a.privilege_type <> 'SELECT')
  FROM pg_class c
  WHERE c.relnamespace = 'fence'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'f', 'm')
    -- The range is for the index on relname (names sort by bytes, "`" follows "_"): databases have many tables.
    AND c.relname >= format('gate_%s_', _job)::name AND c.relname < format('gate_%s`', _job)::name
    AND c.relname ~ '^gate_[0-9]+_[0-9]{1,16}$'
$$;

-- A REVOKE that revokes nothing is only a warning, so whoever calls this asserts the outcome through fence.gates.
-- SELECT stays: it enters no gate, and without it a plain role's pg_dump fails.
CREATE FUNCTION fence.close_table(_table regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _grantee text;
BEGIN
  FOR _grantee IN
    SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
    FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = _table AND a.grantee <> c.relowner
  LOOP
    EXECUTE format('REVOKE ALL ON TABLE %s FROM %s CASCADE', _table, _grantee);
  END LOOP;
  EXECUTE format('GRANT SELECT ON TABLE %s TO PUBLIC', _table);
END $$;

-- Why a closed gate would not refuse this login role, or null: the role itself and every role it can become.
CREATE FUNCTION fence.why_not_fenceable(_login name) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, fence, pg_temp AS $$
  SELECT CASE
           WHEN r.rolsuper THEN 'a superuser'
           WHEN r.oid = t.relowner THEN 'the owner of the fence schema'
           WHEN r.rolcreaterole THEN 'allowed to create roles, which before PostgreSQL 16 lets it become any other role'
           ELSE 'allowed to write or maintain every table (or this one), so it passes a closed gate'
         END || CASE WHEN r.rolname = _login THEN '' ELSE format(' (through role "%s")', r.rolname) END
  FROM pg_roles r, pg_class t
  WHERE t.oid = 'fence.never'::regclass
    AND pg_has_role(_login, r.oid, 'MEMBER')
    AND (r.rolsuper OR r.oid = t.relowner
      OR (r.rolcreaterole AND current_setting('server_version_num')::int < 160000)
      OR has_table_privilege(r.oid, t.oid, 'INSERT, UPDATE, DELETE, TRUNCATE'
           || CASE WHEN current_setting('server_version_num')::int >= 170000 THEN ', MAINTAIN' ELSE '' END))
  ORDER BY r.rolsuper DESC, r.oid = t.relowner DESC, r.rolname = _login DESC, r.rolname
  LIMIT 1
$$;

-- Sessions of this login role can be seen and ended by a raise.
CREATE FUNCTION fence.can_end_sessions_of(_login name) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, fence, pg_temp AS $$
  SELECT pg_has_role(o.rolname, _login, 'USAGE')
      OR (pg_has_role(o.rolname, 'pg_signal_backend', 'USAGE') AND pg_has_role(o.rolname, 'pg_read_all_stats', 'USAGE'))
  FROM pg_class t JOIN pg_roles o ON o.oid = t.relowner WHERE t.oid = 'fence.never'::regclass
$$;

-- Rights. USAGE and SELECT for PUBLIC: a transaction enters under whatever role it has taken (SET ROLE), and a plain
-- role's pg_dump must work.
GRANT USAGE ON SCHEMA fence TO PUBLIC;
GRANT SELECT ON ALL TABLES IN SCHEMA fence TO PUBLIC;
GRANT SELECT ON ALL SEQUENCES IN SCHEMA fence TO PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fence FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.refuse(text, text, text, text), fence.incarnation(), fence.gates(integer),
  fence.why_not_fenceable(name), fence.can_end_sessions_of(name) TO PUBLIC;
