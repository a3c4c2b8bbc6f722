/** Plays histories in a thread of its own. */
import { parentPort } from "node:worker_threads";
import { play } from "./history.ts";

/** The faults of a world throw errors by the thousand; whatever breaks is played again where stacks are told. */
Error.stackTraceLimit = 0;

/** What is told of one. */
export interface Played {
  readonly seed: number;
  readonly error: string | undefined;
  readonly faults: number;
  readonly raises: number;
  readonly commits: number;
  readonly events: number;
}

parentPort?.on("message", async ({ from, to }: { from: number; to: number }) => {
  const played: Played[] = [];
  for (let seed = from; seed < to; seed++) {
    const { error, faults, world } = await play(seed);
    const { raises, committed } = world.checks;
    const events = world.scheduler.happened;
    played.push({ seed, error: error?.message, faults: faults.length, raises, commits: committed, events });
  }
  parentPort?.postMessage(played);
});
