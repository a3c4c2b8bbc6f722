import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { promisify } from "node:util";
import type { Client } from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { systemClock } from "../platform/clock.ts";
import { type Fenced, failure, type JobOfTest, startFenced, until } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { bracketSql, enterLockSql, enterSelectSql } from "./enter.ts";
import { MOVE_GRACE_MS } from "./move.ts";

const run = promisify(execFile);
const CLIENTS = 32;

describe.each(postgresVersions().found)("bounds of a takeover on PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: Client;
  let job: JobOfTest;
  let jobId: number;
  let gate: string;
  let count = 0;

  beforeAll(async () => {
    fenced = await startFenced({
      version,
      settings: { max_prepared_transactions: "5", wal_level: "logical", max_connections: "100" },
    });
    admin = await fenced.connectAdmin();
    await admin.query(
      "CREATE TABLE invoice (id bigserial PRIMARY KEY, generation bigint); GRANT ALL ON ALL TABLES IN SCHEMA public TO invoice_app",
    );
    await admin.query("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO invoice_app");
    // CREATE INDEX CONCURRENTLY is for the owner of the table.
    await admin.query("GRANT CREATE ON SCHEMA public TO invoice_app; ALTER TABLE invoice OWNER TO invoice_app");
  });
  beforeEach(async () => {
    job = fenced.job(`test/bounds-${++count}`);
    ({ jobId } = await job.raise(1));
    gate = `fence.gate_${jobId}_1`;
  });
  afterAll(() => fenced?.stop());

  const raiseWaits = (): Promise<void> =>
    until(
      admin,
      "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::regclass AND mode = 'ExclusiveLock' AND NOT granted)",
      [gate],
    );

  test(`INV-13: a raise under ${CLIENTS} busy clients ends within the drain time and a moment, and no row of the old generation follows`, async () => {
    let stopping = false;
    let commits = 0;
    // All of them are let in before the first begins: one that came behind the raise would be none of the busy ones.
    const sessions = await Promise.all(Array.from({ length: CLIENTS }, () => job.admit(jobId, 1)));
    const busy = async (client: Client): Promise<void> => {
      while (!stopping) {
        try {
          await client.query(
            `BEGIN READ WRITE; ${enterLockSql(jobId, 1)}; INSERT INTO invoice (generation) VALUES (1)`,
          );
          await client.query("SELECT pg_sleep(0.02); COMMIT");
          commits++;
        } catch {
          return; // its session was ended, or its gate is closed
        }
      }
    };
    const clients = sessions.map(busy);
    await until(admin, "SELECT count(*) > 100 FROM invoice");
    const raised = await job.raise(2, { drainMs: 300 });
    const { rows } = await admin.query("SELECT max(id) AS id FROM invoice");
    stopping = true;
    await Promise.all(clients);
    const { rows: after } = await admin.query("SELECT max(id) AS id FROM invoice");
    expect(after[0].id).toBe(rows[0].id);
    expect(raised.tookMs).toBeLessThan(300 + MOVE_GRACE_MS);
    console.log(
      `PostgreSQL ${version}: raise under ${CLIENTS} busy clients took ${Math.round(raised.tookMs)} ms, ${commits} commits before it, ${raised.sessionsEnded} sessions ended`,
    );
  });

  test("INV-13: a session idle inside its transaction is ended after the drain time; its COMMIT fails and its row is not there", async () => {
    const old = await job.admit(jobId, 1);
    await old.query(`BEGIN READ WRITE; ${enterLockSql(jobId, 1)}; INSERT INTO invoice (generation) VALUES (-1)`);
    const raised = await job.raise(2, { drainMs: 200 });
    expect(raised.sessionsEnded).toBe(1);
    expect(raised.tookMs).toBeGreaterThanOrEqual(200);
    expect(raised.tookMs).toBeLessThan(200 + MOVE_GRACE_MS);
    await expect(old.query("COMMIT")).rejects.toThrow();
    expect((await admin.query("SELECT count(*)::int AS n FROM invoice WHERE generation = -1")).rows[0].n).toBe(0);
  });

  test("INV-13: a role with a read-only default and short timeouts of its own raises and drains all the same", async () => {
    const old = await job.admit(jobId, 1);
    await old.query(`BEGIN READ WRITE; ${enterLockSql(jobId, 1)}`);
    await admin.query("ALTER ROLE invoice_app SET default_transaction_read_only = on");
    await admin.query("ALTER ROLE invoice_app SET default_transaction_isolation = serializable");
    // Shorter than the drain; long enough for what is said before the raise bounds itself.
    await admin.query(
      "ALTER ROLE invoice_app SET statement_timeout = '1s'; ALTER ROLE invoice_app SET lock_timeout = '1s'",
    );
    try {
      expect(await job.raise(2, { drainMs: 1_500 })).toMatchObject({ sessionsEnded: 1 });
      await job.raise(3);
      await job.raise(4);
      const { rows } = await admin.query("SELECT count(*)::int AS n FROM fence.gates($1)", [jobId]);
      expect(rows[0].n).toBe(2); // swept
    } finally {
      await admin.query("ALTER ROLE invoice_app RESET ALL");
    }
  });

  test("a transaction that ends within the drain time commits, and the raise goes on at once", async () => {
    const old = await job.admit(jobId, 1);
    await old.query(`BEGIN READ WRITE; ${enterSelectSql(jobId, 1)} ; INSERT INTO invoice (generation) VALUES (-2)`);
    const raising = job.raise(2, { drainMs: 20_000 });
    await raiseWaits();
    await old.query("COMMIT");
    expect((await raising).tookMs).toBeLessThan(10_000);
    expect((await admin.query("SELECT count(*)::int AS n FROM invoice WHERE generation = -2")).rows[0].n).toBe(1);
  });

  test("INV-13: an old session that holds the fence row itself is ended after the drain time", async () => {
    const old = await job.admit(jobId, 1);
    await old.query("BEGIN READ WRITE");
    await old.query("SELECT id FROM fence.raise_begin($1, 2, 'me', 'x')", [job.identity(1).fenceName]);
    expect(await job.raise(2, { drainMs: 200 })).toMatchObject({ generation: 2, sessionsEnded: 1 });
  });

  test.each([
    ["INV-2: an equal generation", 1, "uid-other"],
    ["INV-7: a pod that has raised before", 2, "uid-1"],
    ["an absurd number", 5_000_000, "uid-other"],
  ])(
    "a raise that will be refused ends nobody's session while it waits for the fence row: %s",
    async (_what, generation, holder) => {
      const old = await job.admit(jobId, 1);
      await old.query("BEGIN READ WRITE");
      await old.query("SELECT id FROM fence.raise_begin($1, 2, 'me', 'x')", [job.identity(1).fenceName]);
      const refused = failure(job.raise(generation, { holder, nonce: "n", drainMs: 100 }));
      // Its drain time is over, and the second connection has looked around.
      await until(
        admin,
        "SELECT count(*) = 2 FROM pg_stat_activity WHERE application_name LIKE 'fencedjob %' AND query ~ 'raise_begin|blockers'",
      );
      await old.query("ROLLBACK");
      expect(await refused).toMatchObject({ code: "LF001" });
      expect((await old.query("SELECT 1 AS alive")).rows).toEqual([{ alive: 1 }]);
    },
  );

  test("INV-13: a role's own limits of time, shorter than the drain, do not end the raise", async () => {
    const old = await job.admit(jobId, 1);
    await old.query(`BEGIN READ WRITE; ${enterLockSql(jobId, 1)}`);
    const limits = ["statement_timeout", "lock_timeout", ...(version >= 17 ? ["transaction_timeout"] : [])];
    for (const limit of limits) await admin.query(`ALTER ROLE invoice_app SET ${limit} = '1s'`);
    try {
      expect(await job.raise(2, { drainMs: 1_500 })).toMatchObject({ generation: 2, sessionsEnded: 1 });
    } finally {
      await admin.query("ALTER ROLE invoice_app RESET ALL");
    }
  });

  test("somebody outside the proxy who blocks the raise is named, nothing changes, and the raise works when they are gone", async () => {
    const outsider = await fenced.connectAdmin();
    await outsider.query("SET application_name = 'night backup'");
    await outsider.query(`BEGIN; LOCK TABLE ${gate} IN ACCESS EXCLUSIVE MODE`);
    const { rows } = await outsider.query("SELECT pg_backend_pid() AS pid");
    const startedMs = systemClock.monoMs();
    const error = await failure(job.raise(2, { drainMs: 100 }));
    expect(systemClock.monoMs() - startedMs).toBeLessThan(100 + MOVE_GRACE_MS + 2000);
    expect(error).toMatchObject({ code: "LF004", final: false });
    expect(error.detail).toContain(
      `server process ${rows[0].pid} of role "postgres", application "night backup", idle in transaction for`,
    );
    expect(error.hint).toContain(`pg_terminate_backend(${rows[0].pid})`);
    expect(await job.row()).toMatchObject({ generation: 1 });
    await outsider.query("ROLLBACK");
    await job.raise(2);
  });

  test("who blocks the gate is named, too, when the raise has waited for something else before", async () => {
    const old = await job.admit(jobId, 1);
    await old.query(bracketSql(jobId, job.identity(1)).lock);
    const outsider = await fenced.connectAdmin();
    await outsider.query(`BEGIN; LOCK TABLE ${gate} IN ACCESS EXCLUSIVE MODE`);
    // The bracket is open until the drain ends its session.
    const error = await failure(job.raise(2, { drainMs: 1_500 }));
    await outsider.query("ROLLBACK");
    expect(error).toMatchObject({ code: "LF004", final: false });
    expect(error.detail).toContain('of role "postgres"');
  });

  test("a prepared transaction that holds the gate is named with its identifier", async () => {
    const outsider = await fenced.connect();
    await outsider.query(`BEGIN READ WRITE; ${enterLockSql(jobId, 1)}; PREPARE TRANSACTION 'orphan ${count}'`);
    const error = await failure(job.raise(2, { drainMs: 0 }));
    expect(error).toMatchObject({ code: "LF004" });
    expect(error.detail).toContain(`prepared transaction 'orphan ${count}' of role "invoice_app"`);
    expect(error.hint).toContain(`ROLLBACK PREPARED 'orphan ${count}'`);
    await admin.query(`ROLLBACK PREPARED 'orphan ${count}'`);
    await job.raise(2);
  });

  test("INV-3: a statement in a bracket (CREATE INDEX CONCURRENTLY) makes the raise wait, and is ended after the drain time", async () => {
    const bracket = bracketSql(jobId, job.identity(1));
    const writer = await fenced.connectAdmin();
    await writer.query("BEGIN; INSERT INTO invoice (generation) VALUES (0)"); // the index build waits for it
    const old = await job.admit(jobId, 1);
    await old.query(bracket.lock);
    await old.query(bracket.check);
    await old.query("SET default_transaction_read_only = off");
    const building = failure(old.query(`CREATE INDEX CONCURRENTLY invoice_${count} ON invoice (generation)`));
    const raised = await job.raise(2, { drainMs: 200 });
    expect(raised.sessionsEnded).toBe(1);
    expect(raised.tookMs).toBeGreaterThanOrEqual(200);
    expect(await building).toMatchObject({ code: "57P01" });
    await writer.query("ROLLBACK");
    expect(await failure(admin.query(bracket.check))).toMatchObject({ code: "LF001" });
  });

  test("a raise does not deadlock with an index that is built concurrently in a bracket and ends in time", async () => {
    const bracket = bracketSql(jobId, job.identity(1));
    const writer = await fenced.connectAdmin();
    await writer.query("BEGIN; INSERT INTO invoice (generation) VALUES (0)");
    const old = await job.admit(jobId, 1);
    await old.query(bracket.lock);
    await old.query(bracket.check);
    await old.query("SET default_transaction_read_only = off");
    const building = old.query(`CREATE INDEX CONCURRENTLY invoice_${count} ON invoice (generation)`).then(async () => {
      await old.query(`SET default_transaction_read_only = on; ${bracket.unlock}`);
    });
    await until(
      admin,
      "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONC%' AND wait_event_type = 'Lock')",
    );
    const raising = job.raise(2, { drainMs: 15_000 });
    await until(
      admin,
      "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'fencedjob raise' AND query LIKE '%raise_bracket%')",
    );
    await writer.query("ROLLBACK");
    await building;
    expect((await raising).tookMs).toBeLessThan(12_000);
  });

  test("a raiser whose process is gone leaves nothing open: aborted while it waits, its transaction ends and another raises", async () => {
    const outsider = await fenced.connectAdmin();
    await outsider.query(`BEGIN; LOCK TABLE ${gate} IN SHARE MODE`);
    const abort = new AbortController();
    const raising = failure(job.raise(2, { drainMs: 5000, signal: abort.signal }));
    await raiseWaits();
    abort.abort(new Error("the pod ends"));
    expect((await raising).message).toBe("the pod ends");
    await outsider.query("ROLLBACK");
    await job.raise(3);
    expect((await admin.query("SELECT generation::int AS g FROM fence.gates($1) WHERE open", [jobId])).rows).toEqual([
      { g: 3 },
    ]);
  });

  test("a raiser whose server session is killed raises again by itself under the same nonce", async () => {
    const outsider = await fenced.connectAdmin();
    await outsider.query(`BEGIN; LOCK TABLE ${gate} IN SHARE MODE`);
    const raising = job.raise(2, { drainMs: 5000 });
    await raiseWaits();
    await admin.query(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fencedjob raise'",
    );
    await outsider.query("ROLLBACK");
    expect(await raising).toMatchObject({ generation: 2, previousGeneration: 1 });
  });

  test("a raise does not wait for a synchronous standby that is gone", async () => {
    await admin.query("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    await admin.query("SELECT pg_reload_conf()");
    try {
      await until(admin, "SELECT current_setting('synchronous_standby_names') = 'nobody'");
      const session = await job.admit(jobId, 1);
      expect(await job.raise(2)).toMatchObject({ sessionsEnded: 1 });
      await expect(session.query("SELECT 1")).rejects.toThrow();
    } finally {
      await admin.query("ALTER SYSTEM RESET synchronous_standby_names");
      await admin.query("SELECT pg_reload_conf()");
    }
  });

  test("a FOR ALL TABLES publication does not make the raise fail", async () => {
    await admin.query("CREATE PUBLICATION everything FOR ALL TABLES");
    try {
      await job.raise(2);
      const session = await job.admit(jobId, 2);
      await session.query(`BEGIN READ WRITE; ${enterSelectSql(jobId, 2)}; COMMIT`);
      await job.raise(3);
    } finally {
      await admin.query("DROP PUBLICATION everything");
    }
  });

  test("a plain role dumps the database before and after takeovers, and its open dump does not block a raise", async (context) => {
    const pgDump = "/usr/lib/postgresql/15/bin/pg_dump";
    if (version > 15 || !existsSync(pgDump)) {
      context.skip(`needs a pg_dump that is not older than the server; there is ${existsSync(pgDump) ? "15" : "none"}`);
    }
    await admin.query(
      "DROP ROLE IF EXISTS dumper; CREATE ROLE dumper LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO dumper; GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO dumper",
    );
    const dump = async (): Promise<string> => {
      const { host, port } = fenced.postgres;
      return (await run(pgDump, ["-h", host, "-p", String(port), "-U", "dumper", "postgres"], { maxBuffer: 2 ** 26 }))
        .stdout;
    };
    expect(await dump()).toContain(`CREATE TABLE ${gate}`);
    await job.raise(2);
    expect(await dump()).toContain(`CREATE TABLE fence.gate_${jobId}_2`);
    await admin.query("DROP OWNED BY dumper; DROP ROLE dumper");
  });

  test("the locks of a plain role's dump do not block a raise", async () => {
    await admin.query("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN");
    const dump = await fenced.connect("reader");
    // What pg_dump takes on every table, and keeps for as long as it runs.
    await dump.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
    for (const table of ["job", "claim", "session", "never", "schema_version", `gate_${jobId}_1`]) {
      await dump.query(`LOCK TABLE fence.${table} IN ACCESS SHARE MODE`);
      await dump.query(`SELECT * FROM fence.${table}`);
    }
    expect(await job.raise(2, { drainMs: 100 })).toMatchObject({ generation: 2 });
    expect(await job.raise(3, { drainMs: 100 })).toMatchObject({ generation: 3 });
    expect(await job.raise(4, { drainMs: 100 })).toMatchObject({ generation: 4 });
    await dump.query("COMMIT");
  });
});
