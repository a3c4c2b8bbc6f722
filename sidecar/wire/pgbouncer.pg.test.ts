/** PgBouncer between the proxy and the server: session mode is as good as the server itself, transaction mode is refused. */
import { connect } from "node:net";
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import type { DatabaseAddress } from "../../fence/database.ts";
import { makeRole } from "../../fence/role.ts";
import { systemClock } from "../../platform/clock.ts";
import { systemRandom } from "../../platform/random.ts";
import { type Fenced, failure, type JobOfTest, startFenced, until } from "../../testing/fenced.ts";
import { type Pooler, pgbouncerMissing, startPgbouncer } from "../../testing/pgbouncer.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, serve } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { cancelRequest } from "./cancel.ts";
import { query } from "./messages.ts";
import { type ProbeFailure, probeSession } from "./probe.ts";

const missing = pgbouncerMissing();
if (missing) console.log(`skipped: ${missing}`);

let jobs = 0;
const ROLE_DEFAULT = "ALTER ROLE invoice_app IN DATABASE postgres SET default_transaction_read_only = on";
const NO_ROLE_DEFAULT = "ALTER ROLE invoice_app IN DATABASE postgres RESET default_transaction_read_only";

describe.skipIf(missing).each(oldestAndNewest())("PgBouncer before PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;
  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query("CREATE TABLE written (i int); GRANT ALL ON written TO invoice_app");
  });
  afterAll(() => fenced.stop());

  interface Through {
    readonly pooler: Pooler;
    readonly address: DatabaseAddress;
    readonly job: JobOfTest;
  }

  /** A pool of its own for each job: the server sessions of a pool belong to one generation of one job. */
  async function through(settings: Record<string, string | number>): Promise<Through> {
    const pooler = await startPgbouncer(fenced.address, settings);
    onTestFinished(() => pooler.stop());
    return { pooler, address: { ...fenced.address, port: pooler.port }, job: fenced.job(`pgbouncer-${++jobs}`) };
  }

  async function proxyOf({ job, address }: Through, generation = 1): Promise<ProxyOfTest> {
    const raise: JobOfTest["raise"] = (g, options) => job.raise(g, { address, ...options });
    return await serve({ ...job, raise, address }, generation);
  }

  async function probe({ job, address }: Through): Promise<ProbeFailure | null> {
    const raised = await job.raise(1, { address });
    const world = { clock: systemClock, random: systemRandom, signal: new AbortController().signal };
    return await probeSession(address, raised, job.identity(1), world);
  }

  const pidOf = async (client: pg.Client): Promise<number> =>
    (await client.query("SELECT pg_backend_pid() AS pid")).rows[0].pid;

  describe.each([
    ["as it comes", {}],
    ["that ignores our startup parameter", { ignore_startup_parameters: "default_transaction_read_only" }],
  ])("in session mode, %s", (_how, ignoring) => {
    const SESSION = { pool_mode: "session", ...ignoring };
    beforeAll(() => makeRole(fenced.admin, { name: "invoice_app", readOnlyDefault: true }));

    test("INV-3: works, and refuses the older generation after a takeover", async () => {
      await admin.query("TRUNCATE written");
      const way = await through(SESSION);
      expect(await probe(way)).toBeNull();
      const proxy = await proxyOf(way);
      const [idle, open] = [await proxy.connect(), await proxy.connect()];
      const raw = await RawClient.open({ port: proxy.port });
      await idle.query("INSERT INTO written VALUES (1)");
      await idle.query("INSERT INTO written VALUES ($1)", [1]);
      await open.query("BEGIN");
      await open.query("INSERT INTO written VALUES (2)");
      const successor = await proxyOf(way, 2);
      expect(await failure(open.query("COMMIT"))).toMatchObject({ code: "LF001" });
      await failure(idle.query("INSERT INTO written VALUES (3)"));
      await raw.until(() => raw.closed);
      expect(raw.transcript.at(-1)).toContain("S=FATAL C=LF001");
      expect(await failure(proxy.connect())).toMatchObject({ code: "LF001" });
      const heir = await successor.connect();
      await heir.query("INSERT INTO written VALUES (4)");
      const { rows } = await admin.query("SELECT i, count(*)::int AS n FROM written GROUP BY i ORDER BY i");
      expect(rows).toEqual([
        { i: 1, n: 2 },
        { i: 4, n: 1 },
      ]);
    });

    test.each([
      "RESET ALL",
      "DISCARD ALL",
      "SET default_transaction_read_only = off",
      "SELECT set_config('default_transaction_read_only', 'off', false)",
    ])("the read-only default is there again after %s, and every write has entered", async (sql) => {
      const way = await through(SESSION);
      const { jobId } = await way.job.raise(1, { address: way.address });
      const client = await (await proxyOf(way)).connect();
      await client.query(sql);
      await client.query("SELECT");
      const { rows } = await client.query("SHOW default_transaction_read_only");
      expect(rows[0].default_transaction_read_only).toBe("on");
      await client.query("BEGIN; INSERT INTO written VALUES (1)");
      const held = "SELECT FROM pg_locks WHERE pid = $1 AND relation = $2::regclass AND mode = 'RowShareLock'";
      expect((await admin.query(held, [await pidOf(client), `fence.gate_${jobId}_1`])).rowCount).toBe(1);
      await client.query("ROLLBACK");
    });

    test("a server session that was given back is used again by the same generation", async () => {
      const way = await through({ ...SESSION, default_pool_size: 3 });
      const proxy = await proxyOf(way);
      const first = await proxy.connect();
      const pid = await pidOf(first);
      await first.query("SET search_path = nowhere");
      await first.end();
      await until(admin, "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $1 AND query = 'DISCARD ALL'", [pid]);
      const second = await proxy.connect();
      expect(await pidOf(second)).toBe(pid);
      await second.query("INSERT INTO written VALUES (9)");
    });

    test("what the client asked for at its start is there", async () => {
      const client = await RawClient.open({
        port: (await proxyOf(await through(SESSION))).port,
        parameters: { application_name: "invoices", DateStyle: "German, DMY", TimeZone: "Asia/Tokyo" },
      });
      for (const [name, want] of [
        ["application_name", "invoices"],
        ["DateStyle", "German, DMY"],
        ["TimeZone", "Asia/Tokyo"],
      ]) {
        expect((await client.exchange(1, query(`SHOW ${name}`)))[1]).toContain(want);
      }
      await client.end();
    });

    test("a cancel ends its query and never a later one; notifications arrive", async () => {
      const { port, connect: open } = await proxyOf(await through(SESSION));
      const raw = await RawClient.open({ port });
      const cancel = (): void =>
        void connect(port, "127.0.0.1").end(cancelRequest(raw.key.readInt32BE(0), raw.key.subarray(4)));
      raw.send(query("SELECT pg_sleep(60)"));
      await until(admin, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
      cancel();
      await raw.until(() => raw.readies === 2);
      expect(raw.transcript.at(-2)).toContain("C=57014");
      for (let round = 0; round < 50; round++) {
        const running = raw.exchange(1, query("SELECT 1"));
        cancel();
        await running;
        expect((await raw.exchange(1, query("SELECT 'mine'"))).join()).toContain("mine");
      }
      await raw.end();
      const [listener, sender] = [await open(), await open()];
      await listener.query("LISTEN ch");
      const heard = new Promise<pg.Notification>((resolve) => listener.once("notification", resolve));
      await sender.query("NOTIFY ch, 'hello'");
      expect((await heard).payload).toBe("hello");
    });

    test("without the default on the role it is refused, and the hint is the statement that mends it", async () => {
      await admin.query(NO_ROLE_DEFAULT);
      onTestFinished(async () => void (await admin.query(ROLE_DEFAULT)));
      const way = await through(SESSION);
      const refused = await probe(way);
      expect(refused).toMatchObject({ code: "LF014", hint: expect.stringContaining(ROLE_DEFAULT) });
      const error = await failure((await proxyOf(way)).connect());
      expect(error).toMatchObject({ code: "LF014", severity: "FATAL" });
      await admin.query(error.hint.slice(error.hint.indexOf("ALTER ROLE")));
      expect(await probe(await through(SESSION))).toBeNull();
    });
  });

  test.each([
    ["and gives back the connection that was used last", {}],
    ["and takes its connections in turn", { server_round_robin: 1, min_pool_size: 3 }],
  ])(
    "transaction mode is refused before the application starts, when the pool has the default %s",
    async (_how, more) => {
      await admin.query(ROLE_DEFAULT);
      const way = await through({ pool_mode: "transaction", default_pool_size: 5, ...more });
      expect(await probe(way)).toMatchObject({ code: "LF014" });
    },
  );

  test("statement mode is refused", async () => {
    const way = await through({ pool_mode: "statement" });
    const error = await failure(way.job.raise(1, { address: way.address }));
    expect(error).toMatchObject({ code: "LF015", detail: expect.stringContaining("statement pooling mode") });
  });

  test("a session of the server is not handed from one job to another", async () => {
    await admin.query(ROLE_DEFAULT);
    const way = await through({ pool_mode: "session", default_pool_size: 3 });
    expect(await probe(way)).toBeNull();
    expect(await probe({ ...way, job: fenced.job(`pgbouncer-${++jobs}`) })).toMatchObject({ code: "LF021" });
  });

  test("sessions that are not reset when they are given back are refused", async () => {
    await admin.query(ROLE_DEFAULT);
    const way = await through({ pool_mode: "session", server_reset_query: "" });
    expect(await probe(way)).toBeNull();
    expect(await probe(way)).toMatchObject({ code: "LF014" });
  });
});
