/** Several databases of one job, of which one is down or refuses: the application starts with all of them or not at all (INV-4). */
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { type Fenced, type JobOfTest, startFenced } from "../testing/fenced.ts";
import { Sidecars } from "../testing/sidecars.ts";
import { until } from "../testing/until.ts";

const DATABASES = ["ledger", "audit"];

let ledger: Fenced;
let audit: Fenced;
let sidecars: Sidecars;
let there: JobOfTest;
let jobs = 0;

beforeAll(async () => {
  [ledger, audit] = await Promise.all([startFenced({ version: 18 }), startFenced({ version: 18 })]);
});
afterAll(() => Promise.all([ledger?.stop(), audit?.stop()]));
beforeEach(() => {
  const fenceName = `n/several-${++jobs}`;
  sidecars = new Sidecars(ledger, fenceName);
  there = audit.job(fenceName);
  sidecars.goodSecret();
  sidecars.goodSecret("audit", audit.address);
});
afterEach(() => sidecars.end());

test("both are raised to one generation before the application starts, both are closed at the end", async () => {
  const sidecar = await sidecars.start({ databases: DATABASES });
  await until(() => sidecar.started());
  for (const job of [sidecars.job, there]) expect(await job.row()).toMatchObject({ generation: 1, holder: "uid-1" });
  await sidecar.end();
  const closed = { generation: 1, closed: true };
  expect(sidecar.report()?.fences).toMatchObject([closed, closed]);
  for (const job of [sidecars.job, there]) expect((await job.row())?.closedAt).not.toBe("");
});

test("one is down: the raise of the other stands, the application is not started, the condition names the one; then it goes on", async () => {
  await audit.postgres.stop("fast");
  const sidecar = await sidecars.start({ databases: DATABASES });
  const failure = await until(() => sidecar.report()?.failures.find(({ code }) => code === "LF015"));
  expect(failure).toMatchObject({ database: "audit", final: false });
  await until(() => sidecar.report()?.fences.length === 1);
  expect(sidecar.report()?.fences).toMatchObject([{ database: "ledger", generation: 1 }]);
  expect(await sidecars.job.row()).toMatchObject({ generation: 1, holder: "uid-1" });
  expect(await sidecar.started()).toBe(false);
  // It opens its ports beside the raise.
  const held = until(() => sidecars.connect(sidecar.port));
  await until(async () => (await sidecar.status()).held === 1);
  await audit.postgres.start();
  await until(() => sidecar.started());
  await held;
  await until(() => sidecar.report()?.failures.length === 0);
});

test("one refuses for good after the other has raised: the pod can never own, says above which generation, and closes what it has", async () => {
  await there.raise(4, { holder: "uid-0" });
  const sidecar = await sidecars.start({ databases: DATABASES });
  const failure = await until(() => sidecar.report()?.failures[0]);
  expect(failure).toMatchObject({ database: "audit", code: "LF001", final: true, floor: 4 });
  await until(() => sidecar.report()?.fences.length === 1);
  expect(await sidecar.started()).toBe(false);
  await sidecar.end();
  expect((await sidecars.job.row())?.closedAt).not.toBe("");
  expect(await there.row()).toMatchObject({ generation: 4, closedAt: "" });
  // The next pod, above the floor, has both.
  const next = await sidecars.start({ databases: DATABASES, uid: "uid-2", generation: 5 });
  await until(() => next.started());
  for (const job of [sidecars.job, there]) expect(await job.row()).toMatchObject({ generation: 5, holder: "uid-2" });
});

test("one waits for another control plane's word (LF005) while the other has raised", async () => {
  await there.raise(1, { holder: "uid-0", issuer: "other cluster" });
  const sidecar = await sidecars.start({ databases: DATABASES, generation: 2 });
  const failure = await until(() => sidecar.report()?.failures[0]);
  expect(failure).toMatchObject({ database: "audit", code: "LF005", issuer: "other cluster", floor: 1 });
  await until(() => sidecar.report()?.fences.length === 1);
  expect(await sidecar.started()).toBe(false);
});

test("INV-7: one is lost under the owner: the whole generation is over, in the other database, too", async () => {
  const sidecar = await sidecars.start({ databases: DATABASES });
  await until(() => sidecar.started());
  await there.raise(2, { holder: "uid-0" });
  expect(await until(() => sidecar.report()?.failures[0])).toMatchObject({ database: "audit", final: true, floor: 2 });
  expect(await sidecars.refused(sidecar.port)).toBe("LF001");
  expect(await sidecars.job.row()).toMatchObject({ generation: 1 });
});
