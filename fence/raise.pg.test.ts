import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, failure, type JobOfTest, startFenced, until } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";

const MAX = Number.MAX_SAFE_INTEGER;

describe.each(postgresVersions().found)("raise on PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let count = 0;
  let job: JobOfTest;
  const newJob = (): JobOfTest => fenced.job(`test/raise-${++count}`);

  beforeAll(async () => {
    fenced = await startFenced({ version });
  });
  afterAll(() => fenced?.stop());

  test("the first raise makes the row, its gate and its claim, and returns no checkpoint", async () => {
    job = newJob();
    const raised = await job.raise(3);
    expect(raised).toMatchObject({ generation: 3, previousGeneration: null, sessionsEnded: 0, checkpoint: null });
    expect(await job.row()).toMatchObject({
      jobId: raised.jobId,
      generation: 3,
      holder: "uid-3",
      holderName: "invoice-run-3",
      issuer: "test",
      incarnation: raised.incarnation,
      presentIncarnation: raised.incarnation,
    });
    expect(raised.incarnation).toMatch(/^\d+\/00000001\/\d+\/\d+$/);
  });

  test("a job that was never raised has no row", async () => {
    expect(await newJob().row()).toBeNull();
  });

  test("INV-1: a generation below the fence is refused for good, and the row stays as it is", async () => {
    job = newJob();
    await job.raise(5);
    const error = await failure(job.raise(4));
    expect(error).toMatchObject({ code: "LF001", final: true });
    expect(error.message).toMatch(
      /^LF001: generation 4 of FencedJob "test\/raise-\d+" cannot be raised: the fence is at generation 5$/,
    );
    expect(error.detail).toContain("Pod invoice-run-5 raised generation 5");
    expect(await job.row()).toMatchObject({ generation: 5, holder: "uid-5" });
  });

  test("INV-2: an equal generation with another holder is refused", async () => {
    job = newJob();
    await job.raise(5);
    expect(await failure(job.raise(5, { holder: "uid-other" }))).toMatchObject({ code: "LF001", final: true });
    expect(await job.row()).toMatchObject({ holder: "uid-5" });
  });

  test("the same generation, holder and nonce again is our own retry and succeeds", async () => {
    job = newJob();
    await job.raise(4);
    const first = await job.raise(5);
    expect(await job.raise(5)).toMatchObject({
      jobId: first.jobId,
      previousGeneration: 4,
      incarnation: first.incarnation,
    });
  });

  test("INV-7: the same holder with another nonce is another life of the pod and is refused", async () => {
    job = newJob();
    await job.raise(5);
    const error = await failure(job.raise(5, { nonce: "second life" }));
    expect(error).toMatchObject({ code: "LF001", final: true });
    expect(error.detail).toContain("in an earlier life of its sidecar");
  });

  test("INV-7: a holder that has raised an earlier generation raises no other", async () => {
    job = newJob();
    await job.raise(5, { holder: "uid-a" });
    await job.raise(6, { holder: "uid-b" });
    const error = await failure(job.raise(7, { holder: "uid-a" }));
    expect(error).toMatchObject({ code: "LF001", final: true });
    expect(error.message).toContain("this pod has raised generation 5");
    expect(await job.row()).toMatchObject({ generation: 6 });
  });

  test("an absurd jump is refused, so that one bad number does not use them all up", async () => {
    job = newJob();
    await job.raise(5);
    for (const absurd of [1_000_006, MAX]) {
      expect(await failure(job.raise(absurd))).toMatchObject({ code: "LF001" });
    }
    await job.raise(1_000_005);
  });

  test("a generation that is no integer from 1 to 2^53-1 never reaches the database", async () => {
    job = newJob();
    for (const bad of [0, -1, 1.5, MAX + 1, Number.NaN]) await expect(job.raise(bad)).rejects.toThrow(RangeError);
    const admin = await fenced.connectAdmin();
    await admin.query("BEGIN");
    const error = await failure(admin.query(`SELECT fence.raise('test/raw', ${2n ** 53n}, 'h', 'h', 'n', 'i')`));
    expect(error.code).toBe("22023");
  });

  test("INV-2: a refused raise touches no gate: it waits for the row, not for the gate", async () => {
    job = newJob();
    const { jobId } = await job.raise(5);
    const winner = await fenced.connectAdmin();
    await winner.query("BEGIN");
    await winner.query("SELECT fence.raise_begin($1, 7, 'uid-7', 'n')", [`test/raise-${count}`]);
    const loser = failure(job.raise(6));
    const judge = await fenced.connectAdmin();
    await until(
      judge,
      "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%raise_begin%'",
    );
    const { rows } = await judge.query("SELECT count(*)::int AS n FROM pg_locks WHERE relation = $1::regclass", [
      `fence.gate_${jobId}_5`,
    ]);
    expect(rows[0].n).toBe(0);
    await winner.query("SELECT fence.raise($1, 7, 'uid-7', 'invoice-run-7', 'n', 'test')", [`test/raise-${count}`]);
    await winner.query("COMMIT");
    expect(await loser).toMatchObject({ code: "LF001" });
  });

  test("a raise returns the progress of the generation before, as it was when the drain ended", async () => {
    job = newJob();
    const { jobId } = await job.raise(1);
    const owner = await job.admit(jobId, 1);
    const admin = await fenced.connectAdmin();
    await owner.query(`BEGIN READ WRITE; LOCK TABLE fence.gate_${jobId}_1 IN ROW SHARE MODE`);
    const raising = job.raise(2, { drainMs: 5000 });
    await until(
      admin,
      "SELECT EXISTS (SELECT FROM pg_locks WHERE mode = 'ExclusiveLock' AND NOT granted AND relation = $1::regclass)",
      [`fence.gate_${jobId}_1`],
    );
    // The progress function comes later; the row is what counts.
    await admin.query("UPDATE fence.claim SET progress = '{\"invoice\": 11}' WHERE job_id = $1", [jobId]);
    await owner.query("COMMIT");
    expect(await raising).toMatchObject({ checkpoint: { invoice: 11 }, sessionsEnded: 1 });
  });

  test("a raise insists on READ COMMITTED: an older snapshot would return an older checkpoint", async () => {
    const client = await fenced.connectAdmin();
    for (const level of ["REPEATABLE READ", "SERIALIZABLE"]) {
      await client.query(`BEGIN ISOLATION LEVEL ${level}`);
      expect(await failure(client.query("SELECT fence.raise('test/level', 1, 'h', 'h', 'n', 'i')"))).toMatchObject({
        code: "25001",
      });
      await client.query("ROLLBACK");
    }
    await client.query("BEGIN READ ONLY");
    expect(await failure(client.query("SELECT fence.raise('test/level', 1, 'h', 'h', 'n', 'i')"))).toMatchObject({
      code: "LF013",
    });
    await client.query("ROLLBACK");
  });

  test("a raise commits with synchronous_commit=local, whatever its role has set", async () => {
    const client = await fenced.connectAdmin();
    for (const setting of ["off", "on", "remote_apply"]) {
      await client.query(`BEGIN; SET LOCAL synchronous_commit = ${setting}`);
      await client.query("SELECT fence.raise_begin('test/sync', 1, 'h', 'n')");
      expect((await client.query("SHOW synchronous_commit")).rows[0].synchronous_commit).toBe("local");
      await client.query("ROLLBACK");
    }
  });

  test("INV-8: in another history the same generation is not taken for our own retry", async () => {
    job = newJob();
    const { jobId } = await job.raise(5);
    const admin = await fenced.connectAdmin();
    await admin.query("UPDATE fence.job SET incarnation = 'another/history' WHERE id = $1", [jobId]);
    expect(await failure(job.raise(5))).toMatchObject({ code: "LF003", final: true });
    expect(await job.raise(6)).toMatchObject({ previousGeneration: 5 });
    const row = await job.row();
    expect(row?.incarnation).toBe(row?.presentIncarnation);
  });

  test("a loaded dump of the same cluster has another incarnation, and its old gate is closed by the next raise", async () => {
    const row = await newJob().raise(1);
    const other = await fenced.connectAdmin();
    await other.query(`CREATE DATABASE copy_${count} TEMPLATE template0`);
    const copy = { ...fenced.admin, database: `copy_${count}` };
    const { install } = await import("./client.ts");
    await install(copy);
    const raised = await fenced.job("test/copy").raise(1, { address: { ...fenced.address, database: copy.database } });
    expect(raised.incarnation).not.toBe(row.incarnation);
    expect(raised.incarnation.split("/")[0]).toBe(row.incarnation.split("/")[0]);
  });

  test("gates of older generations are dropped by later raises, all but the newest closed one, unless somebody holds them", async () => {
    job = newJob();
    const { jobId } = await job.raise(1);
    const admin = await fenced.connectAdmin();
    await admin.query(`BEGIN; LOCK TABLE fence.gate_${jobId}_1 IN ACCESS SHARE MODE`);
    const gates = async (): Promise<number[]> =>
      (await admin.query("SELECT generation::int AS g FROM fence.gates($1) ORDER BY 1", [jobId])).rows.map(
        ({ g }) => g,
      );
    for (let generation = 2; generation <= 5; generation++) await job.raise(generation);
    expect(await gates()).toEqual([1, 4, 5]);
    await admin.query("ROLLBACK");
    await job.raise(6);
    expect(await gates()).toEqual([5, 6]);
  });

  test("… and a gate that a view of somebody's depends on keeps none of the others", async () => {
    job = newJob();
    const { jobId } = await job.raise(1);
    const admin = await fenced.connectAdmin();
    await admin.query(`CREATE VIEW depends_on_gate AS SELECT FROM fence.gate_${jobId}_1`);
    for (const generation of [2, 3, 4, 5]) await job.raise(generation);
    const { rows } = await admin.query("SELECT generation::int AS g FROM fence.gates($1) ORDER BY 1", [jobId]);
    expect(rows.map(({ g }) => g)).toEqual([1, 4, 5]);
    await admin.query("DROP VIEW depends_on_gate");
  });
});
