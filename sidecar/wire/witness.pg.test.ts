/** A session is admitted only where the last confirmed heartbeat stands: before any heartbeat has looked. */
import { afterAll, beforeAll, expect, test } from "vitest";
import { Permit } from "../../lease/permit.ts";
import { silentLogger } from "../../platform/log.ts";
import { type Fenced, startFenced } from "../../testing/fenced.ts";
import { Sidecars } from "../../testing/sidecars.ts";
import { until } from "../../testing/until.ts";
import { startWire } from "./thread.ts";

let fenced: Fenced;
let clients: Sidecars;
beforeAll(async () => {
  fenced = await startFenced();
  clients = new Sidecars(fenced, "n/none");
});
afterAll(async () => {
  await clients.end();
  await fenced.stop();
});

test("INV-7: a database that was set back admits no session of the generation, and the thread tells its loss", async () => {
  const job = fenced.job("wire/witness");
  const { jobId, incarnation, witness } = await job.raise(1);
  const permit = new Permit();
  permit.open();
  permit.extend(Number.MAX_SAFE_INTEGER);
  const lost: string[] = [];
  const wire = await startWire({
    listen: { host: "127.0.0.1", port: 0 },
    permit,
    log: silentLogger,
    lost: (why) => lost.push(why),
  });
  wire.serve({ address: fenced.address, jobId, incarnation, witness, identity: job.identity(1) });
  await clients.connect(wire.port);
  // The database was set back to the raise since.
  wire.confirmed({ counter: 1, nonce: "n1" }, fenced.address);
  const refusal = await until(() =>
    clients.connect(wire.port).then(
      () => null,
      (error) => error,
    ),
  );
  expect(refusal.code).toBe("LF003");
  expect(refusal.detail).toContain("set back to a time before heartbeat 1 of this generation");
  await until(() => lost.length > 0);
  await wire.stop();
});
