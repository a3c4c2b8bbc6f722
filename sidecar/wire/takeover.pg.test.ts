/** What a client sees when its generation ends, when the permit does, and when nobody knows. */
import type pg from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { Permit } from "../../lease/permit.ts";
import { type Clock, systemClock } from "../../platform/clock.ts";
import { type Failure, type Fenced, failure, type JobOfTest, startFenced, told, until } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { serve } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { bind, copyData, copyDone, execute, flush, parse, query, sync } from "./messages.ts";
import { fenceVerdict, type VerdictReader } from "./verdict.ts";

const ISOLATION = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;
  let job: JobOfTest;
  let jobs = 0;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query("GRANT CREATE ON SCHEMA public TO invoice_app");
    await admin.query("CREATE TABLE ledger (generation int, note text)");
    await admin.query("GRANT ALL ON ledger TO invoice_app");
  });
  beforeEach(async () => {
    job = fenced.job(`billing/job-${++jobs}`);
    await admin.query("TRUNCATE ledger");
  });
  afterAll(() => fenced.stop());

  const verdictBy = async (clock: Clock): Promise<VerdictReader> => {
    const { incarnation } = (await admin.query("SELECT fence.incarnation()")).rows[0];
    return fenceVerdict(() => job.address, { identity: job.identity(1), incarnation }, clock);
  };
  const rows = async (): Promise<number> =>
    Number((await admin.query("SELECT count(*) FROM ledger WHERE generation = 1")).rows[0].count);

  function expectOver(error: Failure): void {
    expect(error).toMatchObject({ severity: "FATAL", code: "LF001" });
    expect(error.message).toMatch(/^LF001: generation 1 of FencedJob "billing\/job-\d+" is over$/);
    expect(error.detail).toMatch(
      /^Pod invoice-run-2 raised the fence to generation 2 at \d\d:\d\d:\d\dZ; this pod holds generation 1\.$/,
    );
    expect(error.hint).toMatch(/This process must end/);
  }

  test.each(ISOLATION)(
    "INV-3, INV-10: a takeover in mid-transaction at %s is the answer to COMMIT, and nothing is left",
    async (level) => {
      const old = await serve(job, 1);
      const client = await old.connect();
      await client.query(`BEGIN ISOLATION LEVEL ${level}`);
      await client.query("INSERT INTO ledger VALUES (1, 'simple')");
      await client.query("INSERT INTO ledger VALUES ($1, 'extended')", [1]);
      await job.raise(2);
      const error = await failure(client.query("COMMIT"));
      expectOver(error);
      expect(error.hint).toMatch(/^Nothing of this transaction was committed\./);
      expectOver(await failure(old.connect()));
      expect(await rows()).toBe(0);
      expect(old.proxy.counters.read().refusedLost).toBe(2);
    },
  );

  test("INV-3: one more statement after the takeover, simple or extended, is refused too", async () => {
    const old = await serve(job, 1);
    const [a, b] = [await old.connect(), await old.connect()];
    for (const client of [a, b]) await client.query("BEGIN");
    for (const client of [a, b]) await client.query("INSERT INTO ledger VALUES (1, 'x')");
    await job.raise(2);
    expectOver(await failure(a.query("INSERT INTO ledger VALUES (1, 'y')")));
    expectOver(await failure(b.query("INSERT INTO ledger VALUES ($1, 'y')", [1])));
    expect(await rows()).toBe(0);
  });

  test("INV-7: an idle session outside of a transaction is told at once", async () => {
    const old = await serve(job, 1);
    const client = await old.connect();
    const ended = told(client);
    await job.raise(2);
    expectOver(await ended);
  });

  test("INV-3: a statement that waits at the gate while the fence is raised is refused, and said to be", async () => {
    const old = await serve(job, 1);
    const [inside, simple, extended] = [await old.connect(), await old.connect(), await old.connect()];
    await inside.query("BEGIN");
    await inside.query("INSERT INTO ledger VALUES (1, 'inside')");
    const waitingAtGate =
      "SELECT count(*) = $1 FROM pg_locks WHERE NOT granted AND relation::regclass::text LIKE 'fence.gate%'";
    // It waits for the one inside, however long the others take to come behind it.
    const raised = job.raise(2, { drainMs: 60_000 });
    await until(admin, waitingAtGate, [1]);
    const refused = [
      failure(simple.query("INSERT INTO ledger VALUES (1, 'queued')")),
      failure(extended.query("INSERT INTO ledger VALUES ($1, 'queued')", [1])),
    ];
    await until(admin, waitingAtGate, [3]);
    const ended = told(inside);
    await inside.query("ROLLBACK");
    for (const error of await Promise.all(refused)) expectOver(error);
    await raised;
    expectOver(await ended);
    expect(await rows()).toBe(0);
  });

  test("INV-10: a COMMIT without an answer is an unknown outcome, never a refusal", async () => {
    const old = await serve(job, 1);
    const client = await old.connect();
    await admin.query(
      "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(30); RETURN NULL; END'",
    );
    await admin.query(
      "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()",
    );
    try {
      await client.query("BEGIN");
      await client.query("INSERT INTO ledger VALUES (1, 'x')");
      const committing = failure(client.query("COMMIT"));
      await until(admin, "SELECT count(*) > 0 FROM pg_stat_activity WHERE query = 'COMMIT' AND wait_event = 'PgSleep'");
      await job.raise(2);
      const error = await committing;
      expect(error).toMatchObject({ severity: "FATAL", code: "08007" });
      expect(error.detail).toMatch(/generation 2/);
    } finally {
      await admin.query("DROP FUNCTION slow CASCADE");
    }
    expect(await rows()).toBe(0);
  });

  /** Tells when a verdict waits for a raise to commit. */
  class WaitingClock implements Clock {
    readonly monoMs = systemClock.monoMs;
    readonly wall = systemClock.wall;
    readonly after = systemClock.after;
    waits = 0;
    readonly waiting = Promise.withResolvers<void>();
    readonly sleep = async (ms: number, signal?: AbortSignal): Promise<void> => {
      this.waits++;
      this.waiting.resolve();
      await systemClock.sleep(ms, signal);
    };
  }

  test("a session ended by an administrator gets the server's own words, at once: the job is still ours", async () => {
    const clock = new WaitingClock();
    const old = await serve(job, 1, { verdict: await verdictBy(clock) });
    const client = await old.connect();
    const { rows: found } = await client.query("SELECT pg_backend_pid() AS pid");
    const ended = told(client);
    await admin.query("SELECT pg_terminate_backend($1)", [found[0].pid]);
    expect(await ended).toMatchObject({ code: "57P01", severity: "FATAL" });
    expect(clock.waits).toBe(0);
    expect((await (await old.connect()).query("SELECT 1 AS one")).rows).toEqual([{ one: 1 }]);
  });

  test("INV-10: a session that a raise has ended waits for its commit, and gets that as the reason", async () => {
    const clock = new WaitingClock();
    const old = await serve(job, 1, { verdict: await verdictBy(clock) });
    const client = await old.connect();
    const ended = told(client);
    const raiser = await fenced.connect();
    await raiser.query("BEGIN READ WRITE");
    const { fenceName } = job.identity(2);
    await raiser.query("SELECT fence.raise($1, 2, 'uid-2', 'invoice-run-2', 'n', 'test')", [fenceName]);
    await clock.waiting.promise;
    await raiser.query("COMMIT");
    expectOver(await ended);
  });

  test("a missing right on the gate is the server's own error, not a loss", async () => {
    const old = await serve(job, 1);
    const client = await old.connect();
    const { jobId } = (await job.row())!;
    await admin.query(`REVOKE ALL ON fence.gate_${jobId}_1 FROM PUBLIC`);
    expect(await failure(client.query("INSERT INTO ledger VALUES (1, 'x')"))).toMatchObject({
      code: "42501",
      severity: "ERROR",
    });
    expect(await failure(client.query("INSERT INTO ledger VALUES ($1, 'x')", [1]))).toMatchObject({ code: "42501" });
    await admin.query(`GRANT SELECT, UPDATE ON fence.gate_${jobId}_1 TO PUBLIC`);
    await client.query("INSERT INTO ledger VALUES (1, 'again')");
    expect(await rows()).toBe(1);
  });

  describe("permit", () => {
    const opened = (): Permit => {
      const permit = new Permit();
      permit.open();
      permit.extend(systemClock.monoMs() + 60_000);
      return permit;
    };
    /** Open, and its deadline has passed. */
    const unconfirmed = (): Permit => {
      const permit = new Permit();
      permit.open();
      return permit;
    };

    test("INV-5: past its deadline work is refused with LF002, simple and extended, and goes on once it is confirmed", async () => {
      const permit = unconfirmed();
      const proxy = await serve(job, 1, { permit });
      const client = await proxy.connect();
      for (const work of [
        () => client.query("INSERT INTO ledger VALUES (1, 'x')"),
        () => client.query("INSERT INTO ledger VALUES ($1, 'x')", [1]),
      ]) {
        const error = await failure(work());
        expect(error).toMatchObject({ code: "LF002", severity: "ERROR" });
        expect(error.message).toMatch(/^LF002: this pod cannot confirm/);
        expect(error.hint).toMatch(/Retry/);
      }
      expect(proxy.proxy.counters.read().refusedUnconfirmed).toBe(2);
      permit.extend(systemClock.monoMs() + 60_000);
      await client.query("INSERT INTO ledger VALUES ($1, 'x')", [1]);
      expect(await rows()).toBe(1);
    });

    test.each([
      ["simple", (client: pg.Client, sql: string) => client.query(sql)],
      [
        "extended",
        (client: pg.Client, sql: string) =>
          client.query({ text: sql, values: [], queryMode: "extended" } as pg.QueryConfig),
      ],
    ])(
      "INV-10: a refusal fails the block; its COMMIT is an error even after the permit is back (%s)",
      async (_how, run) => {
        let nowMs = 0;
        const permit = opened();
        const proxy = await serve(job, 1, {
          permit,
          clock: { ...systemClock, monoMs: () => systemClock.monoMs() + nowMs },
        });
        const client = await proxy.connect();
        await run(client, "BEGIN");
        await run(client, "INSERT INTO ledger VALUES (1, 'x')");
        nowMs = 3_600_000;
        expect(await failure(run(client, "INSERT INTO ledger VALUES (1, 'y')"))).toMatchObject({ code: "LF002" });
        nowMs = 0;
        expect(await failure(run(client, "COMMIT"))).toMatchObject({ code: "LF002" });
        await run(client, "ROLLBACK");
        await run(client, "INSERT INTO ledger VALUES (1, 'z')");
        expect((await admin.query("SELECT note FROM ledger")).rows).toEqual([{ note: "z" }]);
        // COMMIT itself under an unconfirmed permit, ROLLBACK under it, and COPY whose end is a commit.
        await run(client, "BEGIN");
        await run(client, "INSERT INTO ledger VALUES (1, 'w')");
        nowMs = 3_600_000;
        expect(await failure(run(client, "COMMIT"))).toMatchObject({ code: "LF002" });
        await run(client, "ROLLBACK");
        expect(await rows()).toBe(1);
      },
    );

    test("INV-5: COPY data and a pipelined group are not committed past the deadline", async () => {
      let aheadMs = 0;
      const proxy = await serve(job, 1, {
        permit: opened(),
        clock: { ...systemClock, monoMs: () => systemClock.monoMs() + aheadMs },
      });
      const client = await RawClient.open({ port: proxy.port });
      client.send(query("COPY ledger FROM STDIN"));
      await client.until(() => client.transcript.at(-1)?.startsWith("G") === true);
      aheadMs = 3_600_000;
      const copied = await client.exchange(1, copyData(Buffer.from("1\tcopied\n")), copyDone());
      expect(copied[0]).toMatch(/^E S=ERROR C=LF002 /);
      expect(copied.at(-1)).toBe("Z I");
      aheadMs = 0;
      client.send(parse("", "INSERT INTO ledger VALUES (1, 'piped')"), bind("", ""), execute(""));
      client.send(flush());
      await client.until(() => client.transcript.at(-1)?.startsWith("C INSERT") === true);
      aheadMs = 3_600_000;
      const synced = await client.exchange(1, sync());
      expect(synced[0]).toMatch(/^E S=ERROR C=LF002 /);
      expect(synced.at(-1)).toBe("Z I");
      await client.end();
      expect(await rows()).toBe(0);
    });

    test("lost: an idle session ends at once, one in a block at its next message, a busy one with what is known", async () => {
      const permit = opened();
      const proxy = await serve(job, 1, { permit });
      const [idle, open, busy] = [await proxy.connect(), await proxy.connect(), await proxy.connect()];
      await open.query("BEGIN");
      await open.query("INSERT INTO ledger VALUES (1, 'open')");
      const ended = told(idle);
      const working = failure(busy.query("INSERT INTO ledger SELECT 1, 'busy' FROM pg_sleep(30)"));
      await until(admin, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
      permit.lose();
      expect(await ended).toMatchObject({ code: "LF001", severity: "FATAL" });
      expect(await failure(open.query("COMMIT"))).toMatchObject({ code: "LF001" });
      expect(await working).toMatchObject({ code: "08007", severity: "FATAL" });
      expect(await failure(proxy.connect())).toMatchObject({ code: "LF001" });
      expect(await rows()).toBe(0);
    });
  });
});
