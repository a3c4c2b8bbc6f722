import { describe, expect, onTestFinished, test } from "vitest";
import { startFenced } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { RACE_SETTINGS, race } from "../testing/race.ts";

const seconds = Number(process.env.FENCE_RACE_SECONDS ?? 8);
const seed = Number(process.env.FENCE_RACE_SEED ?? Math.floor(Math.random() * 2 ** 31));

describe.each(postgresVersions().found)("PostgreSQL %i", (version) => {
  test.each([
    ["that enter by themselves", false],
    ["that only claim a generation, on a protected table", true],
  ])(
    `INV-3, INV-1: no stale commit, by the database's own order, at three isolation levels, with three raisers killed at random (${seconds} s), among writers %s`,
    async (_writers, protectedTable) => {
      const fenced = await startFenced({ version, settings: RACE_SETTINGS });
      onTestFinished(() => fenced.stop());
      const outcome = await race(fenced, { seed, ms: seconds * 1000, raisesMin: seconds + 1, protectedTable });
      console.log(`PostgreSQL ${version}, seed ${seed}: ${JSON.stringify(outcome)}`);
      const why = `FENCE_RACE_SEED=${seed}`;
      expect(outcome.unexpected, why).toEqual([]);
      expect(outcome, why).toMatchObject({ stale: 0, lowered: 0, example: null });
      // The race must have been one.
      expect(outcome.raises, why).toBeGreaterThan(seconds);
      expect(outcome.late, why).toBeLessThan(outcome.raises);
      expect(outcome.commits, why).toBeGreaterThan(20 * seconds);
      expect(outcome.refused, why).toBeGreaterThan(seconds);
    },
    seconds * 1000 + 60_000,
  );
});
