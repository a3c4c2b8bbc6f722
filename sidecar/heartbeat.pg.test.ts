/** The owner's heartbeats as the sidecar keeps them: what they notice without any session of the application. */
import { afterEach, beforeEach, expect, test } from "vitest";
import { type Fenced, startFenced } from "../testing/fenced.ts";
import { type SidecarOfTest, Sidecars } from "../testing/sidecars.ts";
import { until } from "../testing/until.ts";

let fenced: Fenced;
let sidecars: Sidecars;
let sidecar: SidecarOfTest;

beforeEach(async () => {
  fenced = await startFenced({ version: 18 });
  sidecars = new Sidecars(fenced, "n/heartbeat");
  sidecars.goodSecret();
  sidecar = await sidecars.start();
  await until(() => sidecar.started());
});
afterEach(async () => {
  await sidecars.end();
  await fenced.stop();
});

const counter = async (): Promise<number> => (await sidecars.job.row())?.witness?.counter ?? 0;

test("INV-7: a database that was set back, and kept its incarnation, ends the generation though nobody asked: the pod is replaced", async () => {
  await until(async () => (await counter()) >= 2);
  const admin = await fenced.connectAdmin();
  await admin.query("UPDATE fence.witness SET counter = 0, nonce = 'of the raise'");
  const failure = await until(() => sidecar.report()?.failures[0]);
  expect(failure).toMatchObject({ code: "LF001", final: true, floor: 1 });
  expect(failure.message).toContain("was set back to an earlier state under generation 1");
  expect((await sidecar.status()).state).toMatch(/^generation 1 is over/);
  expect(await sidecars.refused(sidecar.port)).toBe("LF003");
});

test("INV-7: a raise that no session has met is noticed; the Lease still names this pod", async () => {
  await sidecars.job.raise(2);
  expect(await until(() => sidecar.report()?.failures[0])).toMatchObject({ code: "LF001", final: true, floor: 2 });
});

test("a database that cannot be reached is no loss: told after a while, mended when it is back, same generation", async () => {
  await fenced.postgres.stop("immediate");
  const failure = await until(() => sidecar.report()?.failures[0]);
  expect(failure).toMatchObject({ code: "LF015", final: false });
  expect(failure.message).toContain("the owner does not reach its database");
  expect((await sidecar.status()).state).toBe("owner, generation 1");
  await fenced.postgres.start();
  await until(() => sidecar.report()?.failures.length === 0);
  const before = await counter();
  await until(async () => (await counter()) > before);
  await sidecars.connect(sidecar.port);
});
