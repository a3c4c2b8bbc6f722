-- Close: a raise to nobody, for when there is no successor: at finish, release, suspend, deletion. What INV-3 says of a
-- raise holds of it: once it has committed, no transaction of this generation or an older one commits.

-- Of the claim and not of the job's row, so that the next raise need not clear it: its own claim is open.
ALTER TABLE fence.claim ADD COLUMN closed_at timestamptz;

-- As in 0006, and not a closed generation.
CREATE OR REPLACE FUNCTION fence.check_owner(_job integer, _generation bigint, _holder text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _row fence.job;
BEGIN
  SELECT * INTO _row FROM fence.job WHERE id = _job;
  IF NOT FOUND THEN
    PERFORM fence.refuse('LF003', format('the fence row %s of this generation is not in database "%s"', _job, current_database()),
      'The generation was raised in another history or another database.',
      'This pod must be replaced: the next generation is raised here.');
  END IF;
  IF _row.generation < _generation THEN
    PERFORM fence.refuse('LF003', format('generation %s of FencedJob "%s" was never raised in this history of database "%s"',
        _generation, _row.name, current_database()),
      format('The fence is at generation %s here, and a fence never goes down: this server was left behind by a failover, or restored.',
        _row.generation),
      'This pod must be replaced. Give the address of the present primary, one that follows a failover.');
  END IF;
  IF _row.generation <> _generation OR _row.holder IS DISTINCT FROM _holder THEN
    PERFORM fence.refuse('LF001', format('generation %s of FencedJob "%s" is over', _generation, _row.name),
      format('Pod %s raised the fence to generation %s at %s; this pod holds generation %s.',
        coalesce(_row.holder_name, _row.holder, 'unknown'), _row.generation,
        to_char(_row.raised_at AT TIME ZONE 'UTC', 'HH24:MI:SS"Z"'), _generation),
      'This process must end; its successor continues from the last checkpoint.');
  END IF;
  PERFORM fence.check_open(_row);
  IF _row.incarnation IS DISTINCT FROM fence.incarnation() THEN
    PERFORM fence.refuse('LF003', format('the history of database "%s" is not the one in which generation %s was raised',
        current_database(), _generation),
      format('Raised in %s, this is %s: the database was promoted, restored or copied since.', _row.incarnation, fence.incarnation()),
      'This pod must be replaced: the next generation is raised in the present history.');
  END IF;
END $$;

-- The row's generation has not been closed. Says why a gate is shut; that nobody gets through it is the gate's own matter.
CREATE FUNCTION fence.check_open(_row fence.job) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _closed_at timestamptz;
BEGIN
  SELECT closed_at INTO _closed_at FROM fence.claim WHERE job_id = _row.id AND generation = _row.generation;
  IF _closed_at IS NOT NULL THEN
    PERFORM fence.refuse('LF001', format('generation %s of FencedJob "%s" is closed', _row.generation, _row.name),
      format('Its owner %s gave it up at %s, and nobody has raised the next one.', coalesce(_row.holder_name, _row.holder),
        to_char(_closed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')),
      'This process must end; the next owner has a higher generation.');
  END IF;
END $$;

-- As in 0004, but for what it says of a closed generation.
CREATE OR REPLACE FUNCTION fence.enter_gate(_job integer, _generation bigint) RETURNS fence.job
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

CREATE FUNCTION fence.is_closed(_row fence.job, _generation bigint, _holder text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, fence, pg_temp AS $$
  SELECT EXISTS (SELECT FROM fence.claim c WHERE c.job_id = _row.id AND c.generation = _generation AND c.closed_at IS NOT NULL
    AND _row.generation = _generation AND _row.holder = _holder)
$$;

-- Step 1, as that of a raise: lock the row, and refuse before any gate is touched.
CREATE FUNCTION fence.close_begin(_name text, _generation bigint, _holder text) RETURNS fence.job
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _row fence.job;
BEGIN
  IF pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' THEN
    PERFORM fence.refuse('LF013', format('database "%s" takes no writes', current_database()),
      'It is a standby, or the transaction is read-only.', 'Give the address of the primary, one that follows a failover.');
  END IF;
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a close must run at READ COMMITTED, not at %', current_setting('transaction_isolation') USING ERRCODE = '25001';
  END IF;
  PERFORM set_config('synchronous_commit', 'local', true);
  SELECT * INTO _row FROM fence.job WHERE name = _name FOR NO KEY UPDATE;
  -- A statement of its own, so that it sees what was committed while the lock was waited for.
  IF fence.is_closed(_row, _generation, _holder) IS NOT TRUE THEN
    PERFORM fence.check_owner(coalesce(_row.id, 0), _generation, _holder);
  END IF;
  RETURN _row;
END $$;

-- The whole close; repeated, it succeeds. The caller's COMMIT makes it hold; anything else leaves the fence as it was.
CREATE FUNCTION fence.close(_name text, _generation bigint, _holder text, OUT sessions_ended text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _row fence.job;
BEGIN
  _row := fence.close_begin(_name, _generation, _holder);
  sessions_ended := '{}';
  IF fence.is_closed(_row, _generation, _holder) THEN
    RETURN;
  END IF;
  sessions_ended := fence.shut(_row, _generation + 1);
  PERFORM fence.assert_shut(_row, NULL);
  UPDATE fence.claim SET closed_at = clock_timestamp() WHERE job_id = _row.id AND generation = _generation;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'generation % of FencedJob "%" has no claim', _generation, _name USING ERRCODE = 'XX001';
  END IF;
END $$;

REVOKE ALL ON FUNCTION fence.check_open(fence.job), fence.is_closed(fence.job, bigint, text),
  fence.close_begin(text, bigint, text), fence.close(text, bigint, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.is_closed(fence.job, bigint, text), fence.close_begin(text, bigint, text),
  fence.close(text, bigint, text) TO fence_sidecar;
