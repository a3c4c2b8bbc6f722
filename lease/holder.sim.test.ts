/**
 * A seeded random walk of the real holder against the modelled Lease: answers late, lost or refused, the Lease edited,
 * the wall clock set back. INV-5 and INV-6 are asserted at each moment; a failure names its seed.
 */
import { expect, test } from "vitest";
import { silentLogger } from "../platform/log.ts";
import { ManualClock } from "../testing/clocks.ts";
import { ModelledLease } from "../testing/modelledlease.ts";
import { seededRandom } from "../testing/seeded.ts";
import { Holder } from "./holder.ts";
import { Permit } from "./permit.ts";
import { isOurs, type RawLease, readLease } from "./record.ts";
import { permitDeadlineMs } from "./timing.ts";

const WALKS = Number(process.env.FENCEDJOB_WALKS ?? 30);
const STEPS = 150;
const TIMING = { durationMs: 10_000, renewIntervalMs: 3_000, requestTimeoutMs: 2_000, marginMs: 1_000 };
const ME = { holder: "uid-1", generation: 1 };

/** Its wall can be set back, as people and virtual machines do, and may stand still for seconds. */
class SkewedClock extends ManualClock {
  backMs = 0;
  stepMs = 1;
  override wall(): Date {
    const wallMs = super.wall().getTime() - this.backMs;
    return new Date(wallMs - (wallMs % this.stepMs));
  }
}

async function walk(seed: number): Promise<void> {
  const random = seededRandom(seed);
  const chance = (share: number): boolean => random.unit() < share;
  const clock = new SkewedClock();
  if (seed % 2) clock.stepMs = 8_000;
  const api = new ModelledLease(clock, ME);
  const permit = new Permit();
  const parts = {
    api,
    clock,
    random,
    log: silentLogger,
    timing: TIMING,
    permit,
    holder: ME.holder,
    report: () => "{}",
  };
  const holder = new Holder(parts);
  const stop = new AbortController();
  let lost: string | null | undefined;
  // When the API server took the last renewal: an observer may count from then, and not earlier.
  let storedMs = 0;
  let renewTime = "";
  let everLost = false;
  let tooShort = false;
  permit.open();
  void holder.waitForGrant(stop.signal).then(async (grant) => {
    lost = await holder.hold(grant, stop.signal);
  });
  for (let step = 0; step < STEPS; step++) {
    api.latencyMs = chance(0.8) ? 10 : random.unit() * 3_000;
    api.down = chance(0.1);
    api.forbidden = chance(0.05);
    if (chance(0.1)) api.fault = chance(0.5) ? "lost" : "done-unanswered";
    if (chance(0.05)) clock.backMs += random.unit() * 60_000;
    if (chance(0.05)) api.change({}, { "example.com/note": String(step) });
    if (!tooShort && chance(0.02)) api.change({ leaseDurationSeconds: chance(0.5) ? 3_600 : 5 });
    if (chance(0.002)) {
      tooShort = true;
      api.change({ leaseDurationSeconds: 4 });
    }
    if (chance(0.002)) api.change({ holderIdentity: "uid-2" });
    if (chance(0.002)) api.lease = null;
    for (let tick = 0; tick < 20; tick++) {
      await clock.advance(50);
      const record = api.lease && readLease(api.lease as RawLease);
      everLost ||= tooShort || !isOurs(record, ME);
      if (!everLost && record?.renewTime && record.renewTime !== renewTime) {
        storedMs = clock.monoMs();
        renewTime = record.renewTime;
      }
      const latestMs = permitDeadlineMs(storedMs, TIMING.durationMs, TIMING.marginMs);
      expect(permit.deadlineMs(), `seed ${seed}: INV-5: the permit outlives the record`).toBeLessThanOrEqual(latestMs);
      if (!everLost) expect(lost, `seed ${seed}: ownership was given up though the Lease names it`).toBeUndefined();
    }
  }
  api.down = false;
  api.forbidden = false;
  api.latencyMs = 10;
  await clock.advance(12_000);
  const end = permit.state(clock.monoMs());
  expect(end, `seed ${seed}: ${lost}`).toBe(everLost ? "lost" : "valid");
  stop.abort();
  await clock.advance(5_000);
}

test("INV-5, INV-6: whatever the API server does, the permit never outlives the record, and only loss ends it for good", async () => {
  for (let seed = 1; seed <= WALKS; seed++) await walk(seed);
});
