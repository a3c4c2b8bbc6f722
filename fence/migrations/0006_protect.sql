-- Protected tables: a trigger lets only transactions inside the open gate of the table's job write, whoever they are and
-- however they came. And fence.enter, for those who write their own transaction, without the proxy.
--
-- A transaction says which generation it writes for in the setting fence.generation_<job id>. That is a claim, not a
-- proof: every use of it takes the gate's lock again (INV-3), so a forged or left-over claim of an older generation is
-- refused, and one of the current generation is an entry like any other.

-- Enters the gate, or refuses. The lock belongs to the (sub)transaction that the caller writes in, so no ROLLBACK TO
-- can give up the lock and keep the write.
CREATE FUNCTION fence.enter_gate(_job integer, _generation bigint) RETURNS fence.job
LANGUAGE plpgsql SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _gate text := 'fence.gate_' || _job || '_' || _generation;
  _open boolean := has_table_privilege('public', to_regclass(_gate), 'UPDATE');
  _row fence.job;
BEGIN
  IF _open THEN
    EXECUTE 'LOCK TABLE ' || _gate || ' IN ROW SHARE MODE';
    -- Asked again under the lock: a raise may have been waited for. What PUBLIC may do is read from no snapshot, and
    -- is the same for a superuser, whom a closed gate itself would let pass.
    _open := has_table_privilege('public', to_regclass(_gate), 'UPDATE');
  END IF;
  SELECT * INTO _row FROM fence.job WHERE id = _job;
  IF _open AND _row.generation = _generation THEN
    RETURN _row;
  END IF;
  IF _open AND _row.generation < _generation THEN
    PERFORM fence.refuse('LF021', format('the snapshot of this transaction is older than generation %s of FencedJob "%s"', _generation, _row.name),
      format('At %s it still reads what was true before the takeover, and would miss the last commits of the predecessor.',
        current_setting('transaction_isolation')),
      'Roll back, and make the entry the first statement of the transaction.');
  END IF;
  IF _row.generation = _generation THEN
    PERFORM fence.check_open(_row);
  END IF;
  PERFORM fence.refuse('LF001', format('generation %s of FencedJob "%s" is over, or was never raised', _generation, coalesce(_row.name, _job::text)),
    CASE WHEN _row.generation > _generation
      THEN format('Pod %s raised the fence to generation %s at %s.', coalesce(_row.holder_name, _row.holder, 'unknown'),
        _row.generation, to_char(_row.raised_at AT TIME ZONE 'UTC', 'HH24:MI:SS"Z"'))
      ELSE format('Its gate is not open; the snapshot of this transaction shows generation %s.', coalesce(_row.generation::text, 'none')) END,
    'This process must end; its successor continues from the last checkpoint.');
END $$;

-- The first statement of a transaction that somebody writes himself (docs/enter.md). Does NOT check who holds the
-- generation: whoever gives it to two processes has two writers.
CREATE FUNCTION fence.enter(_job text, _generation bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _row fence.job;
BEGIN
  IF _generation IS NULL OR _generation NOT BETWEEN 1 AND 9007199254740991 THEN
    RAISE EXCEPTION 'fence.enter needs a generation from 1 to 2^53-1' USING ERRCODE = '22023';
  END IF;
  SELECT * INTO _row FROM fence.job WHERE name = _job;
  IF NOT FOUND THEN
    PERFORM fence.refuse('LF001', format('FencedJob "%s" was never raised in database "%s"', _job, current_database()),
      'There is no fence of this name here, or it is younger than the snapshot of this transaction.',
      'Check the fence name (by default namespace/name) and the database.');
  END IF;
  _row := fence.enter_gate(_row.id, _generation);
  IF _row.incarnation IS DISTINCT FROM fence.incarnation() THEN
    PERFORM fence.refuse('LF003', format('the history of database "%s" is not the one in which generation %s was raised',
        current_database(), _generation),
      format('Raised in %s, this is %s: the database was promoted, restored or copied since.', _row.incarnation, fence.incarnation()),
      'Raise the next generation in the present history.');
  END IF;
  PERFORM set_config('fence.generation_' || _row.id, _generation::text, true);
END $$;

-- What an administrator did without the fence. Commits with the writes that it allowed, or not at all.
CREATE TABLE fence.override_log (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  incarnation text NOT NULL,
  txid xid8 NOT NULL,
  username text NOT NULL,
  application text,
  client_address inet,
  reason text NOT NULL,
  overridden_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX override_log_by_txid ON fence.override_log (txid);

CREATE FUNCTION fence.override(_reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _superuser boolean := (SELECT rolsuper FROM pg_roles WHERE rolname = session_user);
BEGIN
  IF coalesce(btrim(_reason), '') = '' THEN
    RAISE EXCEPTION 'fence.override needs a reason' USING ERRCODE = '22023';
  END IF;
  -- The one who logged in, whatever role he has taken or whatever function calls this for him.
  IF NOT _superuser AND (pg_has_role(session_user, 'fence_sidecar', 'MEMBER') OR NOT pg_has_role(session_user, 'fence_admin', 'MEMBER')) THEN
    PERFORM fence.refuse('LF012', format('role "%s" may not override the fence', session_user),
      'Only a member of fence_admin that is not a role of an application (a member of fence_sidecar) may.',
      'Log in as an administrator: a role of an application writes through its sidecar.');
  END IF;
  INSERT INTO fence.override_log (incarnation, txid, username, application, client_address, reason)
    VALUES (fence.incarnation(), pg_current_xact_id(), session_user, current_setting('application_name'), inet_client_addr(), _reason);
END $$;

-- The generation whose gate this transaction holds already: entered with LOCK or SELECT … FOR SHARE, as the proxy does.
CREATE FUNCTION fence.generation_by_lock(_job integer) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, fence, pg_temp SET quote_all_identifiers = off AS $$
  -- The name comes from the system cache and not from a snapshot that may be older than the gate.
  SELECT max(substring(l.relation::regclass::text FROM format('^gate_%s_([0-9]{1,16})$', _job))::bigint)::text
  FROM pg_locks l
  WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.granted AND l.mode <> 'AccessShareLock'
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
$$;

-- The trigger of protected tables. Its arguments: the job's id, and its name, because an id means another job after a
-- dump of only the table was loaded elsewhere.
CREATE FUNCTION fence.guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _setting text := 'fence.generation_' || TG_ARGV[0];
  _claim text := current_setting(_setting, true);
  _row fence.job;
BEGIN
  IF _claim IS NULL OR _claim !~ '^[1-9][0-9]{0,15}$' THEN
    _claim := fence.generation_by_lock(TG_ARGV[0]::integer);
    IF _claim IS NULL THEN
      IF EXISTS (SELECT FROM fence.override_log
          WHERE txid = pg_current_xact_id_if_assigned() AND incarnation = fence.incarnation()) THEN
        RETURN NULL;
      END IF;
      PERFORM fence.refuse('LF030', format('%s on table %I.%I is outside of the fence of FencedJob "%s"',
          TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[1]),
        format('Role "%s" has entered no gate of this job in this transaction.', session_user),
        'Write through the job''s sidecar, or call fence.enter first; an administrator: fence.override(reason), in the same transaction.');
    END IF;
    PERFORM set_config(_setting, _claim, true); -- so that the next statement need not look through the locks again
  END IF;
  _row := fence.enter_gate(TG_ARGV[0]::integer, _claim::bigint);
  IF _row.name <> TG_ARGV[1] THEN
    PERFORM fence.refuse('LF030', format('table %I.%I is bound to FencedJob "%s", which has another number here',
        TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[1]),
      format('Its trigger says job %s, and that is "%s" in this database: the table was loaded from another one.', TG_ARGV[0], _row.name),
      'Run, as an administrator: fence.unprotect for the table, then fence.protect again.');
  END IF;
  RETURN NULL;
END $$;

-- Tables that carry the trigger. `enabled`: O in ordinary sessions, A always (also under session_replication_role =
-- replica), D disabled, R only there.
CREATE VIEW fence.protected AS
  SELECT t.tgrelid::pg_catalog.regclass AS "table",
         -- Null if it is no number: then the table belongs to no job, and fence.uncovered says so.
         pg_catalog.substring(pg_catalog.split_part(pg_catalog.encode(t.tgargs, 'escape'), '\000', 1), '^[0-9]{1,9}$')::integer AS job_id,
         -- As bytes, because a name may have any character.
         pg_catalog.split_part(pg_catalog.encode(t.tgargs, 'escape'), '\000', 2) AS job_escaped,
         t.tgenabled AS enabled
  FROM pg_catalog.pg_trigger t
  -- 62: BEFORE, INSERT, UPDATE, DELETE, TRUNCATE, for each statement; nothing less counts.
  WHERE t.tgname = 'fence_guard' AND t.tgfoid = 'fence.guard'::pg_catalog.regproc AND t.tgtype = 62
    AND t.tgqual IS NULL AND t.tgattr = '';

-- The row of a job, made if it is not there: a table may be protected before the first raise.
CREATE FUNCTION fence.job_id(_name text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _id integer;
BEGIN
  INSERT INTO fence.job (name) SELECT _name WHERE NOT EXISTS (SELECT FROM fence.job WHERE name = _name)
    ON CONFLICT (name) DO NOTHING;
  SELECT id INTO STRICT _id FROM fence.job WHERE name = _name;
  RETURN _id;
END $$;

-- Protects tables and everything that inherits from them. With the caller's rights: he owns the tables. Twice is once.
CREATE FUNCTION fence.protect(_job text, _tables regclass[], _always boolean DEFAULT false) RETURNS SETOF regclass
LANGUAGE plpgsql SET search_path = pg_catalog, fence, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  _id integer := fence.job_id(_job);
  _family oid[] := ARRAY(
    WITH RECURSIVE f(oid) AS (
      SELECT unnest(_tables)::oid UNION SELECT i.inhrelid FROM f JOIN pg_inherits i ON i.inhparent = f.oid
    ) SELECT oid FROM f ORDER BY oid);
  _class pg_class;
  _table regclass;
  _text text;
BEGIN
  FOR _class IN SELECT c.* FROM unnest(_family) f(oid) JOIN pg_class c ON c.oid = f.oid LOOP
    _table := _class.oid;
    IF _class.relkind NOT IN ('r', 'p') OR _class.relnamespace = 'fence'::regnamespace THEN
      PERFORM fence.refuse('LF031', format('%s cannot be protected', _table), 'It is not an ordinary or partitioned table, or it is the fence''s own.',
        'Protect the tables behind a view, and a foreign table in its own database.');
    END IF;
    SELECT i.inhparent::regclass INTO _text FROM pg_inherits i WHERE i.inhrelid = _class.oid AND i.inhparent <> ALL (_family) LIMIT 1;
    IF FOUND THEN
      PERFORM fence.refuse('LF031', format('%s cannot be protected alone', _table), format('A write to %s reaches it.', _text),
        format('Protect %s: what inherits from it is protected with it.', _text));
    END IF;
    SELECT coalesce(j.name, p.job_id::text) INTO _text FROM fence.protected p LEFT JOIN fence.job j ON j.id = p.job_id
      WHERE p.table = _table AND p.job_id <> _id;
    IF FOUND THEN
      PERFORM fence.refuse('LF031', format('%s is bound to FencedJob "%s" already', _table, _text), 'A table has one writer, so one job.',
        'Unprotect it first: fence.unprotect, or fencedjob db unprotect.');
    END IF;
    EXECUTE format('CREATE OR REPLACE TRIGGER fence_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s
      FOR EACH STATEMENT EXECUTE FUNCTION fence.guard(%L, %L)', _table, _id, _job);
    EXECUTE format('ALTER TABLE ONLY %s ENABLE %s TRIGGER fence_guard', _table, CASE WHEN _always THEN 'ALWAYS' ELSE '' END);
    -- A subscription's worker fires row triggers only, so ALWAYS needs one more; it sleeps in every other session.
    -- Partitions get it from their parent, later ones too.
    IF NOT _class.relispartition THEN
      EXECUTE format('DROP TRIGGER IF EXISTS fence_guard_replica ON %s', _table);
      IF _always THEN
        EXECUTE format('CREATE TRIGGER fence_guard_replica AFTER INSERT OR UPDATE OR DELETE ON %s
          FOR EACH ROW EXECUTE FUNCTION fence.guard(%L, %L)', _table, _id, _job);
        EXECUTE format('ALTER TABLE %s ENABLE REPLICA TRIGGER fence_guard_replica', _table);
      END IF;
    END IF;
    RETURN NEXT _table;
  END LOOP;
END $$;

-- Takes the triggers away from tables and everything that inherits from them. With the caller's rights.
CREATE FUNCTION fence.unprotect(_tables regclass[]) RETURNS SETOF regclass
LANGUAGE plpgsql SET search_path = pg_catalog, fence, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  _table regclass;
BEGIN
  FOR _table IN
    WITH RECURSIVE f(oid) AS (
      SELECT unnest(_tables)::oid UNION SELECT i.inhrelid FROM f JOIN pg_inherits i ON i.inhparent = f.oid
    ) SELECT p.table FROM f JOIN fence.protected p ON p.table = f.oid ORDER BY p.table::oid
  LOOP
    EXECUTE format('DROP TRIGGER fence_guard ON %s', _table);
    IF NOT (SELECT relispartition FROM pg_class WHERE oid = _table) THEN
      EXECUTE format('DROP TRIGGER IF EXISTS fence_guard_replica ON %s', _table);
    END IF;
    RETURN NEXT _table;
  END LOOP;
END $$;

-- Where a write can pass by the triggers: partitions attached later, disabled triggers, owners that could disable them.
-- Empty is good. Does NOT know which other tables should be protected.
CREATE FUNCTION fence.uncovered() RETURNS TABLE ("table" regclass, job text, why text)
LANGUAGE sql STABLE SET search_path = pg_catalog, fence, pg_temp AS $$
  WITH RECURSIVE kin(oid, job_id) AS (
    SELECT p.table::oid, p.job_id FROM fence.protected p
    UNION
    -- Both ways: a write to the parent reaches the child, and a write to the child passes by the parent's trigger.
    SELECT CASE WHEN i.inhrelid = k.oid THEN i.inhparent ELSE i.inhrelid END, k.job_id
    FROM kin k JOIN pg_inherits i ON k.oid IN (i.inhrelid, i.inhparent)
  )
  SELECT c.oid::regclass, j.name, w.why
  FROM kin k JOIN pg_class c ON c.oid = k.oid LEFT JOIN fence.job j ON j.id = k.job_id LEFT JOIN fence.protected p ON p.table = c.oid
  CROSS JOIN LATERAL (VALUES
    (c.relkind = 'f', 'it is a foreign table: protect it in its own database'),
    (c.relkind <> 'f' AND p.table IS NULL, 'it has no trigger of the fence: protect its topmost parent again'),
    (p.enabled IN ('D', 'R'), 'its trigger is disabled'),
    (p.job_id IS NULL AND p.table IS NOT NULL, 'its trigger names no job: protect it again'),
    (p.job_id <> k.job_id, 'it is bound to another job than its parent or child'),
    (p.job_id = k.job_id AND p.job_escaped IS DISTINCT FROM encode(convert_to(j.name, getdatabaseencoding()), 'escape'),
      'its trigger names another job: it was loaded from another database; unprotect and protect it again'),
    ((SELECT NOT r.rolsuper AND pg_has_role(r.oid, 'fence_sidecar', 'MEMBER') FROM pg_roles r WHERE r.oid = c.relowner),
      format('its owner "%s" is a role of an application, which can disable the trigger', pg_get_userbyid(c.relowner)))
  ) w(applies, why)
  WHERE w.applies
  ORDER BY 1, 3
$$;

GRANT SELECT ON TABLE fence.override_log, fence.protected TO PUBLIC;
GRANT SELECT ON SEQUENCE fence.override_log_id_seq TO PUBLIC;
REVOKE ALL ON FUNCTION fence.enter_gate(integer, bigint), fence.enter(text, bigint), fence.override(text),
  fence.generation_by_lock(integer), fence.guard(), fence.job_id(text), fence.protect(text, regclass[], boolean),
  fence.unprotect(regclass[]), fence.uncovered() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.enter(text, bigint), fence.uncovered() TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence.override(text), fence.guard(), fence.job_id(text),
  fence.protect(text, regclass[], boolean), fence.unprotect(regclass[]) TO fence_admin;
