/** Two control planes on one fence name (LF005): no silent duel, and one command that moves the work. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type Fenced, failure, type JobOfTest, startFenced, until } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";

describe.each(postgresVersions().found)("control planes on PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let count = 0;
  let job: JobOfTest;
  const east = { issuer: "east" };
  const west = { issuer: "west" };

  beforeAll(async () => {
    fenced = await startFenced({ version });
  });
  afterAll(() => fenced?.stop());
  beforeEach(async () => {
    job = fenced.job(`test/issuer-${++count}`);
    await job.raise(5, east);
  });

  test("INV-8: a fence that another control plane raised last is refused, above its generation and below, and stays as it is", async () => {
    for (const generation of [3, 5, 6]) {
      const error = await failure(job.raise(generation, { ...west, holder: "uid-west" }));
      expect(error).toMatchObject({ code: "LF005", final: false });
      expect(error.message).toBe(
        `LF005: FencedJob "test/issuer-${count}" of this name is run by another control plane`,
      );
      expect(error.detail).toMatch(
        /^Issuer east raised generation 5 at \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ by its pod invoice-run-5; this is issuer west\. Nothing was changed\.$/,
      );
      expect(error.hint).toContain('takeOver {issuer: "east", generation: 5}');
    }
    expect(await job.row()).toMatchObject({ generation: 5, holder: "uid-5", issuer: "east" });
  });

  test("the refusal comes before any gate is touched: the sessions of the owner go on, also when the raise waits", async () => {
    const row = await job.row();
    const owner = await job.admit(row?.jobId ?? 0, 5);
    const admin = await fenced.connectAdmin();
    await admin.query("BEGIN");
    await admin.query("SELECT FROM fence.job WHERE id = $1 FOR NO KEY UPDATE", [row?.jobId]);
    const refused = failure(job.raise(6, { ...west, drainMs: 1 }));
    const judge = await fenced.connectAdmin();
    // The drain has looked, and has ended nobody.
    await until(
      judge,
      "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'fencedjob drain' AND query LIKE '%blockers%'",
    );
    await admin.query("ROLLBACK");
    expect(await refused).toMatchObject({ code: "LF005" });
    await owner.query("SELECT 1");
  });

  test("taken over as a person has seen it; then the other one is refused, until it takes over in turn", async () => {
    const taken = await job.raise(6, { ...west, takeOver: { ...east, generation: 5 } });
    expect(taken).toMatchObject({ previousGeneration: 5, previousIssuer: "east" });
    expect(await job.row()).toMatchObject({ issuer: "west" });
    expect(await failure(job.raise(7, east))).toMatchObject({ code: "LF005" });
    await job.raise(8, { ...east, takeOver: { ...west, generation: 6 } });
    // What west once accepted is not what east has become since.
    expect(await failure(job.raise(9, { ...west, takeOver: { ...east, generation: 5 } }))).toMatchObject({
      code: "LF005",
    });
  });

  test("an acceptance names one issuer, and gives no right to a generation that is refused anyway", async () => {
    expect(await failure(job.raise(6, { ...west, takeOver: { issuer: "north", generation: 9 } }))).toMatchObject({
      code: "LF005",
    });
    const equal = { ...west, holder: "uid-west", takeOver: { ...east, generation: 5 } };
    expect(await failure(job.raise(5, equal))).toMatchObject({ code: "LF001" });
  });

  test("by hand (no issuer) nobody is foreign, and the row stays with the control plane that runs the job", async () => {
    await job.raise(6, { issuer: "" });
    expect(await job.row()).toMatchObject({ generation: 6, issuer: "east" });
    expect(await failure(job.raise(7, west))).toMatchObject({ code: "LF005" });
    await job.raise(7, east);
    const other = fenced.job(`test/issuer-by-hand-${count}`);
    await other.raise(1, { issuer: "" });
    expect(await other.raise(2, west)).toMatchObject({ previousIssuer: null });
  });

  test("our own raise whose reply was lost is answered again, though it took over", async () => {
    const takeOver = { ...east, generation: 5 };
    await job.raise(6, { ...west, takeOver });
    expect(await job.raise(6, { ...west, takeOver })).toMatchObject({ generation: 6, previousGeneration: 5 });
  });
});
