-- The refusals of a raise in one place: the raise asks under the lock of the row, and the drain, which ends the sessions of
-- older generations meanwhile, asks without it.

-- Why this holder cannot raise this generation of the job (INV-1, INV-2, INV-7), for LF001; null if it can. Does NOT know
-- whether the raise in question is the one that made the row what it is: that is the nonce's matter.
CREATE FUNCTION fence.why_not_raised(_row fence.job, _generation bigint, _holder text,
  OUT message text, OUT detail text, OUT hint text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _claimed bigint;
BEGIN
  IF _row.generation >= _generation THEN
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
    message := format('this pod has raised generation %s of FencedJob "%s" before', _claimed, _row.name);
    detail := 'A pod raises at most one generation: its memory must not outlive it.';
    hint := 'This pod is replaced.';
    RETURN;
  END IF;
  IF _generation - _row.generation > 1000000 THEN
    message := format('generation %s of FencedJob "%s" is absurd: the fence is at generation %s',
      _generation, _row.name, _row.generation);
    detail := 'A jump of more than 1000000 generations would use up the numbers.';
    hint := 'Look who changed the generation in the Lease or the status.';
  END IF;
END $$;

-- Step 1 of the raise, as in 0003 but for where the refusals are.
CREATE OR REPLACE FUNCTION fence.raise_begin(_name text, _generation bigint, _holder text, _nonce text) RETURNS fence.job
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _row fence.job;
  _why record;
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
  -- A statement of its own, so that it sees what was committed while the lock was waited for.
  SELECT * INTO _why FROM fence.why_not_raised(_row, _generation, _holder);
  IF _why.message IS NOT NULL THEN
    PERFORM fence.refuse('LF001', _why.message, _why.detail, _why.hint);
  END IF;
  RETURN _row;
END $$;

REVOKE ALL ON FUNCTION fence.why_not_raised(fence.job, bigint, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.why_not_raised(fence.job, bigint, text) TO fence_sidecar;
