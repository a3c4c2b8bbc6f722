/** One history from its seed, and the smallest list of faults that still breaks it. */
import { drawFaults, type Fault } from "./faults.ts";
import { streamOf } from "./process.ts";
import { World } from "./world.ts";

const HISTORY_MS = 90_000;

export interface Outcome {
  readonly seed: number;
  readonly faults: readonly Fault[];
  readonly error: Error | undefined;
  readonly world: World;
}

export const faultsOf = (seed: number): Fault[] => drawFaults(streamOf(seed, "faults"), HISTORY_MS);

export async function play(
  seed: number,
  faults = faultsOf(seed),
  options: { traced?: boolean } = {},
): Promise<Outcome> {
  const world = new World(seed, options);
  try {
    await world.play(faults, HISTORY_MS);
    return { seed, faults, error: undefined, world };
  } catch (error) {
    return { seed, faults, error: error as Error, world };
  }
}

/** Leaves out faults, one after the other, as long as the history still breaks. */
export async function shrink(failed: Outcome): Promise<Outcome> {
  let smallest = failed;
  for (let i = 0; i < smallest.faults.length; ) {
    const fewer = smallest.faults.filter((_, at) => at !== i);
    const outcome = await play(failed.seed, fewer);
    if (outcome.error) smallest = outcome;
    else i++;
  }
  return smallest;
}
