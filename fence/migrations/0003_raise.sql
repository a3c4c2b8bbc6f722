-- The raise: the successor's first act in a database. The order of its steps is the safety (design, section 4).

-- Step 1: lock the row, and refuse before any gate is touched. NO KEY UPDATE, because FOR UPDATE would deadlock with
-- foreign keys to the row.
CREATE FUNCTION fence.raise_begin(_name text, _generation bigint, _holder text, _nonce text) RETURNS fence.job
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _row fence.job;
  _claimed bigint;
BEGIN
  IF pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' THEN
    PERFORM fence.refuse('LF013', format('database "%s" takes no writes', current_database()),
      'It is a standby, or the transaction is read-only.', 'Give the address of the primary, one that follows a failover.');
  END IF;
  -- A snapshot older than the drain would return a checkpoint older than the last one committed.
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a raise must run at READ COMMITTED, not at %', current_setting('transaction_isolation') USING ERRCODE = '25001';
  END IF;
  IF _generation NOT BETWEEN 1 AND 9007199254740991 OR coalesce(_holder, '') = '' OR coalesce(_nonce, '') = '' THEN
    RAISE EXCEPTION 'a raise needs a generation from 1 to 2^53-1, a holder and a nonce' USING ERRCODE = '22023';
  END IF;
  -- off could lose the raise in a crash; on could wait for a standby without bound.
  PERFORM set_config('synchronous_commit', 'local', true);

  INSERT INTO fence.job (name) SELECT _name WHERE NOT EXISTS (SELECT FROM fence.job WHERE name = _name)
    ON CONFLICT (name) DO NOTHING;
  SELECT * INTO STRICT _row FROM fence.job WHERE name = _name FOR NO KEY UPDATE;

  IF _row.generation = _generation AND _row.holder = _holder AND _row.nonce = _nonce THEN
    PERFORM fence.check_owner(_row.id, _generation, _holder);
    RETURN _row; -- our own raise, whose reply was lost
  END IF;
  IF _row.generation >= _generation THEN
    PERFORM fence.refuse('LF001', format('generation %s of FencedJob "%s" cannot be raised: the fence is at generation %s',
        _generation, _name, _row.generation),
      format('Pod %s raised generation %s at %s.%s', coalesce(_row.holder_name, _row.holder), _row.generation,
        to_char(_row.raised_at AT TIME ZONE 'UTC', 'HH24:MI:SS"Z"'),
        CASE WHEN _row.holder = _holder THEN ' It is this pod, in an earlier life of its sidecar.' ELSE '' END),
      'This pod is replaced; the next generation is issued above the fence.');
  END IF;
  SELECT generation INTO _claimed FROM fence.claim WHERE job_id = _row.id AND holder = _holder;
  IF FOUND THEN
    PERFORM fence.refuse('LF001', format('this pod has raised generation %s of FencedJob "%s" before', _claimed, _name),
      'A pod raises at most one generation: its memory must not outlive it.', 'This pod is replaced.');
  END IF;
  IF _generation - _row.generation > 1000000 THEN
    PERFORM fence.refuse('LF001', format('generation %s of FencedJob "%s" is absurd: the fence is at generation %s',
        _generation, _name, _row.generation),
      'A jump of more than 1000000 generations would use up the numbers.', 'Look who changed the generation in the Lease or the status.');
  END IF;
  RETURN _row;
END $$;

-- The bracket of statements that cannot be in a transaction. Tried and polled, not waited for: a waiting lock
-- deadlocks with CREATE INDEX CONCURRENTLY.
CREATE FUNCTION fence.raise_bracket(_job integer) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
  SELECT pg_try_advisory_xact_lock(1279673923, _job)
$$;

-- The whole raise. The caller's COMMIT makes it hold; anything else leaves the fence as it was.
CREATE FUNCTION fence.raise(_name text, _generation bigint, _holder text, _holder_name text, _nonce text, _issuer text,
  OUT job_id integer, OUT previous_generation bigint, OUT previous_issuer text, OUT incarnation text,
  OUT sessions_ended text[], OUT checkpoint jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
#variable_conflict use_column
DECLARE
  _row fence.job;
  _gate regclass;
  _open text;
  _next text;
BEGIN
  _row := fence.raise_begin(_name, _generation, _holder, _nonce);
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

  IF NOT fence.raise_bracket(_row.id) THEN
    RAISE EXCEPTION 'a statement that cannot be in a transaction is still running' USING ERRCODE = '55P03';
  END IF;
  -- Only a gate's owner can close it, and who owns it can open it again.
  SELECT string_agg(format('%s (owner "%s")', g.gate, pg_get_userbyid(c.relowner)), ', ') INTO _open
    FROM fence.gates(_row.id) g JOIN pg_class c ON c.oid = g.gate WHERE pg_get_userbyid(c.relowner) <> current_user;
  IF _open IS NOT NULL THEN
    PERFORM fence.refuse('LF012', format('a gate of FencedJob "%s" could not be closed', _name),
      format('It belongs to somebody else: %s. Nothing was changed.', _open),
      format('Run, as an administrator, for each: ALTER TABLE … OWNER TO %I. The raise is tried again by itself.', current_user));
  END IF;
  -- Step 2: the gate of exactly the generation just read (and any that stands open against the rules): new entries
  -- queue behind us, those inside are waited for. EXCLUSIVE: pg_dump does not conflict, and standbys are not locked.
  FOR _gate IN SELECT g.gate FROM fence.gates(_row.id) g WHERE g.generation = _row.generation OR g.open ORDER BY g.generation LOOP
    EXECUTE format('LOCK TABLE %s IN EXCLUSIVE MODE', _gate);
  END LOOP;

  -- Step 3: every session of older generations, idle ones too.
  sessions_ended := fence.end_sessions(_row.id, _generation);

  -- Step 4: close, open the next one, assert that it alone is open, move the row, claim.
  FOR _gate IN SELECT g.gate FROM fence.gates(_row.id) g WHERE g.open LOOP
    PERFORM fence.close_table(_gate);
  END LOOP;
  -- A grant on all tables of the schema opened the sentinel too; only then, because jobs raise side by side.
  PERFORM fence.close_table(c.oid) FROM pg_class c WHERE c.oid = 'fence.never'::regclass AND EXISTS (
    SELECT FROM aclexplode(c.relacl) a WHERE a.grantee <> c.relowner AND a.privilege_type <> 'SELECT');
  _next := format('gate_%s_%s', _row.id, _generation);
  EXECUTE format('DROP TABLE IF EXISTS fence.%I', _next); -- a leftover of a dump or of another history
  EXECUTE format('CREATE TABLE fence.%I ()', _next);
  EXECUTE format('GRANT SELECT, UPDATE ON TABLE fence.%I TO PUBLIC', _next);
  SELECT string_agg(g.gate::text, ', ') INTO _open FROM fence.gates(_row.id) g WHERE g.open AND g.generation <> _generation;
  IF _open IS NOT NULL THEN
    PERFORM fence.refuse('LF012', format('a gate of FencedJob "%s" could not be closed', _name),
      format('Still open: %s. A foreign grant keeps it so. Nothing was changed.', _open),
      'Run, as an administrator, for each: REVOKE ALL ON … FROM PUBLIC CASCADE, and from whom \dp shows.');
  END IF;
  -- At the end of the drain, under the gate's lock: nothing older can commit after this is read.
  SELECT c.progress INTO checkpoint FROM fence.claim c WHERE c.job_id = _row.id ORDER BY c.generation DESC LIMIT 1;
  UPDATE fence.job SET generation = _generation, holder = _holder, holder_name = _holder_name, nonce = _nonce,
      issuer = _issuer, incarnation = fence.incarnation(), raised_at = clock_timestamp()
    WHERE id = _row.id AND generation = _row.generation AND generation < _generation;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the fence moved while it was raised' USING ERRCODE = '40001';
  END IF;
  INSERT INTO fence.claim (job_id, generation, holder, holder_name, incarnation)
    VALUES (_row.id, _generation, _holder, _holder_name, fence.incarnation());
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

-- Drops closed gates that nobody holds, except the newest of them (a late entry there gets 42501, as it should).
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
    EXCEPTION WHEN lock_not_available OR undefined_table THEN
      NULL; -- somebody still holds it, or another sweep was first: next time
    END;
  END LOOP;
  RETURN _dropped;
END $$;

-- Rights. USAGE and SELECT for PUBLIC: a transaction enters under whatever role it has taken (SET ROLE), and a plain
-- role's pg_dump must work.
GRANT USAGE ON SCHEMA fence TO PUBLIC;
GRANT SELECT ON ALL TABLES IN SCHEMA fence TO PUBLIC;
GRANT SELECT ON ALL SEQUENCES IN SCHEMA fence TO PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fence FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.refuse(text, text, text, text), fence.incarnation(), fence.gates(integer),
  fence.why_not_fenceable(name), fence.can_end_sessions_of(name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence.begin_session(), fence.check_owner(integer, bigint, text),
  fence.admit_session(integer, bigint, text), fence.end_sessions(integer, bigint),
  fence.raise_begin(text, bigint, text, text), fence.raise_bracket(integer),
  fence.raise(text, bigint, text, text, text, text), fence.blockers(integer, integer), fence.sweep(integer)
  TO fence_sidecar;
