/** Shows that the race test sees what it is there to see: with a safety line removed, the order of commits is wrong. */
import { describe, expect, onTestFinished, test } from "vitest";
import { startFenced } from "../testing/fenced.ts";
import { mutatedMigrations } from "../testing/mutants.ts";
import { RACE_SETTINGS, type RaceOptions, type RaceOutcome, race } from "../testing/race.ts";

const SEED = 20261129;
const RACE_MS = 5000;
/** A mutant is met in the first race or two; a slow machine needs more of them. */
const RACES_MAX = 8;
const RAISES_MIN = 10;
const TIMEOUT_MS = 300_000;

async function raceWith(mutant: string, options: Partial<RaceOptions> = {}): Promise<RaceOutcome> {
  const migrations = mutatedMigrations(mutant);
  const fenced = await startFenced({ settings: RACE_SETTINGS, ...(migrations ? { migrations } : {}) });
  onTestFinished(() => fenced.stop());
  const outcome = await race(fenced, { seed: SEED, ms: RACE_MS, raisesMin: RAISES_MIN, ...options });
  const { unexpected, ...counts } = outcome;
  console.log(`${mutant}: ${JSON.stringify({ ...counts, unexpected: unexpected.length })}`);
  return outcome;
}

/** Whether one race or another, each of other draws, meets what the missing line lets through. */
async function isMet(mutant: string, options: Partial<RaceOptions> = {}): Promise<boolean> {
  for (let round = 0; round < RACES_MAX; round++) {
    const { stale, lowered } = await raceWith(mutant, { ...options, seed: SEED + round });
    if (stale + lowered > 0) return true;
  }
  return false;
}

describe("INV-3: the race on PostgreSQL 18 finds stale commits", { timeout: TIMEOUT_MS }, () => {
  test.each([
    "the gate is not locked",
    "neither row lock nor bracket nor compare-and-set",
    "neither revoke nor assertion",
  ])("when %s", async (mutant) => {
    expect(await isMet(mutant)).toBe(true);
  });

  test.each(["the trigger and fence.enter take no lock", "a gate that closed while it was waited for counts as open"])(
    "on a protected table, when %s",
    async (mutant) => {
      expect(await isMet(mutant, { protectedTable: true })).toBe(true);
    },
  );
});

describe("INV-3: the second line of defence holds by itself on PostgreSQL 18", { timeout: TIMEOUT_MS }, () => {
  test("the assertion that no old gate is open, when nothing is revoked: the raise fails instead", async () => {
    const outcome = await raceWith("nothing is revoked", { raisesMin: 0 });
    expect(outcome).toMatchObject({ stale: 0, lowered: 0, raises: 1 });
    expect(outcome.unexpected.join()).toContain("LF012: a gate of FencedJob");
  });

  test("the compare-and-set, when raisers do not wait for each other", async () => {
    // Of raises: a close compares and sets nothing, and rests on the row lock.
    expect(await raceWith("neither row lock nor bracket", { closeShare: 0 })).toMatchObject({ stale: 0, lowered: 0 });
  });
});
