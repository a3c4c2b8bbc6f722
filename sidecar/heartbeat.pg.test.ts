/** The owner's heartbeats as the sidecar keeps them: what they notice without any session of the application. */
import { afterEach, beforeEach, expect, onTestFinished, test } from "vitest";
import { readFence } from "../fence/client.ts";
import { makeRole } from "../fence/role.ts";
import { systemClock } from "../platform/clock.ts";
import { type Fenced, startFenced } from "../testing/fenced.ts";
import { type SidecarOfTest, Sidecars } from "../testing/sidecars.ts";
import { until } from "../testing/until.ts";
import { startWire } from "./wire/thread.ts";

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

const counter = async (user = fenced.address.user): Promise<number> =>
  (await readFence({ ...fenced.address, user }, sidecars.fenceName, { clock: systemClock }))?.witness?.counter ?? 0;

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

test("a role and a password that change under the owner, in the database and then in the Secret, are followed: heartbeats, sessions, the close", async () => {
  const admin = await fenced.connectAdmin();
  await makeRole(fenced.admin, { name: "next_app" });
  await admin.query("ALTER ROLE invoice_app NOLOGIN");
  expect(await sidecars.refused(sidecar.port)).toBe("LF016");
  const before = await counter("next_app");
  sidecars.secret({ user: "next_app" });
  await until(async () => (await counter("next_app")) > before + 1);
  const client = await sidecars.connect(sidecar.port);
  expect((await client.query("SELECT session_user AS who")).rows[0].who).toBe("next_app");
  await sidecar.end();
  expect(sidecar.report()?.fences).toMatchObject([{ generation: 1, closed: true }]);
});

test("a Secret that leads to another place under the owner is for the next one: nothing is raised there", async () => {
  sidecars.secret({ dbname: "template1" });
  const before = await counter();
  await until(async () => (await counter()) > before + 2);
  await sidecars.connect(sidecar.port);
});

test("INV-7: what is lost for good stays told, whatever happens to the database afterwards: a controller that was away hears it", async () => {
  let dies: (why: string) => void = () => {};
  const others = new Sidecars(fenced, "n/lost");
  onTestFinished(() => others.end());
  others.goodSecret();
  const other = await others.start({
    startWire: (options) => {
      dies = options.lost;
      return startWire(options);
    },
  });
  await until(() => other.started());
  dies("the wire's thread ended");
  const lost = await until(() => other.report()?.failures[0]);
  expect(lost).toMatchObject({ code: "LF001", final: true, floor: 1 });
  // An owner tells of the outage, and of its end.
  await fenced.postgres.stop("immediate");
  await until(() => sidecar.report()?.failures[0]?.code === "LF015");
  await fenced.postgres.start();
  await until(() => sidecar.report()?.failures.length === 0);
  const before = await counter();
  await until(async () => (await counter()) > before + 2);
  expect(other.report()?.failures).toEqual([lost]);
});
