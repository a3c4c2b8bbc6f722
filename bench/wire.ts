/**
 * `make bench-wire`: pgbench through each way to one PostgreSQL, alternating in one run.
 *
 * Says nothing about absolute speed: client, server and proxy share this machine's cores. Ratios within a round do mean
 * something. `node bench/wire.ts --seconds 2 --rounds 2 --cells select-only/prepared/8` for who tunes.
 */
import { loadavg } from "node:os";
import { parseArgs } from "node:util";
import { seededRandom } from "../testing/seeded.ts";
import { type Cell, cellsOf, SOCKETS, type Sockets, TARGETS, type TargetName, targetKey } from "./cells.ts";
import { measureCell } from "./measure.ts";
import { failed, onGround, say } from "./program.ts";
import { type WireResults, writeResults } from "./results.ts";
import { cellTable } from "./table.ts";
import { startTargets, targetMissing } from "./targets.ts";

interface Options {
  readonly seconds: number;
  readonly rounds: number;
  readonly seed: number;
  readonly cells: readonly Cell[];
  readonly targets: readonly TargetName[];
  readonly sockets: readonly Sockets[];
  /** Into bench/results/; else it is only shown. */
  readonly write: boolean;
}

/** Above it somebody else works here. */
const LOAD_MAX = 0.5;
const USAGE = `node bench/wire.ts [--seconds 4] [--rounds 5] [--cells select-only/prepared/8,tpcb-like] [--targets pgbouncer,fenced]
                   [--sockets tcp|unix|tcp,unix] [--seed 1] [--write]`;

try {
  await run(readOptions());
} catch (error) {
  failed(`${error instanceof Error ? error.message : error}\n${USAGE}`);
}

function readOptions(): Options {
  const { values } = parseArgs({
    options: {
      seconds: { type: "string", default: "4" },
      rounds: { type: "string", default: "5" },
      seed: { type: "string", default: "1" },
      cells: { type: "string", multiple: true, default: [] },
      targets: { type: "string", default: TARGETS.join(",") },
      sockets: { type: "string", default: "tcp" },
      write: { type: "boolean", default: false },
    },
  });
  return {
    seconds: positive("seconds", values.seconds),
    rounds: positive("rounds", values.rounds),
    seed: positive("seed", values.seed),
    cells: cellsOf(values.cells.flatMap((text) => text.split(","))),
    targets: among("targets", values.targets, TARGETS),
    sockets: among("sockets", values.sockets, SOCKETS),
    write: values.write,
  };
}

function positive(name: string, text: string): number {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value >= 1) return value;
  throw new Error(`--${name} ${text}: give a whole number from 1 on`);
}

function among<T extends string>(name: string, text: string, known: readonly T[]): T[] {
  const words = text.split(",");
  const strange = words.find((word) => !known.some((one) => one === word));
  if (strange !== undefined) throw new Error(`--${name} ${strange}: it is one of ${known.join(", ")}`);
  return known.filter((one) => words.includes(one));
}

async function run({ cells, rounds, seconds, seed, sockets, write, targets: names }: Options): Promise<void> {
  const all = sockets.flatMap((one) => names.map((name) => ({ name, sockets: one })));
  const skipped = all.flatMap((one) => {
    const why = targetMissing(one);
    return why === null ? [] : [{ target: targetKey(one.name, one.sockets), why }];
  });
  for (const { target, why } of skipped) say(`SKIPPED  ${target}: ${why}`);
  const wanted = all.filter((one) => targetMissing(one) === null);
  const loadBefore = loadavg()[0] ?? Number.NaN;
  if (loadBefore > LOAD_MAX) say(`The machine is busy (load ${loadBefore}): the figures will say little.`);
  const random = seededRandom(seed);
  await onGround(async (ground, facts) => {
    const { targets, stop } = await startTargets(ground, wanted);
    try {
      const minutes = Math.ceil((cells.length * targets.length * rounds * seconds) / 60);
      say(
        `${cells.length} cells, ${targets.length} targets, ${rounds} rounds of ${seconds} s, seed ${seed}: ${minutes} min and more`,
      );
      const measured: WireResults["cells"][number][] = [];
      for (const cell of cells) {
        const byTarget = await measureCell({ cell, targets, rounds, seconds, random, tidy: ground.tidy });
        say(`\n${cellTable(cell, byTarget)}`);
        measured.push({ ...cell, targets: byTarget });
        // After each cell, so that an interrupted run keeps what it has.
        if (write)
          writeResults("wire", { ...facts, seconds, rounds, seed, sockets, loadBefore, skipped, cells: measured });
      }
    } finally {
      await stop();
    }
  });
}
