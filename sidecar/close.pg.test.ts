/** What a sidecar leaves behind in the databases: nobody who could write (INV-3). */

import type { Client } from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { install } from "../fence/client.ts";
import type { DatabaseAddress } from "../fence/database.ts";
import { makeRole } from "../fence/role.ts";
import { type Fenced, type JobOfTest, startFenced } from "../testing/fenced.ts";
import { Sidecars } from "../testing/sidecars.ts";
import { until } from "../testing/until.ts";

let fenced: Fenced;
let admin: Client;
/** Another database of the server. */
let other: DatabaseAddress;
let sidecars: Sidecars;
let jobs = 0;

beforeAll(async () => {
  fenced = await startFenced({ version: 18 });
  admin = await fenced.connectAdmin();
  await admin.query("CREATE DATABASE other");
  const there = { ...fenced.admin, database: "other" };
  await install(there);
  await makeRole(there, { name: fenced.address.user });
  other = { ...fenced.address, database: "other" };
});
afterAll(() => fenced?.stop());
beforeEach(() => {
  sidecars = new Sidecars(fenced, `n/close-${++jobs}`);
});
afterEach(() => sidecars.end());

test("closes the generation in front of the release, and says so with it: nobody is left who could write (INV-3)", async () => {
  sidecars.goodSecret();
  const sidecar = await sidecars.start();
  await until(() => sidecar.started());
  const { jobId } = (await sidecars.job.row())!;
  await sidecar.end();
  expect(sidecar.lease()).toMatchObject({ holder: null, generation: 1 });
  expect(sidecar.report()?.fences).toMatchObject([{ database: "ledger", generation: 1, closed: true }]);
  expect((await sidecars.job.row())?.closedAt).not.toBe("");
  await expect(sidecars.job.admit(jobId, 1)).rejects.toMatchObject({ code: "LF001" });
});

test("a close that does not succeed is told, and does not keep the Lease back", async () => {
  sidecars.goodSecret();
  const sidecar = await sidecars.start();
  await until(() => sidecar.started());
  const { jobId } = (await sidecars.job.row())!;
  await admin.query(`BEGIN; LOCK TABLE fence.gate_${jobId}_1 IN EXCLUSIVE MODE`);
  await sidecar.end();
  await admin.query("ROLLBACK");
  expect(sidecar.lease().holder).toBeNull();
  expect(sidecar.report()).toMatchObject({
    fences: [{ closed: false }],
    failures: [{ code: "LF004", final: false }],
  });
});

test("a sidecar that lost ownership closes nothing", async () => {
  sidecars.goodSecret();
  const sidecar = await sidecars.start();
  await until(() => sidecar.started());
  sidecar.api.change({ holderIdentity: "uid-2" }, { "fencedjob.dev/generation": "2" });
  await until(async () => (await sidecar.status()).state.startsWith("generation 1 is over"));
  await sidecar.end();
  expect((await sidecars.job.row())?.closedAt).toBe("");
});

test("a pod that only closes raises, closes, tells it, gives the Lease back and ends; a Secret that comes later will do", async () => {
  await sidecars.job.raise(1, { holder: "uid-0" });
  const sidecar = await sidecars.start({ generation: 2, purpose: "close" });
  await until(() => sidecar.report()?.failures[0]?.code === "LF017");
  sidecars.goodSecret();
  await sidecar.running;
  expect(sidecar.closed()).toBe(true);
  expect(sidecar.lease()).toMatchObject({ holder: null, generation: 2 });
  expect(sidecar.report()).toMatchObject({ failures: [], fences: [{ generation: 2, closed: true }] });
  expect(await sidecars.job.row()).toMatchObject({ generation: 2, holder: "uid-1" });
});

test("a database that has left the spec is raised and closed beside the work, which does not wait for it", async () => {
  await sidecars.job.raise(1, { holder: "uid-0", address: other });
  sidecars.goodSecret();
  const sidecar = await sidecars.start({ generation: 2, closes: ["old"] });
  await until(() => sidecar.started());
  await until(() => sidecar.report()?.unclosed?.[0]?.code === "LF017");
  expect(sidecar.report()).toMatchObject({ failures: [], fences: [{ database: "ledger", closed: false }] });
  sidecars.goodSecret("old", other);
  await until(() => sidecar.report()?.fences.some(({ database, closed }) => database === "old" && closed));
  expect(sidecar.report()?.unclosed).toBeUndefined();
  await sidecar.end();
});

test("a pod that only closes and loses the Lease ends without having closed", async () => {
  const sidecar = await sidecars.start({ generation: 2, purpose: "close" });
  await until(() => sidecar.report()?.failures[0]?.code === "LF017");
  sidecar.api.change({ holderIdentity: "uid-2" }, { "fencedjob.dev/generation": "3" });
  await sidecar.running;
  expect(sidecar.closed()).toBe(false);
});

test.each([
  [
    "another generation was raised above it meanwhile",
    "LF001",
    3,
    (job: JobOfTest) => job.raise(3, { holder: "uid-0" }),
  ],
  [
    "the database was set back to a time before its raise meanwhile",
    "LF003",
    null,
    () => admin.query("UPDATE fence.job SET generation = 0 WHERE name = $1", [sidecars.fenceName]),
  ],
])(
  "a pod that only closes and that a database refuses for good, as %s, says so and is replaced",
  async (_why, code, floor, happens) => {
    sidecars.goodSecret();
    const sidecar = await sidecars.start({ generation: 2, purpose: "close", databases: ["ledger", "late"] });
    await until(() => sidecar.report()?.fences[0]?.generation === 2);
    await happens(sidecars.job);
    // Only then the other one is raised, and both are closed.
    sidecars.goodSecret("late", other);
    const refused = await until(() => sidecar.report()?.failures.find((failure) => failure.code === code));
    expect(refused).toMatchObject({ database: "ledger", final: true, floor });
    await until(() => sidecar.report()?.fences.some(({ database, closed }) => database === "late" && closed));
    expect(sidecar.closed()).toBe(false);
  },
);
