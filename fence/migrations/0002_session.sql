-- Admission of server sessions, once per session (the proxy runs it, see fence/enter.ts), at a cost that does not grow with the
-- sessions that are open; and their end.

-- First message of a session. Leaves a mark that a later message must find: with a pooler in transaction mode the two
-- may meet different sessions of the server.
CREATE FUNCTION fence.begin_session() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, fence, pg_temp AS $$
BEGIN
  -- Sessions opened on a standby live through its promotion, into another history.
  IF pg_is_in_recovery() THEN
    PERFORM fence.refuse('LF013', format('database "%s" is a standby', current_database()),
      'It is in recovery: it takes no writes, and a session opened now would live through its promotion.',
      'Give the address of the primary, one that follows a failover.');
  END IF;
  IF current_setting('default_transaction_read_only') <> 'on' THEN
    PERFORM fence.refuse('LF014', 'the session did not keep its read-only default',
      'default_transaction_read_only was asked for at the connection''s start, and RESET comes back to off.',
      format('A pooler in between drops startup parameters. Give the address of the server itself; or, for a pooler in session mode,'
        ' let the role have it by itself: ALTER ROLE %I IN DATABASE %I SET default_transaction_read_only = on',
        session_user, current_database()));
  END IF;
  PERFORM set_config('fence.session_pid', pg_backend_pid()::text, false);
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

-- The row says that this generation and holder are the current ones, and open, in this history. A row below the caller's
-- generation is another history: in his own a fence never goes down (INV-1).
CREATE FUNCTION fence.check_owner(_job integer, _generation bigint, _holder text) RETURNS void
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

-- The history that the pod's raise was answered from. The row cannot tell: a raise that is tried again (its answer was lost,
-- or its server) may have committed on an old primary and on the new one, and the row of each is right for itself.
CREATE FUNCTION fence.check_history(_generation bigint, _incarnation text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, fence, pg_temp AS $$
BEGIN
  IF fence.incarnation() IS DISTINCT FROM _incarnation THEN
    PERFORM fence.refuse('LF003', format('the history of database "%s" is not the one in which generation %s was raised',
        current_database(), _generation),
      format('Raised in %s, this is %s: the database was promoted, restored or copied since, or this server was left behind.',
        _incarnation, fence.incarnation()),
      'This pod must be replaced: the next generation is raised in the present history.');
  END IF;
END $$;

-- Forgets registered sessions whose server process is gone. A process whose start we may not see counts as alive. Not through
-- the view pg_stat_activity, which would be made for every process of the server.
CREATE FUNCTION fence.forget_ended_sessions(_job integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
BEGIN
  PERFORM pg_stat_clear_snapshot();
  DELETE FROM fence.session s USING (
    SELECT r.pid, r.backend_start FROM fence.session r
    WHERE r.job_id = _job AND NOT EXISTS (
      SELECT FROM pg_stat_get_activity(NULL) a
      WHERE a.pid = r.pid AND (a.backend_start IS NULL OR a.backend_start = r.backend_start))
    FOR UPDATE OF r SKIP LOCKED
  ) ended
  WHERE s.pid = ended.pid AND s.backend_start = ended.backend_start;
END $$;

-- Called in a transaction that has entered the gate: a raise either waits for it and then sees the registration, or
-- has closed the gate before it (INV-3, INV-13). It asks for the start of its own process, not of all of them, and one
-- admission in 32 forgets those that have ended, as each raise does. Until then their rows do no harm.
CREATE FUNCTION fence.admit_session(_job integer, _generation bigint, _holder text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _why text;
  _start timestamptz;
BEGIN
  IF current_setting('fence.session_pid', true) IS DISTINCT FROM pg_backend_pid()::text THEN
    PERFORM fence.refuse('LF014', 'two messages of one connection met two sessions of the server',
      'A pooler in transaction mode is in between.',
      'Give the address of the server itself, or of a pooler in session mode.');
  END IF;
  IF NOT EXISTS (
    SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND mode = 'RowShareLock' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND relation = to_regclass(format('fence.gate_%s_%s', _job, _generation))
  ) THEN
    PERFORM fence.refuse('LF021', 'fence.admit_session was called outside the gate',
      format('This transaction holds no lock on fence.gate_%s_%s.', _job, _generation),
      'Enter the gate first, in the same transaction.');
  END IF;
  PERFORM fence.check_owner(_job, _generation, _holder);
  _why := fence.why_not_fenceable(session_user);
  IF _why IS NOT NULL THEN
    PERFORM fence.refuse('LF010', format('role "%s" cannot be fenced', session_user),
      format('It is %s, so a revoked gate would not refuse it.', _why),
      'Create a role for the application: fencedjob db role --database-url … --name invoice_app');
  END IF;
  IF NOT fence.can_end_sessions_of(session_user) THEN
    PERFORM fence.refuse('LF012', format('a takeover could not end the sessions of role "%s"', session_user),
      format('Role %s has neither pg_signal_backend and pg_read_all_stats nor membership in "%s".', current_user, session_user),
      format('Run, as an administrator: GRANT %I TO %I; or fencedjob db role --database-url … --name %s',
        session_user, current_user, session_user));
  END IF;
  SELECT a.backend_start INTO STRICT _start FROM pg_stat_get_activity(pg_backend_pid()) a;
  -- A session belongs to one job, generation and holder for its whole life: registered for another, the raise of its own
  -- job would not find it (INV-13).
  IF EXISTS (
    SELECT FROM fence.session s WHERE s.pid = pg_backend_pid() AND s.backend_start = _start
      AND (s.job_id, s.generation, s.holder) IS DISTINCT FROM (_job, _generation, _holder)
  ) THEN
    PERFORM fence.refuse('LF021', 'this session was admitted for another job or generation',
      'A session of the server belongs to one generation of one job, so that the raise of the next one can end it.',
      'Open another connection for the other job.');
  END IF;
  -- Neither disk nor standby is waited for, also when reading has made the transaction write to the log (it cleans pages up;
  -- an unlogged row alone never waits). A crash loses this commit, and with it the row and the session that the row is
  -- about. A raise loses nothing: a commit is seen before the gate's lock is given back, whenever it comes to the disk, so
  -- the raise that waited at the gate sees the row.
  PERFORM set_config('synchronous_commit', 'off', true);
  IF random() < 1.0 / 32 THEN
    PERFORM fence.forget_ended_sessions(_job);
  END IF;
  INSERT INTO fence.session (pid, backend_start, job_id, generation, holder)
  VALUES (pg_backend_pid(), _start, _job, _generation, _holder)
  ON CONFLICT (pid, backend_start) DO NOTHING;
END $$;

-- Ends every registered session of generations older than this one, and waits a moment for them to be gone. Returns
-- which (a name each, so that two calls do not count one session twice); fails if one cannot be ended, because it might
-- not be refused either.
CREATE FUNCTION fence.end_sessions(_job integer, _generation bigint) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS $$
DECLARE
  _wait_until timestamptz := clock_timestamp() + interval '500 milliseconds';
  _session record;
  _ended text[] := '{}';
BEGIN
  PERFORM pg_stat_clear_snapshot();
  FOR _session IN
    SELECT s.pid, s.generation, a.usename, a.backend_start
    FROM fence.session s JOIN pg_stat_activity a
      -- The start as well as the pid: a pid is reused.
      ON a.pid = s.pid AND (a.backend_start IS NULL OR a.backend_start = s.backend_start)
    WHERE s.job_id = _job AND s.generation < _generation
  LOOP
    BEGIN
      IF _session.backend_start IS NULL THEN
        RAISE insufficient_privilege;
      END IF;
      IF pg_terminate_backend(_session.pid) THEN
        _ended := _ended || (_session.pid || ' ' || extract(epoch FROM _session.backend_start));
      END IF;
    EXCEPTION WHEN insufficient_privilege THEN
      PERFORM fence.refuse('LF012', format('a session of the older generation %s cannot be ended', _session.generation),
        format('Server process %s belongs to role "%s", over which role %s has no rights any more.',
          _session.pid, _session.usename, current_user),
        format('Run, as an administrator: SELECT pg_terminate_backend(%s); the raise is tried again by itself.', _session.pid));
    END;
  END LOOP;
  -- They can enter no gate any more; waiting only lets them drop other locks before the successor begins.
  WHILE clock_timestamp() < _wait_until AND EXISTS (
    SELECT FROM fence.session s JOIN pg_stat_activity a ON a.pid = s.pid AND a.backend_start = s.backend_start
    WHERE s.job_id = _job AND s.generation < _generation)
  LOOP
    PERFORM pg_sleep(0.002);
    PERFORM pg_stat_clear_snapshot();
  END LOOP;
  PERFORM fence.forget_ended_sessions(_job);
  RETURN _ended;
END $$;

REVOKE ALL ON FUNCTION fence.begin_session(), fence.check_open(fence.job), fence.check_owner(integer, bigint, text),
  fence.check_history(bigint, text), fence.forget_ended_sessions(integer), fence.admit_session(integer, bigint, text),
  fence.end_sessions(integer, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence.begin_session(), fence.check_history(bigint, text),
  fence.admit_session(integer, bigint, text), fence.end_sessions(integer, bigint) TO fence_sidecar;
-- A bracket opens under whatever role its session has taken (SET ROLE), as a transaction enters. It tells what anybody may read.
GRANT EXECUTE ON FUNCTION fence.check_owner(integer, bigint, text) TO PUBLIC;
