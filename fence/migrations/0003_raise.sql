-- The raise: the successor's first act in a database. The order of its steps is the safety (design, section 4).

-- Why this raise is refused (INV-1, INV-2, INV-7, INV-8), or null. Asked under the lock of the row by the raise, and
-- without it by the drain, which ends sessions of older generations meanwhile. Does NOT know whether the raise in question
-- is the one that made the row what it is: that is the nonce's matter.
-- Two control planes on one fence name would raise over each other for ever, each above the other's floor: the row says who
-- raised it last, and another one is refused until a person says that the work has moved. Empty is the issuer of whoever
-- raises by hand; he is foreign to nobody. An acceptance is of an issuer as it was when a person looked: its later raises
-- are not accepted.
CREATE FUNCTION fence.why_not_raised(_row fence.job, _generation bigint, _holder text, _issuer text,
  _accepted_issuer text, _accepted_generation bigint, OUT code text, OUT message text, OUT detail text, OUT hint text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _claimed bigint;
  _raised text := format('generation %s at %s', _row.generation, to_char(_row.raised_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"'));
BEGIN
  -- In front of the rest: above this floor the next generation would be refused as well.
  IF _row.issuer <> _issuer AND _issuer <> ''
      AND (_row.issuer = _accepted_issuer AND _row.generation <= _accepted_generation) IS NOT TRUE THEN
    code := 'LF005';
    message := format('FencedJob "%s" of this name is run by another control plane', _row.name);
    detail := format('Issuer %s raised %s by its pod %s; this is issuer %s. Nothing was changed.',
      _row.issuer, _raised, coalesce(_row.holder_name, _row.holder), _issuer);
    hint := format('If that control plane''s work has moved here for good, say so: takeOver {issuer: "%s", generation: %s}. Else give one of the two another fence name.',
      _row.issuer, _row.generation);
    RETURN;
  END IF;
  IF _row.generation >= _generation THEN
    code := 'LF001';
    message := format('generation %s of FencedJob "%s" cannot be raised: the fence is at generation %s',
      _generation, _row.name, _row.generation);
    detail := format('Pod %s raised generation %s at %s.%s', coalesce(_row.holder_name, _row.holder), _row.generation,
      to_char(_row.raised_at AT TIME ZONE 'UTC', 'HH24:MI:SS"Z"'),
      CASE WHEN _row.holder = _holder THEN ' It is this pod, in an earlier life of its sidecar.' ELSE '' END);
    hint := 'This pod is replaced; the next generation is issued above the fence.';
    RETURN;
  END IF;
  SELECT generation INTO _claimed FROM fence.claim WHERE job_id = _row.id AND holder = _holder;
  IF FOUND THEN
    code := 'LF001';
    message := format('this pod has raised generation %s of FencedJob "%s" before', _claimed, _row.name);
    detail := 'A pod raises at most one generation: its memory must not outlive it.';
    hint := 'This pod is replaced.';
    RETURN;
  END IF;
  IF _generation - _row.generation > 1000000 THEN
    code := 'LF001';
    message := format('generation %s of FencedJob "%s" is absurd: the fence is at generation %s',
      _generation, _row.name, _row.generation);
    detail := 'A jump of more than 1000000 generations would use up the numbers.';
    hint := 'Look who changed the generation in the Lease or the status.';
  END IF;
END $$;

-- What the transaction of a raise or a close must be.
CREATE FUNCTION fence.begin_move(_move text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, fence, pg_temp AS $$
BEGIN
  IF pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' THEN
    PERFORM fence.refuse('LF013', format('database "%s" takes no writes', current_database()),
      'It is a standby, or the transaction is read-only.', 'Give the address of the primary, one that follows a failover.');
  END IF;
  -- A snapshot older than the drain would return a checkpoint older than the last one committed.
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a % must run at READ COMMITTED, not at %', _move, current_setting('transaction_isolation') USING ERRCODE = '25001';
  END IF;
  -- off could lose it in a crash; on could wait for a standby without bound.
  PERFORM set_config('synchronous_commit', 'local', true);
END $$;

-- Step 1: lock the row, and refuse before any gate is touched. NO KEY UPDATE, because FOR UPDATE would deadlock with
-- foreign keys to the row.
CREATE FUNCTION fence.raise_begin(_name text, _generation bigint, _holder text, _nonce text, _issuer text DEFAULT '',
  _accepted_issuer text DEFAULT NULL, _accepted_generation bigint DEFAULT NULL) RETURNS fence.job
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _row fence.job;
  _why record;
BEGIN
  PERFORM fence.begin_move('raise');
  IF _generation NOT BETWEEN 1 AND 9007199254740991 OR coalesce(_holder, '') = '' OR coalesce(_nonce, '') = '' THEN
    RAISE EXCEPTION 'a raise needs a generation from 1 to 2^53-1, a holder and a nonce' USING ERRCODE = '22023';
  END IF;

  INSERT INTO fence.job (name) SELECT _name WHERE NOT EXISTS (SELECT FROM fence.job WHERE name = _name)
    ON CONFLICT (name) DO NOTHING;
  SELECT * INTO STRICT _row FROM fence.job WHERE name = _name FOR NO KEY UPDATE;

  IF _row.generation = _generation AND _row.holder = _holder AND _row.nonce = _nonce THEN
    PERFORM fence.check_owner(_row.id, _generation, _holder);
    RETURN _row; -- our own raise, whose reply was lost
  END IF;
  -- A statement of its own, so that it sees what was committed while the lock was waited for.
  SELECT * INTO _why FROM fence.why_not_raised(_row, _generation, _holder, coalesce(_issuer, ''), _accepted_issuer, _accepted_generation);
  IF _why.message IS NOT NULL THEN
    PERFORM fence.refuse(_why.code, _why.message, _why.detail, _why.hint);
  END IF;
  RETURN _row;
END $$;

-- The bracket of statements that cannot be in a transaction. Tried and polled, not waited for: a waiting lock
-- deadlocks with CREATE INDEX CONCURRENTLY.
CREATE FUNCTION fence.raise_bracket(_job integer) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
  SELECT pg_try_advisory_xact_lock(1279673923, _job)
$$;

-- Steps 2 and 3, and the revoke: nobody is inside of a gate of this job any more, no session of a generation below
-- `_below` lives, and whoever enters from now on is refused. Under the lock of the row; holds with the caller's COMMIT.
CREATE FUNCTION fence.shut(_row fence.job, _below bigint) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _gate regclass;
  _open text;
  _ended text[];
BEGIN
  IF NOT fence.raise_bracket(_row.id) THEN
    RAISE EXCEPTION 'a statement that cannot be in a transaction is still running' USING ERRCODE = '55P03';
  END IF;
  -- Only a gate's owner can close it, and who owns it can open it again.
  SELECT string_agg(format('%s (owner "%s")', g.gate, pg_get_userbyid(c.relowner)), ', ') INTO _open
    FROM fence.gates(_row.id) g JOIN pg_class c ON c.oid = g.gate WHERE pg_get_userbyid(c.relowner) <> current_user;
  IF _open IS NOT NULL THEN
    PERFORM fence.refuse('LF012', format('a gate of FencedJob "%s" could not be closed', _row.name),
      format('It belongs to somebody else: %s. Nothing was changed.', _open),
      format('Run, as an administrator, for each: ALTER TABLE … OWNER TO %I. The raise is tried again by itself.', current_user));
  END IF;
  -- The gate of exactly the generation just read (and any that stands open against the rules): new entries queue behind us,
  -- those inside are waited for. EXCLUSIVE: pg_dump does not conflict, and standbys are not locked.
  FOR _gate IN SELECT g.gate FROM fence.gates(_row.id) g WHERE g.generation = _row.generation OR g.open ORDER BY g.generation LOOP
    EXECUTE format('LOCK TABLE %s IN EXCLUSIVE MODE', _gate);
  END LOOP;
  _ended := fence.end_sessions(_row.id, _below); -- idle ones too
  FOR _gate IN SELECT g.gate FROM fence.gates(_row.id) g WHERE g.open LOOP
    PERFORM fence.close_table(_gate);
  END LOOP;
  -- A grant on all tables of the schema opened the sentinel too; only then, because jobs raise side by side.
  PERFORM fence.close_table(c.oid) FROM pg_class c WHERE c.oid = 'fence.never'::regclass AND EXISTS (
    SELECT FROM aclexplode(c.relacl) a WHERE a.grantee <> c.relowner AND a.privilege_type <> 'SELECT');
  RETURN _ended;
END $$;

-- At most one gate of a job is open, ever (INV-3): that of `_generation`; none if null.
CREATE FUNCTION fence.assert_shut(_row fence.job, _generation bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _open text;
BEGIN
  SELECT string_agg(g.gate::text, ', ') INTO _open FROM fence.gates(_row.id) g
    WHERE g.open AND g.generation IS DISTINCT FROM _generation;
  IF _open IS NOT NULL THEN
    PERFORM fence.refuse('LF012', format('a gate of FencedJob "%s" could not be closed', _row.name),
      format('Still open: %s. A foreign grant keeps it so. Nothing was changed.', _open),
      'Run, as an administrator, for each: REVOKE ALL ON … FROM PUBLIC CASCADE, and from whom \dp shows.');
  END IF;
END $$;

-- The whole raise. The caller's COMMIT makes it hold; anything else leaves the fence as it was. By hand the row keeps the issuer
-- of the control plane that runs the job. The first pair of the witness is counter 0 and the nonce of the raise, which nobody
-- else knows.
CREATE FUNCTION fence.raise(_name text, _generation bigint, _holder text, _holder_name text, _nonce text, _issuer text,
  _accepted_issuer text DEFAULT NULL, _accepted_generation bigint DEFAULT NULL,
  OUT job_id integer, OUT previous_generation bigint, OUT previous_issuer text, OUT incarnation text,
  OUT sessions_ended text[], OUT checkpoint jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp
-- The gate is fence_owner's, who need not have a right on the tablespace that the caller's role or the database has as its default.
SET default_tablespace = '' AS $$
#variable_conflict use_column
DECLARE
  _row fence.job;
  _next text;
BEGIN
  _row := fence.raise_begin(_name, _generation, _holder, _nonce, _issuer, _accepted_issuer, _accepted_generation);
  job_id := _row.id;
  previous_generation := nullif(_row.generation, 0);
  previous_issuer := _row.issuer;
  incarnation := fence.incarnation();
  sessions_ended := '{}';
  IF _row.generation = _generation THEN
    SELECT max(c.generation) INTO previous_generation FROM fence.claim c WHERE c.job_id = _row.id AND c.generation < _generation;
    SELECT c.progress INTO checkpoint FROM fence.claim c
      WHERE c.job_id = _row.id AND c.generation < _generation ORDER BY c.generation DESC LIMIT 1;
    RETURN;
  END IF;

  sessions_ended := fence.shut(_row, _generation);
  -- Step 4: open the next one, assert that it alone is open, move the row, claim.
  _next := format('gate_%s_%s', _row.id, _generation);
  EXECUTE format('DROP TABLE IF EXISTS fence.%I', _next); -- a leftover of a dump or of another history
  EXECUTE format('CREATE TABLE fence.%I ()', _next);
  EXECUTE format('GRANT SELECT, UPDATE ON TABLE fence.%I TO PUBLIC', _next);
  PERFORM fence.assert_shut(_row, _generation);
  -- At the end of the drain, under the gate's lock: nothing older can commit after this is read.
  SELECT c.progress INTO checkpoint FROM fence.claim c WHERE c.job_id = _row.id ORDER BY c.generation DESC LIMIT 1;
  UPDATE fence.job SET generation = _generation, holder = _holder, holder_name = _holder_name, nonce = _nonce,
      issuer = coalesce(nullif(_issuer, ''), _row.issuer), incarnation = fence.incarnation(), raised_at = clock_timestamp()
    WHERE id = _row.id AND generation = _row.generation AND generation < _generation;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the fence moved while it was raised' USING ERRCODE = '40001';
  END IF;
  INSERT INTO fence.claim (job_id, generation, holder, holder_name, incarnation)
    VALUES (_row.id, _generation, _holder, _holder_name, fence.incarnation());
  INSERT INTO fence.witness (job_id, generation, counter, nonce) VALUES (_row.id, _generation, 0, _nonce);
END $$;

-- Who blocks the raise that waits in this server process; for people (LF004).
CREATE FUNCTION fence.blockers(_pid integer, _job integer)
RETURNS TABLE (pid integer, username text, application text, state text, busy_seconds integer, prepared text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
  SELECT a.pid, a.usename::text, a.application_name, a.state,
         extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, a.query_start))::integer, NULL::text
  FROM pg_stat_activity a
  WHERE a.pid <> _pid AND (a.pid = ANY (pg_blocking_pids(_pid)) OR a.pid IN (
    SELECT l.pid FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
      AND l.classid = 1279673923 AND l.objid = _job
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())))
  UNION ALL
  SELECT DISTINCT 0, p.owner::text, NULL::text, 'prepared', extract(epoch FROM clock_timestamp() - p.prepared)::integer, p.gid
  FROM pg_prepared_xacts p
  -- A prepared transaction keeps the virtual one of the session that prepared it, until a restart.
  JOIN pg_locks x ON x.locktype = 'transactionid' AND x.transactionid = p.transaction AND x.pid IS NULL AND x.granted
  JOIN pg_locks l ON l.locktype = 'relation' AND l.pid IS NULL AND l.virtualtransaction = x.virtualtransaction
  JOIN fence.gates(_job) g ON g.gate::oid = l.relation
  WHERE p.database = current_database()
$$;

-- Drops closed gates that nobody holds, except the newest of them (a late entry there gets 42501, as it should), and witnesses
-- of older generations, unless somebody holds one.
CREATE FUNCTION fence.sweep(_job integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _gate regclass;
  _dropped integer := 0;
BEGIN
  PERFORM set_config('lock_timeout', '5ms', true), set_config('synchronous_commit', 'local', true);
  FOR _gate IN
    SELECT g.gate FROM fence.gates(_job) g JOIN fence.job j ON j.id = _job
    WHERE NOT g.open AND g.generation < j.generation ORDER BY g.generation DESC OFFSET 1 LIMIT 100
  LOOP
    BEGIN
      EXECUTE format('DROP TABLE %s', _gate);
      _dropped := _dropped + 1;
    EXCEPTION WHEN lock_not_available OR undefined_table OR dependent_objects_still_exist THEN
      NULL; -- somebody still holds it, has a view on it, or another sweep was first: next time
    END;
  END LOOP;
  DELETE FROM fence.witness w USING (
    SELECT o.job_id, o.generation FROM fence.witness o JOIN fence.job j ON j.id = o.job_id
    WHERE o.job_id = _job AND o.generation < j.generation FOR UPDATE OF o SKIP LOCKED
  ) old WHERE w.job_id = old.job_id AND w.generation = old.generation;
  RETURN _dropped;
END $$;

REVOKE ALL ON FUNCTION fence.why_not_raised(fence.job, bigint, text, text, text, bigint), fence.begin_move(text),
  fence.raise_begin(text, bigint, text, text, text, text, bigint), fence.raise_bracket(integer), fence.shut(fence.job, bigint),
  fence.assert_shut(fence.job, bigint), fence.raise(text, bigint, text, text, text, text, text, bigint),
  fence.blockers(integer, integer), fence.sweep(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.why_not_raised(fence.job, bigint, text, text, text, bigint),
  fence.raise_begin(text, bigint, text, text, text, text, bigint), fence.raise_bracket(integer),
  fence.raise(text, bigint, text, text, text, text, text, bigint), fence.blockers(integer, integer), fence.sweep(integer)
  TO fence_sidecar;
