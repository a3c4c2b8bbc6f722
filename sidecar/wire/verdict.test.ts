/** Who is told what about the end of a session, and when the row is looked at again. */
import { expect, test } from "vitest";
import type { FenceRow } from "../../fence/client.ts";
import { ManualClock, settle } from "../../testing/clocks.ts";
import { lookAt, type Reading, type Verdict, verdictReader } from "./verdict.ts";

const OURS: Verdict = { kind: "ours" };
const OVER: Verdict = { kind: "superseded", generation: 8, holderName: "run-8", raisedAt: "" };

const FENCE: FenceRow = {
  jobId: 1,
  generation: 7,
  holder: "uid-7",
  holderName: "run-7",
  incarnation: "here",
  presentIncarnation: "here",
  issuer: "",
  raisedAt: "",
  closedAt: "",
  witness: { counter: 3, nonce: "c" },
  raising: false,
};

/** Each look is answered by hand. */
class Looks {
  readonly clock = new ManualClock();
  readonly asked: ((reading: Reading) => void)[] = [];
  readonly read = verdictReader(() => new Promise((resolve) => this.asked.push(resolve)), this.clock);

  async answer(verdict: Verdict, raising = false): Promise<void> {
    await settle();
    this.asked.shift()?.({ verdict, raising });
    await settle();
  }
}

test("a session ended from outside while no raise is under way is told so at once", async () => {
  const looks = new Looks();
  const told = looks.read(true);
  await looks.answer(OURS);
  expect(await told).toEqual(OURS);
  expect(looks.clock.pending).toBe(0);
});

test("INV-10: … while one is under way, when it has committed or has ended without", async () => {
  for (const outcome of [OVER, OURS]) {
    const looks = new Looks();
    const told = looks.read(true);
    for (let i = 0; i < 3; i++) {
      await looks.answer(OURS, true);
      await looks.clock.advance(25);
    }
    await looks.answer(outcome);
    expect(await told).toEqual(outcome);
  }
});

test("… and after two seconds of it in any case", async () => {
  const looks = new Looks();
  const told = looks.read(true);
  for (let i = 0; i <= 80; i++) {
    await looks.answer(OURS, true);
    await looks.clock.advance(25);
  }
  expect(await told).toEqual(OURS);
});

test("a refused session waits for no raise", async () => {
  const looks = new Looks();
  const told = looks.read(false);
  await looks.answer(OURS, true);
  expect(await told).toEqual(OURS);
});

test("who asks during a look gets the next one, which they share: the present one may have come too early", async () => {
  const looks = new Looks();
  const told = [looks.read(true)];
  await settle();
  told.push(looks.read(true), looks.read(true));
  await looks.answer(OURS);
  await looks.answer(OVER);
  expect(await Promise.all(told)).toEqual([OURS, OVER, OVER]);
  expect(await looks.read(false)).toEqual(OVER); // a loss is final
  expect(looks.asked).toEqual([]);
});

test("a heartbeat that is confirmed while the row is read does not make it a database that was set back (INV-7)", async () => {
  let witness = { counter: 3, nonce: "c" };
  const identity = { fenceName: "billing/run", generation: 7, holder: "uid-7", holderName: "run-7" };
  const raised = { identity, incarnation: "here", witness: () => witness };
  const read = async (): Promise<FenceRow> => {
    witness = { counter: 4, nonce: "d" };
    return FENCE;
  };
  expect((await lookAt(read, raised)).verdict).toEqual(OURS);
  // Known before, it must be there.
  expect((await lookAt(async () => FENCE, raised)).verdict).toMatchObject({ kind: "incarnation" });
});
