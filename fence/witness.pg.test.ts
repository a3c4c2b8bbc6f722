/** The heartbeat's row: what it notices, what it leaves alone, and what a lost answer does not mean. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { systemClock as clock } from "../platform/clock.ts";
import { type Fenced, failure, type JobOfTest, startFenced } from "../testing/fenced.ts";
import { oldestAndNewest } from "../testing/postgres.ts";
import type { Raised } from "./client.ts";
import { closeFence } from "./close.ts";
import { beat, type Witness } from "./witness.ts";

describe.each(oldestAndNewest())("witness on PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let count = 0;
  let job: JobOfTest;
  let raised: Raised;

  beforeAll(async () => {
    fenced = await startFenced({ version });
  });
  afterAll(() => fenced?.stop());
  beforeEach(async () => {
    job = fenced.job(`test/witness-${++count}`);
    raised = await job.raise(5);
  });

  const beats = (witness: Witness, next: string, incarnation = raised.incarnation): Promise<Witness> => {
    const { jobId } = raised;
    return beat(job.address, job.identity(5), { jobId, incarnation, witness, next, timeoutMs: 15_000, clock });
  };
  const setTo = async ({ counter, nonce }: Witness): Promise<void> => {
    const admin = await fenced.connectAdmin();
    await admin.query("UPDATE fence.witness SET counter = $2, nonce = $3 WHERE job_id = $1", [
      ...[raised.jobId, counter, nonce],
    ]);
  };

  test("the raise begins it, each beat moves it on; the row of the job stays as it is", async () => {
    expect(raised.witness).toEqual({ counter: 0, nonce: "nonce-5" });
    const admin = await fenced.connectAdmin();
    const rowVersion = async (): Promise<unknown> =>
      (await admin.query("SELECT xmin, ctid FROM fence.job WHERE id = $1", [raised.jobId])).rows;
    const before = await rowVersion();
    const first = await beats(raised.witness, "n1");
    const second = await beats(first, "n2");
    expect(second).toEqual({ counter: 2, nonce: "n2" });
    expect((await job.row())?.witness).toEqual(second);
    expect(await rowVersion()).toEqual(before);
  });

  test("a beat whose answer was lost is repeated with success, whether it was written or not", async () => {
    const written = await beats(raised.witness, "n1");
    expect(await beats(raised.witness, "n1")).toEqual(written);
    expect((await job.row())?.witness).toEqual(written);
  });

  test.each([
    ["an older counter", { counter: 1, nonce: "n1" }],
    ["the same counter with another nonce: a clone in which the owner went on", { counter: 3, nonce: "other" }],
    ["the next counter with another nonce", { counter: 4, nonce: "other" }],
    ["a counter that is further on than the owner: somebody else beats", { counter: 9, nonce: "n3" }],
  ])("INV-7: %s is a database that was set back", async (_what, present) => {
    await setTo(present);
    const error = await failure(beats({ counter: 3, nonce: "n3" }, "n4"));
    expect(error).toMatchObject({ code: "LF003", final: true });
    expect(error.message).toContain("was set back to an earlier state under generation 5");
    expect(error.detail).toContain(
      `Heartbeat 3 of this generation is missing; the last one here is ${present.counter}.`,
    );
  });

  test("no row at all is a database that was set back, too", async () => {
    const admin = await fenced.connectAdmin();
    await admin.query("DELETE FROM fence.witness WHERE job_id = $1", [raised.jobId]);
    expect(await failure(beats(raised.witness, "n1"))).toMatchObject({ code: "LF003" });
  });

  test("the generation's end, and another history, are told as such", async () => {
    expect(await failure(beats(raised.witness, "n1", "7/2/5/16385"))).toMatchObject({ code: "LF003" });
    await closeFence(job.address, job.identity(5), { drainMs: 100, clock });
    expect(await failure(beats(raised.witness, "n1"))).toMatchObject({ code: "LF001" });
    await job.raise(6);
    expect(await failure(beats(raised.witness, "n1"))).toMatchObject({ code: "LF001" });
  });

  test("B18: a REPEATABLE READ transaction of the owner that has read every table of the fence writes and commits beside beats", async () => {
    const client = await job.admit(raised.jobId, 5);
    const admin = await fenced.connectAdmin();
    await admin.query(`CREATE TABLE b18_${count} (n int); GRANT ALL ON b18_${count} TO invoice_app`);
    for (const level of ["REPEATABLE READ", "SERIALIZABLE"]) {
      await client.query(`BEGIN ISOLATION LEVEL ${level} READ WRITE`);
      await client.query(`LOCK TABLE fence.gate_${raised.jobId}_5 IN ROW SHARE MODE`);
      await client.query("SELECT * FROM fence.job; SELECT * FROM fence.claim; SELECT * FROM fence.witness");
      const { witness } = (await job.row())!;
      await beats(witness!, `n-${level}`);
      await client.query(`INSERT INTO b18_${count} VALUES (1)`);
      await client.query("COMMIT");
    }
    expect((await admin.query(`SELECT FROM b18_${count}`)).rowCount).toBe(2);
  });

  test("INV-13: a beat that is under way does not hold up a raise, and a raise not a beat", async () => {
    const frozen = await fenced.connect();
    await frozen.query("BEGIN READ WRITE");
    await frozen.query("SELECT fence.beat($1, 5, 'uid-5', $2, 0, 'nonce-5', 'n1')", [
      ...[raised.jobId, raised.incarnation],
    ]);
    expect((await job.raise(6, { drainMs: 100 })).tookMs).toBeLessThan(15_000);
    await frozen.query("COMMIT");
    expect((await job.row())?.witness).toEqual({ counter: 0, nonce: "nonce-6" });
    await job.raise(7);
    const admin = await fenced.connectAdmin();
    const { rows } = await admin.query("SELECT generation::int FROM fence.witness WHERE job_id = $1", [raised.jobId]);
    expect(rows).toEqual([{ generation: 7 }]);
  });

  test("a session is admitted only where the last confirmed heartbeat stands, or a later one", async () => {
    const admit = (witness: Witness) => job.admit(raised.jobId, 5, { witness });
    const first = await beats(raised.witness, "n1");
    for (const witness of [raised.witness, first]) await admit(witness);
    await beats(first, "n2");
    await admit(first);
    await setTo({ counter: 1, nonce: "other" });
    expect(await failure(admit(first))).toMatchObject({ code: "LF003" });
    await setTo(raised.witness);
    const error = await failure(admit(first));
    expect(error).toMatchObject({ code: "LF003" });
    expect(error.detail).toContain("A volume snapshot, a clone or a copied data directory");
  });
});
