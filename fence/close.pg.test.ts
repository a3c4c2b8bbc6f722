/** INV-3 of a close: a raise to nobody. The order of commits under a race of raises and closes: fence/race.pg.test.ts. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { systemClock as clock } from "../platform/clock.ts";
import { type Fenced, failure, type JobOfTest, startFenced, told, until } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { type Closed, closeFence } from "./close.ts";
import { enterLockSql } from "./enter.ts";

describe.each(postgresVersions().found)("close on PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let count = 0;
  let job: JobOfTest;
  let name: string;
  let jobId: number;
  const close = (generation: number, holder?: string, drainMs = 300): Promise<Closed> =>
    closeFence(job.address, job.identity(generation, holder), { drainMs, clock });

  beforeAll(async () => {
    fenced = await startFenced({ version });
  });
  afterAll(() => fenced?.stop());
  beforeEach(async () => {
    name = `test/close-${++count}`;
    job = fenced.job(name);
    ({ jobId } = await job.raise(5));
  });

  const openGates = async (): Promise<unknown[]> => {
    const admin = await fenced.connectAdmin();
    return (await admin.query("SELECT FROM fence.gates($1) WHERE open", [jobId])).rows;
  };

  test("no gate is open any more, sessions have ended, and whoever comes is told that the generation is closed", async () => {
    const owner = await job.admit(jobId, 5);
    const ended = told(owner);
    expect(await close(5)).toMatchObject({ sessionsEnded: 1 });
    expect((await ended).code).toBe("57P01");
    expect(await openGates()).toEqual([]);
    const error = await failure(job.admit(jobId, 5));
    expect(error).toMatchObject({ code: "LF001" });
    expect(error.message).toBe(`LF001: generation 5 of FencedJob "${name}" is closed`);
    expect(error.detail).toMatch(/^Its owner invoice-run-5 gave it up at \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ, and nobody/);
    const row = await job.row();
    expect(row).toMatchObject({ generation: 5, holder: "uid-5" });
    expect(row?.closedAt).not.toBe("");
  });

  test("INV-3: a transaction that is inside is waited for; one that came behind is refused at each isolation level", async () => {
    const [inside, ...late] = await Promise.all([1, 2, 3, 4].map(() => fenced.connect()));
    await inside?.query(`BEGIN READ WRITE; ${enterLockSql(jobId, 5)}`);
    const closing = close(5, undefined, 30_000);
    const judge = await fenced.connectAdmin();
    const waits = "SELECT count(*) = $2 FROM pg_locks WHERE NOT granted AND relation = $1::regclass";
    await until(judge, waits, [`fence.gate_${jobId}_5`, 1]);
    const levels = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
    const refusals = late.map(async (client, index) => {
      await client.query(`BEGIN ISOLATION LEVEL ${levels[index]} READ WRITE`);
      return await failure(client.query(enterLockSql(jobId, 5)));
    });
    await until(judge, waits, [`fence.gate_${jobId}_5`, 4]);
    await inside?.query("COMMIT");
    await closing;
    for (const refusal of await Promise.all(refusals)) expect(refusal.code).toBe("42501");
  });

  test("INV-3: a raise waits for a close that has begun: a close never shuts the gate of a successor", async () => {
    const closer = await fenced.connectAdmin();
    await closer.query("BEGIN");
    await closer.query("SELECT fence.close_begin($1, 5, 'uid-5')", [name]);
    const raising = job.raise(6);
    await until(
      await fenced.connectAdmin(),
      "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%raise_begin%'",
    );
    await closer.query("SELECT fence.close($1, 5, 'uid-5')", [name]);
    await closer.query("COMMIT");
    await raising;
    await job.admit(jobId, 6);
  });

  test("INV-3: what was granted to a single role is taken away, too", async () => {
    const admin = await fenced.connectAdmin();
    await admin.query(`GRANT UPDATE ON fence.gate_${jobId}_5 TO invoice_app`);
    await close(5);
    expect(await openGates()).toEqual([]);
  });

  test("INV-13: a registered session that stays inside is ended after the drain time", async () => {
    const owner = await job.admit(jobId, 5);
    await owner.query(`BEGIN READ WRITE; ${enterLockSql(jobId, 5)}`);
    expect(await close(5)).toMatchObject({ sessionsEnded: 1 });
    await expect(owner.query("COMMIT")).rejects.toThrow();
  });

  test("again is success, and changes nothing", async () => {
    await close(5);
    const row = await job.row();
    expect(await close(5)).toMatchObject({ sessionsEnded: 0 });
    expect(await job.row()).toEqual(row);
  });

  test("only the generation in force, by its own holder", async () => {
    expect(await failure(close(5, "uid-other"))).toMatchObject({ code: "LF001" });
    expect(await failure(close(4))).toMatchObject({ code: "LF001" });
    expect(await failure(close(6))).toMatchObject({ code: "LF003" });
    await job.raise(6);
    expect(await failure(close(5))).toMatchObject({ code: "LF001" });
    const unknown = fenced.job("test/close-unknown");
    const closing = closeFence(job.address, unknown.identity(1), { drainMs: 1, clock });
    expect(await failure(closing)).toMatchObject({ code: "LF003" });
    expect(await openGates()).toHaveLength(1);
  });

  test("in another history the generation is not this one's to close", async () => {
    const admin = await fenced.connectAdmin();
    await admin.query("UPDATE fence.job SET incarnation = 'another/history' WHERE id = $1", [jobId]);
    expect(await failure(close(5))).toMatchObject({ code: "LF003" });
  });

  test("a higher generation is raised as ever, and is open; the raise that was closed is no success when it is repeated", async () => {
    await close(5);
    expect(await failure(job.raise(5))).toMatchObject({ code: "LF001" });
    expect(await job.raise(6)).toMatchObject({ previousGeneration: 5 });
    await job.admit(jobId, 6);
    expect((await job.row())?.closedAt).toBe("");
  });

  test("fence.enter says that the generation is closed", async () => {
    await close(5);
    const client = await fenced.connect();
    await client.query("BEGIN READ WRITE");
    const error = await failure(client.query("SELECT fence.enter($1, 5)", [name]));
    expect(error.message).toBe(`LF001: generation 5 of FencedJob "${name}" is closed`);
  });

  test("a gate that cannot be closed fails the close, and leaves everything as it was", async () => {
    const admin = await fenced.connectAdmin();
    await admin.query(`ALTER TABLE fence.gate_${jobId}_5 OWNER TO postgres`);
    expect(await failure(close(5))).toMatchObject({ code: "LF012" });
    await admin.query(`ALTER TABLE fence.gate_${jobId}_5 OWNER TO fence_owner`);
    await job.admit(jobId, 5);
    await close(5);
  });

  test("whoever blocks it is named (LF004), and the owner's sessions are ended all the same", async () => {
    const admin = await fenced.connectAdmin();
    await admin.query(`BEGIN; LOCK TABLE fence.gate_${jobId}_5 IN EXCLUSIVE MODE`);
    const error = await failure(close(5, undefined, 1));
    await admin.query("ROLLBACK");
    expect(error.code).toBe("LF004");
    expect(error.message).toContain("cannot be closed");
    expect(error.hint).toContain("The close is tried again by itself");
  });
});
