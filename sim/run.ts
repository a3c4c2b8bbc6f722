/**
 * `make sim SEEDS=1000`: plays that many histories on all cores, each from its own seed. A broken one is made smaller,
 * and told with its seed and faults; `node sim/run.ts --trace 17` plays one again and tells everything; `--first` ends at the
 * first that breaks.
 */
import { availableParallelism } from "node:os";
import { parseArgs } from "node:util";
import { Worker } from "node:worker_threads";
import { faultsOf, play, shrink } from "./history.ts";
import type { Played } from "./worker.ts";

const USAGE = "node sim/run.ts [--seeds 1000] [--from 1] [--first] [--trace <seed>]";
const STORY_LINES = 60;
const BATCH = 25;
/** More say nothing new. */
const FAILURES_SHOWN = 3;

const { values } = parseArgs({
  options: {
    seeds: { type: "string", default: "1000" },
    from: { type: "string", default: "1" },
    trace: { type: "string" },
    first: { type: "boolean", default: false },
  },
});

if (values.trace !== undefined) await trace(number("trace", values.trace));
else if (values.first) await untilBroken(number("from", values.from), number("seeds", values.seeds));
else await playAll(number("from", values.from), number("seeds", values.seeds));

function number(name: string, text: string): number {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value >= 1) return value;
  console.error(`--${name} ${text}: give a whole number from 1 on\n${USAGE}`);
  process.exit(2);
}

async function trace(seed: number): Promise<void> {
  const { world, error } = await play(seed, faultsOf(seed), { traced: true });
  console.log(world.story.join("\n"));
  console.log(error ? `broken: ${error.stack}` : "nothing broke");
  process.exitCode = error ? 1 : 0;
}

/** In this thread and in their order, up to the first that breaks, which is told as it is. */
async function untilBroken(from: number, count: number): Promise<void> {
  for (let seed = from; seed < from + count; seed++) {
    const { error } = await play(seed);
    if (!error) continue;
    console.log(`seed ${seed}: ${error.message}`);
    process.exitCode = 1;
    return;
  }
}

async function playAll(from: number, count: number): Promise<void> {
  const startedMs = performance.now();
  const totals = { histories: 0, commits: 0, raises: 0, faults: 0, events: 0 };
  const broken: number[] = [];
  let next = from;
  const one = async (): Promise<void> => {
    const worker = new Worker(new URL("./worker.ts", import.meta.url), { execArgv: process.execArgv });
    try {
      while (next < from + count) {
        const first = next;
        next = Math.min(first + BATCH, from + count);
        const played = await ask(worker, { from: first, to: next });
        for (const { seed, error, commits, raises, faults, events } of played) {
          totals.histories++;
          totals.commits += commits;
          totals.raises += raises;
          totals.faults += faults;
          totals.events += events;
          if (error !== undefined) broken.push(seed);
        }
      }
    } finally {
      await worker.terminate();
    }
  };
  await Promise.all(Array.from({ length: availableParallelism() }, one));
  for (const seed of broken.sort((a, b) => a - b).slice(0, FAILURES_SHOWN)) await tellBroken(seed);
  const { histories, commits, raises, faults, events } = totals;
  const seconds = Math.round((performance.now() - startedMs) / 1000);
  console.log(
    `${histories} histories, ${faults} faults, ${raises} raises, ${commits} commits, ${events} events in ${seconds} s; ${broken.length} broken`,
  );
  process.exitCode = broken.length > 0 ? 1 : 0;
}

function ask(worker: Worker, seeds: { from: number; to: number }): Promise<Played[]> {
  return new Promise((resolve, reject) => {
    const onError = (error: unknown): void => reject(error);
    worker.once("error", onError);
    worker.once("message", (played: Played[]) => {
      worker.off("error", onError);
      resolve(played);
    });
    worker.postMessage(seeds);
  });
}

async function tellBroken(seed: number): Promise<void> {
  const failed = await play(seed);
  const { error, faults, world } = failed.error ? await shrink(failed) : failed;
  console.log(`\nseed ${seed}: ${error?.message ?? "not broken when it was played again"}`);
  for (const { atMs, kind, which, lastsMs } of faults) {
    console.log(
      `  ${(atMs / 1000).toFixed(3)} ${kind} which ${which.toFixed(3)}, lasts ${(lastsMs / 1000).toFixed(1)} s`,
    );
  }
  console.log(world.story.slice(-STORY_LINES).join("\n"));
}
