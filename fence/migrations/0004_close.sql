-- Close: a raise to nobody, for when there is no successor: at finish, release, suspend, deletion. What INV-3 says of a
-- raise holds of it: once it has committed, no transaction of this generation or an older one commits.

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
  PERFORM fence.begin_move('close');
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

REVOKE ALL ON FUNCTION fence.is_closed(fence.job, bigint, text), fence.close_begin(text, bigint, text),
  fence.close(text, bigint, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.is_closed(fence.job, bigint, text), fence.close_begin(text, bigint, text),
  fence.close(text, bigint, text) TO fence_sidecar;
