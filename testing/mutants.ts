/**
 * The safety lines of the fence's SQL, each with what its removal would make of it. A test suite that is worth its name
 * fails with every one of them; `testing/mutate.ts` tries, and fence/mutation.pg.test.ts keeps the ones that only a
 * race can show.
 */
import { loadMigrations, type Migration } from "../fence/migrations.ts";

type Edit = readonly [from: string, to: string];

const NOT_ASSERTED = "WHERE g.open AND g.generation IS DISTINCT FROM _generation;";

export const MUTANTS: Readonly<Record<string, readonly Edit[]>> = {
  "the row is not locked first": [
    ["FROM fence.job WHERE name = _name FOR NO KEY UPDATE", "FROM fence.job WHERE name = _name"],
  ],
  "the row is locked FOR UPDATE": [["FOR NO KEY UPDATE", "FOR UPDATE"]],
  "an older or equal generation is not refused": [["IF _row.generation >= _generation THEN", "IF false THEN"]],
  "a holder may raise twice": [["AND holder = _holder;\n  IF FOUND THEN", "AND holder = _holder;\n  IF false THEN"]],
  "the nonce is not compared": [[" AND _row.nonce = _nonce", ""]],
  "another control plane is not refused": [["IF _row.issuer <> _issuer AND", "IF false AND"]],
  "an acceptance holds for ever": [[" AND _row.generation <= _accepted_generation)", ")"]],
  "an acceptance is of any issuer": [["(_row.issuer = _accepted_issuer AND ", "(true AND "]],
  "a raise by hand takes the job from its control plane": [
    ["issuer = coalesce(nullif(_issuer, ''), _row.issuer)", "issuer = _issuer"],
  ],
  "an absurd jump is allowed": [["_generation - _row.generation > 1000000", "false"]],
  "our own retry is believed in any history": [
    ["    PERFORM fence.check_owner(_row.id, _generation, _holder);\n    RETURN _row;", "    RETURN _row;"],
  ],
  "any isolation level will do": [
    ["IF current_setting('transaction_isolation') <> 'read committed' THEN", "IF false THEN"],
  ],
  "a read-only transaction will do": [["OR current_setting('transaction_read_only') = 'on'", ""]],
  "synchronous_commit is left alone": [["  PERFORM set_config('synchronous_commit', 'local', true);\nEND", "END"]],
  "the bracket is not waited for": [["SELECT pg_try_advisory_xact_lock(1279673923, _job)", "SELECT true"]],
  "the gate is not locked": [["EXECUTE format('LOCK TABLE %s IN EXCLUSIVE MODE', _gate);", "NULL;"]],
  "only the gate of the row is locked, not one that stands open": [
    ["WHERE g.generation = _row.generation OR g.open ORDER", "WHERE g.generation = _row.generation ORDER"],
  ],
  "the gate is locked ACCESS EXCLUSIVE": [["IN EXCLUSIVE MODE", "IN ACCESS EXCLUSIVE MODE"]],
  "older sessions are not ended": [["_ended := fence.end_sessions(_row.id, _below);", "_ended := '{}';"]],
  "sessions are ended by pid alone": [
    [
      "ON a.pid = s.pid AND (a.backend_start IS NULL OR a.backend_start = s.backend_start)\n    WHERE s.job_id = _job AND s.generation < _generation",
      "ON a.pid = s.pid\n    WHERE s.job_id = _job AND s.generation < _generation",
    ],
  ],
  "sessions of every generation are ended": [
    [
      "WHERE s.job_id = _job AND s.generation < _generation\n  LOOP\n    BEGIN",
      "WHERE s.job_id = _job\n  LOOP\n    BEGIN",
    ],
  ],
  "a session that cannot be ended is passed over": [
    [
      "PERFORM fence.refuse('LF012', format('a session of the older",
      "PERFORM concat('LF012', format('a session of the older",
    ],
  ],
  "nothing is revoked": [["EXECUTE format('REVOKE ALL ON TABLE %s FROM %s CASCADE', _table, _grantee);", "NULL;"]],
  "the revoke does not cascade": [["FROM %s CASCADE'", "FROM %s'"]],
  "only PUBLIC is revoked": [
    ["WHERE c.oid = _table AND a.grantee <> c.relowner", "WHERE c.oid = _table AND a.grantee = 0"],
  ],
  "SELECT goes with the rest": [["  EXECUTE format('GRANT SELECT ON TABLE %s TO PUBLIC', _table);\n", ""]],
  "the owners of the gates are not looked at": [["WHERE pg_get_userbyid(c.relowner) <> current_user;", "WHERE false;"]],
  "the closed gates are not asserted, and what is revoked is too little": [
    [NOT_ASSERTED, "WHERE false;"],
    ["WHERE c.oid = _table AND a.grantee <> c.relowner\n", "WHERE c.oid = _table AND a.grantee = 0\n"],
  ],
  "the sentinel is not closed again": [
    ["PERFORM fence.close_table(c.oid) FROM pg_class c WHERE c.oid =", "PERFORM FROM pg_class c WHERE c.oid ="],
  ],
  "a leftover gate is kept": [["EXECUTE format('DROP TABLE IF EXISTS fence.%I', _next);", ""]],
  "the next gate is not opened to everybody": [
    ["GRANT SELECT, UPDATE ON TABLE fence.%I TO PUBLIC", "GRANT SELECT, UPDATE ON TABLE fence.%I TO fence_sidecar"],
  ],
  "the checkpoint is read before the drain": [
    [
      "  sessions_ended := fence.shut(_row, _generation);",
      "  SELECT c.progress INTO checkpoint FROM fence.claim c WHERE c.job_id = _row.id ORDER BY c.generation DESC LIMIT 1;\n  sessions_ended := fence.shut(_row, _generation);",
    ],
    [
      "  SELECT c.progress INTO checkpoint FROM fence.claim c WHERE c.job_id = _row.id ORDER BY c.generation DESC LIMIT 1;\n  UPDATE",
      "  UPDATE",
    ],
  ],
  "a close does not shut the gate": [
    ["sessions_ended := fence.shut(_row, _generation + 1);", "sessions_ended := '{}';"],
  ],
  "a close leaves the sessions of its own generation": [
    ["fence.shut(_row, _generation + 1)", "fence.shut(_row, _generation)"],
  ],
  "a close is not asserted, and what is revoked is too little": [
    ["PERFORM fence.assert_shut(_row, NULL);", ""],
    ["WHERE c.oid = _table AND a.grantee <> c.relowner\n", "WHERE c.oid = _table AND a.grantee = 0\n"],
  ],
  "anybody may close": [["PERFORM fence.check_owner(coalesce(_row.id, 0), _generation, _holder);", ""]],
  "a closed generation is told nowhere": [["  PERFORM fence.check_open(_row);\n  IF", "  IF"]],
  "a close does not lock the row": [
    [
      "  SELECT * INTO _row FROM fence.job WHERE name = _name FOR NO KEY UPDATE;",
      "  SELECT * INTO _row FROM fence.job WHERE name = _name;",
    ],
  ],
  "a beat finds any pair right": [
    ["ELSIF (_row.counter = _counter + 1 AND _row.nonce = _next) IS NOT TRUE THEN", "ELSIF false THEN"],
  ],
  "a beat does not look at the nonce": [
    [
      "  IF _row.counter = _counter AND _row.nonce = _nonce THEN\n    UPDATE",
      "  IF _row.counter = _counter THEN\n    UPDATE",
    ],
  ],
  "a beat whose answer was lost is a rollback": [
    ["ELSIF (_row.counter = _counter + 1 AND _row.nonce = _next) IS NOT TRUE THEN", "ELSE"],
  ],
  "a beat does not look at the owner": [
    ["  PERFORM fence.check_owner(_job, _generation, _holder);\n  -- An earlier", "  -- An earlier"],
  ],
  "a beat does not look at the history": [
    ["  PERFORM fence.check_history(_generation, _incarnation);\n  PERFORM", "  PERFORM"],
  ],
  "admission does not look at the counter": [["IF (_row.counter > _counter OR (", "IF (true OR ("]],
  "admission does not look at the nonce": [
    ["(_row.counter = _counter AND _row.nonce = _nonce)) IS NOT TRUE", "(_row.counter = _counter)) IS NOT TRUE"],
  ],
  "no claim is made": [
    [
      "INSERT INTO fence.claim (job_id, generation, holder, holder_name, incarnation)\n    VALUES (_row.id, _generation, _holder, _holder_name, fence.incarnation());",
      "",
    ],
  ],
  "the history of the row is not compared": [
    ["IF _row.incarnation IS DISTINCT FROM fence.incarnation() THEN", "IF false THEN"],
  ],
  "a row that is lower counts as a successor's": [["  IF _row.generation < _generation THEN", "  IF false THEN"]],
  "the history that the raise was answered from is not compared": [
    ["IF fence.incarnation() IS DISTINCT FROM _incarnation THEN", "IF false THEN"],
  ],
  "the holder of the row is not compared": [["OR _row.holder IS DISTINCT FROM _holder THEN", "THEN"]],
  "admission does not check the owner again": [
    ["  PERFORM fence.check_owner(_job, _generation, _holder);\n  _why", "  _why"],
  ],
  "admission outside the gate": [
    ["  IF NOT EXISTS (\n    SELECT FROM pg_locks", "  IF false AND NOT EXISTS (\n    SELECT FROM pg_locks"],
  ],
  "a session is not registered": [
    ["  ON CONFLICT (pid, backend_start) DO NOTHING", "  LIMIT 0 ON CONFLICT (pid, backend_start) DO NOTHING"],
  ],
  "a session can be registered for another job": [
    ["AND (s.job_id, s.generation, s.holder) IS DISTINCT FROM (_job, _generation, _holder)", "AND false"],
    [
      "ON CONFLICT (pid, backend_start) DO NOTHING",
      "ON CONFLICT (pid, backend_start) DO UPDATE SET job_id = excluded.job_id, generation = excluded.generation, holder = excluded.holder",
    ],
  ],
  "sessions that have ended are never forgotten": [["IF random() < 1.0 / 32 THEN", "IF false THEN"]],
  "each admission looks at every session": [["IF random() < 1.0 / 32 THEN", "IF true THEN"]],
  "a role that can become any other is admitted": [
    ["OR (r.rolcreaterole AND current_setting('server_version_num')::int < 160000)", ""],
  ],
  "any role is admitted": [["IF _why IS NOT NULL THEN", "IF false THEN"]],
  "only the login role itself is looked at": [["AND pg_has_role(_login, r.oid, 'MEMBER')", "AND r.rolname = _login"]],
  "only UPDATE on the sentinel counts": [["'INSERT, UPDATE, DELETE, TRUNCATE'", "'UPDATE'"]],
  "a role whose sessions cannot be ended is admitted": [
    ["IF NOT fence.can_end_sessions_of(session_user) THEN", "IF false THEN"],
  ],
  "the read-only default is not checked": [
    ["IF current_setting('default_transaction_read_only') <> 'on' THEN", "IF false THEN"],
  ],
  "a change of the server session is not noticed": [
    ["IF current_setting('fence.session_pid', true) IS DISTINCT FROM pg_backend_pid()::text THEN", "IF false THEN"],
  ],
  "swept gates are waited for": [["PERFORM set_config('lock_timeout', '5ms', true), ", "PERFORM "]],
  "open gates are swept too": [
    [
      "WHERE NOT g.open AND g.generation < j.generation ORDER BY g.generation DESC OFFSET 1",
      "WHERE true ORDER BY g.generation DESC OFFSET 1",
    ],
  ],
  "a gate that closed while it was waited for counts as open": [
    ["    _open := has_table_privilege('public', to_regclass(_gate), 'UPDATE');\n  END IF;", "  END IF;"],
  ],
  "the trigger and fence.enter take no lock": [["EXECUTE 'LOCK TABLE ' || _gate || ' IN ROW SHARE MODE';", "NULL;"]],
  "an open gate of an older generation will do": [["IF _open AND _row.generation = _generation THEN", "IF _open THEN"]],
  "a snapshot older than the takeover is not noticed": [
    ["IF _open AND _row.generation < _generation THEN", "IF false THEN"],
    ["IF _open AND _row.generation = _generation THEN", "IF _open AND _row.generation <= _generation THEN"],
  ],
  "fence.enter does not compare the history": [
    [
      "_row := fence.enter_gate(_row.id, _generation);\n  IF _row.incarnation IS DISTINCT FROM fence.incarnation() THEN",
      "_row := fence.enter_gate(_row.id, _generation);\n  IF false THEN",
    ],
  ],
  "any lock on a gate is an entry": [[" AND l.granted AND l.mode <> 'AccessShareLock'", " AND l.granted"]],
  "somebody else's lock on a gate is an entry": [["WHERE l.pid = pg_backend_pid() AND l.locktype", "WHERE l.locktype"]],
  "the trigger sees the caller's search_path": [
    [
      "RETURNS trigger\nLANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, fence, pg_temp AS",
      "RETURNS trigger\nLANGUAGE plpgsql SECURITY DEFINER AS",
    ],
  ],
  "the name of a table's job is not compared": [["IF _row.name <> TG_ARGV[1] THEN", "IF false THEN"]],
  "everybody may override": [["IF NOT _superuser AND (pg_has_role", "IF false AND (pg_has_role"]],
  "an application's role may override": [["pg_has_role(session_user, 'fence_sidecar', 'MEMBER') OR ", ""]],
  "an override holds for other transactions": [
    ["WHERE txid = pg_current_xact_id_if_assigned() AND incarn", "WHERE incarn"],
  ],
  "an override of another history holds": [
    ["if_assigned() AND incarnation = fence.incarnation()) THEN", "if_assigned()) THEN"],
  ],
  "a trigger for less than every write counts": [[" AND t.tgtype = 62", ""]],
  "partitions are not protected": [
    [
      " UNION SELECT i.inhrelid FROM f JOIN pg_inherits i ON i.inhparent = f.oid\n    ) SELECT oid",
      "\n    ) SELECT oid",
    ],
  ],
  "a table gets a second job": [["WHERE p.table = _table AND p.job_id <> _id;", "WHERE false;"]],
  "a partition is protected without its parent": [["i.inhparent <> ALL (_family) LIMIT 1", "false LIMIT 1"]],
  "a subscription's worker is not refused": [["      IF _always THEN", "      IF false THEN"]],
};

/** Several lines of defence at once: with any one of them in place no stale commit is possible. */
export const GROUPS: Readonly<Record<string, readonly Edit[]>> = {
  "neither row lock nor bracket": [
    ["FROM fence.job WHERE name = _name FOR NO KEY UPDATE", "FROM fence.job WHERE name = _name"],
    ["SELECT pg_try_advisory_xact_lock(1279673923, _job)", "SELECT true"],
  ],
  "neither row lock nor bracket nor compare-and-set": [
    ["FROM fence.job WHERE name = _name FOR NO KEY UPDATE", "FROM fence.job WHERE name = _name"],
    ["SELECT pg_try_advisory_xact_lock(1279673923, _job)", "SELECT true"],
    ["WHERE id = _row.id AND generation = _row.generation AND generation < _generation;", "WHERE id = _row.id;"],
  ],
  "neither revoke nor assertion": [
    ["EXECUTE format('REVOKE ALL ON TABLE %s FROM %s CASCADE', _table, _grantee);", "NULL;"],
    [NOT_ASSERTED, "WHERE false;"],
  ],
};

/** The schema with a mutant's edits; undefined without a name. Fails when an edit no longer fits the text. */
export function mutatedMigrations(name: string | undefined): readonly Migration[] | undefined {
  if (!name) return undefined;
  const edits = MUTANTS[name] ?? GROUPS[name];
  if (!edits) throw new Error(`no such mutant: ${name}`);
  let migrations = loadMigrations();
  for (const [from, to] of edits) {
    if (!migrations.some(({ sql }) => sql.includes(from))) throw new Error(`mutant "${name}" no longer fits: ${from}`);
    migrations = migrations.map((migration) => ({ ...migration, sql: migration.sql.replace(from, () => to) }));
  }
  return migrations;
}
