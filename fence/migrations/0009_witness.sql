-- The witness: what a rollback that keeps the incarnation (a volume snapshot, a clone, a copied data directory) cannot know.
-- The owner's heartbeat writes a counter with a random nonce, and remembers what it wrote.

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

-- As in 0007, with the first pair of the witness: counter 0 and the nonce of the raise, which nobody else knows.
CREATE OR REPLACE FUNCTION fence.raise(_name text, _generation bigint, _holder text, _holder_name text, _nonce text, _issuer text,
  _accepted_issuer text DEFAULT NULL, _accepted_generation bigint DEFAULT NULL,
  OUT job_id integer, OUT previous_generation bigint, OUT previous_issuer text, OUT incarnation text,
  OUT sessions_ended text[], OUT checkpoint jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
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

-- As in 0003, and witnesses of older generations, unless somebody holds one.
CREATE OR REPLACE FUNCTION fence.sweep(_job integer) RETURNS integer
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
  DELETE FROM fence.witness w USING (
    SELECT o.job_id, o.generation FROM fence.witness o JOIN fence.job j ON j.id = o.job_id
    WHERE o.job_id = _job AND o.generation < j.generation FOR UPDATE OF o SKIP LOCKED
  ) old WHERE w.job_id = old.job_id AND w.generation = old.generation;
  RETURN _dropped;
END $$;

GRANT SELECT ON TABLE fence.witness TO PUBLIC;
REVOKE ALL ON FUNCTION fence.refuse_rollback(bigint, bigint, bigint), fence.check_witness(integer, bigint, bigint, text),
  fence.beat(integer, bigint, text, text, bigint, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.check_witness(integer, bigint, bigint, text),
  fence.beat(integer, bigint, text, text, bigint, text, text) TO fence_sidecar;
