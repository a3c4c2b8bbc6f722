-- The witness: what a rollback that keeps the incarnation (a volume snapshot, a clone, a copied data directory) cannot know.
-- The owner's heartbeat writes a counter with a random nonce, and remembers what it wrote.

CREATE FUNCTION fence.refuse_rollback(_generation bigint, _counter bigint, _present bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, fence, pg_temp AS $$
BEGIN
  PERFORM fence.refuse('LF003', format('database "%s" was set back to an earlier state under generation %s', current_database(), _generation),
    format('Heartbeat %s of this generation is missing; the last one here is %s. A volume snapshot, a clone or a copied data directory was put in its place.',
      _counter, coalesce(_present::text, 'none')),
    'This pod must be replaced: the next generation is raised in the present state.');
END $$;

-- The pair that the owner has last seen confirmed, or a later one of his: the answer may be on its way.
CREATE FUNCTION fence.check_witness(_job integer, _generation bigint, _counter bigint, _nonce text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _row fence.witness;
BEGIN
  SELECT * INTO _row FROM fence.witness WHERE job_id = _job AND generation = _generation;
  IF (_row.counter > _counter OR (_row.counter = _counter AND _row.nonce = _nonce)) IS NOT TRUE THEN
    PERFORM fence.refuse_rollback(_generation, _counter, _row.counter);
  END IF;
END $$;

-- One heartbeat: everything is as the owner left it, and (_counter + 1, _next) is written. Repeated with the same `_next` it
-- succeeds, because an answer that was lost says nothing.
CREATE FUNCTION fence.beat(_job integer, _generation bigint, _holder text, _incarnation text,
  _counter bigint, _nonce text, _next text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _row fence.witness;
BEGIN
  -- off could lose it in a crash, which then looks like a rollback; on could wait for a standby without bound.
  PERFORM set_config('synchronous_commit', 'local', true);
  PERFORM fence.check_history(_generation, _incarnation);
  PERFORM fence.check_owner(_job, _generation, _holder);
  -- An earlier attempt may still be under way.
  SELECT * INTO _row FROM fence.witness WHERE job_id = _job AND generation = _generation FOR UPDATE;
  IF _row.counter = _counter AND _row.nonce = _nonce THEN
    UPDATE fence.witness SET counter = _counter + 1, nonce = _next, beaten_at = clock_timestamp()
      WHERE job_id = _job AND generation = _generation;
  ELSIF (_row.counter = _counter + 1 AND _row.nonce = _next) IS NOT TRUE THEN
    PERFORM fence.refuse_rollback(_generation, _counter, _row.counter);
  END IF;
END $$;

REVOKE ALL ON FUNCTION fence.refuse_rollback(bigint, bigint, bigint), fence.check_witness(integer, bigint, bigint, text),
  fence.beat(integer, bigint, text, text, bigint, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.check_witness(integer, bigint, bigint, text),
  fence.beat(integer, bigint, text, text, bigint, text, text) TO fence_sidecar;
