/** The rounds of a cell: each target once in each round, in an order that the seed draws. */
import type { Random } from "../platform/random.ts";
import type { Cell } from "./cells.ts";
import type { Series } from "./figures.ts";
import { type Measured, runPgbench } from "./pgbenchrun.ts";
import { cpuOf } from "./processfacts.ts";
import type { Target } from "./targets.ts";

export interface MeasureOptions {
  readonly cell: Cell;
  readonly targets: readonly Target[];
  readonly rounds: number;
  readonly seconds: number;
  readonly random: Random;
  /** Between rounds. */
  tidy(): Promise<void>;
}

interface Figures extends Measured {
  readonly cpuUsPerTransaction: number | undefined;
}

/** By the targets' keys. */
export async function measureCell(options: MeasureOptions): Promise<Record<string, Series>> {
  const { cell, targets, rounds, seconds, random, tidy } = options;
  const figures = new Map(targets.map(({ key }): [string, Figures[]] => [key, []]));
  for (let round = 0; round < rounds; round++) {
    const randomSeed = Math.floor(random.unit() * 2 ** 31);
    if (cell.script !== "select-only") await tidy();
    for (const target of shuffled(targets, random)) {
      figures.get(target.key)?.push(await runOnce(target, { cell, seconds, randomSeed }));
    }
  }
  return Object.fromEntries([...figures].map(([key, runs]) => [key, seriesOf(runs)]));
}

async function runOnce(target: Target, run: Parameters<typeof runPgbench>[1]): Promise<Figures> {
  const { pid } = target;
  const beforeUs = spent(pid);
  const measured = await runPgbench(target, run).catch((error: Error) => {
    throw new Error(`through ${target.key}: ${error.message}\nIts last words: ${target.lastWords()}`);
  });
  const afterUs = spent(pid);
  return { ...measured, cpuUsPerTransaction: pid && (afterUs - beforeUs) / measured.transactions };
}

function spent(pid: number | undefined): number {
  if (pid === undefined) return 0;
  const { userUs, systemUs } = cpuOf(pid);
  return userUs + systemUs;
}

function seriesOf(runs: readonly Figures[]): Series {
  const known = (of: (run: Figures) => number | undefined): number[] =>
    runs.map(of).filter((value) => value !== undefined);
  return {
    tps: runs.map(({ tps }) => tps),
    latencyAverageUs: runs.map(({ latencyAverageUs }) => latencyAverageUs),
    latencyMedianUs: known(({ latency }) => latency?.medianUs),
    latencyP99Us: known(({ latency }) => latency?.p99Us),
    connectMs: runs.map(({ connectMs }) => connectMs),
    cpuUs: known(({ cpuUsPerTransaction }) => cpuUsPerTransaction),
  };
}

/** Each order is as likely as any other. */
export function shuffled<T>(items: readonly T[], random: Random): T[] {
  const rest = [...items];
  const order: T[] = [];
  while (rest.length > 0) order.push(...rest.splice(Math.floor(random.unit() * rest.length), 1));
  return order;
}
