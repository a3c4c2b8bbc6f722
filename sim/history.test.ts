/** That a history can be played again: without it a seed would be worth nothing. */
import { expect, test } from "vitest";
import { faultsOf, play } from "./history.ts";

test.each([4, 8])("seed %i is the same history each time", async (seed) => {
  const [first, second] = [await play(seed), await play(seed)];
  expect(first.error).toBeUndefined();
  expect(second.world.story).toEqual(first.world.story);
  expect(second.world.scheduler.happened).toBe(first.world.scheduler.happened);
  expect(first.world.checks.raises).toBeGreaterThan(0);
});

test("without a fault nothing else about a history changes: who was there before it, and what they drew", async () => {
  const seed = 8;
  const faults = faultsOf(seed);
  const whole = await play(seed, faults);
  const fewer = await play(seed, faults.slice(0, -1));
  const until = faults.at(-1)?.atMs ?? 0;
  const before = (story: readonly string[]): string[] =>
    story.filter((line) => Number(line.split(" ")[0]) * 1000 < until);
  expect(before(fewer.world.story)).toEqual(before(whole.world.story));
});
