/**
 * A takeover in the middle of a statement that commits more than once by itself: CREATE INDEX CONCURRENTLY and its kin, and
 * VACUUM. It ends within its bound (INV-13), nothing of the statement is committed behind it (INV-3), and what PostgreSQL
 * leaves of it is what docs/ways-around.md says, and mended by the successor as it says.
 */
import type pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { MOVE_GRACE_MS } from "../../fence/move.ts";
import { type Fenced, failure, startFenced, until } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { serve, serveNewJob } from "../../testing/proxy.ts";

const DRAIN_MS = 300;

/** As docs/ways-around.md gives it. */
const UNFINISHED = `
  SELECT indexrelid::regclass::text AS left FROM pg_index WHERE NOT indisvalid
  UNION ALL SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhdetachpending`;
/** Everything that the statements below change, with the transaction that did it last. */
const CATALOG = `
  SELECT indexrelid::int AS oid, xmin::text, indisvalid, indisready, indislive FROM pg_index
  UNION ALL SELECT inhrelid::int, xmin::text, inhdetachpending, false, false FROM pg_inherits
  UNION ALL SELECT oid::int, xmin::text, false, false, false FROM pg_class WHERE relnamespace = 'public'::regnamespace
  ORDER BY 1, 2`;

/** Somebody else, whom the statement waits for to its end. */
const WRITER = "BEGIN; INSERT INTO t VALUES (0)";
const READER = "BEGIN; SELECT FROM t";
const OLD_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM other";
const phase = (name: string): string =>
  `SELECT EXISTS (SELECT FROM pg_stat_progress_create_index WHERE phase = '${name}')`;
const WAITS_FOR_LOCK =
  "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query ~ '^(DROP INDEX|ALTER TABLE)' AND wait_event_type = 'Lock')";

interface Case {
  readonly sql: string;
  readonly outsider?: string;
  /** True once the statement is where it is to be ended. */
  readonly reached: string;
  readonly left: readonly string[];
  /** What the successor does then. */
  readonly mend: readonly string[];
}

const CASES: Readonly<Record<string, Case>> = {
  "CREATE INDEX CONCURRENTLY that waits for a writer": {
    sql: "CREATE INDEX CONCURRENTLY t_new ON t (i)",
    outsider: WRITER,
    reached: phase("waiting for writers before build"),
    left: ["t_new"],
    mend: ["DROP INDEX CONCURRENTLY t_new", "CREATE INDEX CONCURRENTLY t_new ON t (i)"],
  },
  "CREATE INDEX CONCURRENTLY that builds": {
    sql: "CREATE INDEX CONCURRENTLY t_new ON t (slow(i))",
    reached: "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep')",
    left: ["t_new"],
    mend: ["DROP INDEX CONCURRENTLY t_new"],
  },
  "CREATE UNIQUE INDEX CONCURRENTLY that waits for an old snapshot": {
    sql: "CREATE UNIQUE INDEX CONCURRENTLY t_new ON t (i)",
    outsider: OLD_SNAPSHOT,
    reached: phase("waiting for old snapshots"),
    left: ["t_new"],
    mend: ["REINDEX INDEX CONCURRENTLY t_new"],
  },
  "REINDEX CONCURRENTLY that waits for a writer": {
    sql: "REINDEX INDEX CONCURRENTLY t_i",
    outsider: WRITER,
    reached: phase("waiting for writers before build"),
    left: ["t_i_ccnew"],
    mend: ["DROP INDEX CONCURRENTLY t_i_ccnew", "REINDEX TABLE CONCURRENTLY t"],
  },
  "REINDEX CONCURRENTLY that has exchanged the indexes": {
    sql: "REINDEX INDEX CONCURRENTLY t_i",
    outsider: READER,
    reached: phase("waiting for readers before marking dead"),
    left: ["t_i_ccold"],
    mend: ["DROP INDEX CONCURRENTLY t_i_ccold"],
  },
  "DROP INDEX CONCURRENTLY": {
    sql: "DROP INDEX CONCURRENTLY t_i",
    outsider: READER,
    reached: WAITS_FOR_LOCK,
    left: ["t_i"],
    mend: ["DROP INDEX CONCURRENTLY t_i"],
  },
  "DETACH PARTITION CONCURRENTLY": {
    sql: "ALTER TABLE t DETACH PARTITION t_1 CONCURRENTLY",
    outsider: READER,
    reached: WAITS_FOR_LOCK,
    left: ["t_1"],
    mend: ["ALTER TABLE t DETACH PARTITION t_1 FINALIZE"],
  },
  VACUUM: {
    sql: "VACUUM t",
    reached: "SELECT EXISTS (SELECT FROM pg_stat_progress_vacuum)",
    left: [],
    mend: ["VACUUM t"],
  },
};

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;
  let outsider: pg.Client;

  beforeAll(async () => {
    fenced = await startFenced({ version, settings: { autovacuum: "off" } });
    admin = await fenced.connectAdmin();
    outsider = await fenced.connectAdmin();
    await admin.query(
      `CREATE TABLE other (); GRANT ALL ON other TO invoice_app; GRANT CREATE ON SCHEMA public TO invoice_app;
       CREATE FUNCTION slow(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN $1; END'`,
    );
  });
  beforeEach(async () => {
    await admin.query("DROP TABLE IF EXISTS t, t_1");
  });
  afterEach(() => outsider.query("ROLLBACK"));
  afterAll(() => fenced.stop());

  const tableFor = (sql: string): string =>
    /PARTITION/.test(sql)
      ? "CREATE TABLE t (i int) PARTITION BY RANGE (i); CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (1000000)"
      : "CREATE TABLE t (i int); CREATE INDEX t_i ON t (i)";
  const left = async (): Promise<string[]> => (await admin.query(UNFINISHED)).rows.map((row) => row.left);

  const cases = Object.entries(CASES).flatMap(([name, one]) => [
    { name, how: "simple", one, values: undefined },
    { name, how: "extended", one, values: [] },
  ]);
  test.each(cases)("INV-3, INV-13: $name ($how)", async ({ one, values }) => {
    await admin.query(`${tableFor(one.sql)}; INSERT INTO t SELECT generate_series(1, 20000)`);
    await admin.query("ALTER TABLE t OWNER TO invoice_app; ALTER TABLE IF EXISTS t_1 OWNER TO invoice_app");
    const { job, proxy } = await serveNewJob(fenced, { drainMs: DRAIN_MS });
    const owner = await proxy.connect();
    await owner.query("SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1");
    if (one.outsider) await outsider.query(one.outsider);
    const ended = failure(
      owner.query({ text: one.sql, ...(values && { values, queryMode: "extended" }) } as pg.QueryConfig),
    );
    await until(admin, one.reached);

    const { tookMs, sessionsEnded } = await job.raise(2, { drainMs: DRAIN_MS });
    expect(sessionsEnded).toBe(1);
    expect(tookMs).toBeGreaterThanOrEqual(DRAIN_MS);
    expect(tookMs).toBeLessThan(DRAIN_MS + MOVE_GRACE_MS);
    const catalog = (await admin.query(CATALOG)).rows;
    expect(await left()).toEqual(one.left);
    expect(await ended).toMatchObject({ severity: "FATAL", code: "08007" });
    await outsider.query("ROLLBACK");
    expect((await admin.query(CATALOG)).rows).toEqual(catalog);

    const successor = await (await serve(job, 2)).connect();
    for (const sql of one.mend) await successor.query(sql);
    expect(await left()).toEqual([]);
    await successor.query("INSERT INTO other DEFAULT VALUES");
  });

  test("an invalid unique index, left by a takeover, refuses duplicates until it is dropped", async () => {
    await admin.query("CREATE TABLE t (i int); INSERT INTO t VALUES (1); ALTER TABLE t OWNER TO invoice_app");
    const { job, proxy } = await serveNewJob(fenced, { drainMs: DRAIN_MS });
    await outsider.query(OLD_SNAPSHOT);
    const ended = failure((await proxy.connect()).query("CREATE UNIQUE INDEX CONCURRENTLY t_new ON t (i)"));
    await until(admin, phase("waiting for old snapshots"));
    await job.raise(2, { drainMs: DRAIN_MS });
    await ended;
    await outsider.query("ROLLBACK");
    const successor = await (await serve(job, 2)).connect();
    expect(await failure(successor.query("INSERT INTO t VALUES (1)"))).toMatchObject({ code: "23505" });
    await successor.query("DROP INDEX CONCURRENTLY t_new");
    await successor.query("INSERT INTO t VALUES (1)");
  });
});
