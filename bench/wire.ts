/**
 * `make bench-wire`: pgbench through each way to one PostgreSQL, alternating in one run.
 *
 * Says nothing about absolute speed: client, server and proxy share this machine's cores. Ratios within a round do mean
 * something. `node bench/wire.ts --seconds 2 --rounds 2 --cells select-only/prepared/8` for who tunes.
 */
import { parseArgs } from "node:util";
import { pgbenchMissing } from "../conformance/pgbench.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { seededRandom } from "../testing/seeded.ts";
import { type Cell, cellsOf, SOCKETS, type Sockets, TARGETS, type TargetName } from "./cells.ts";
import { POSTGRES, startGround } from "./ground.ts";
import { measureCell } from "./measure.ts";
import { cellTable } from "./table.ts";
import { startTargets, targetMissing } from "./targets.ts";

interface Options {
  readonly seconds: number;
  readonly rounds: number;
  readonly seed: number;
  readonly cells: readonly Cell[];
  readonly targets: readonly TargetName[];
  readonly sockets: readonly Sockets[];
}

const USAGE = `node bench/wire.ts [--seconds 4] [--rounds 5] [--cells select-only/prepared/8,tpcb-like] [--targets pgbouncer,fenced]
                   [--sockets tcp|unix|tcp,unix] [--seed 1]`;
const say = (line: string): void => console.log(line);

try {
  const options = readOptions();
  const missing = prerequisiteMissing();
  if (missing) {
    say(missing);
    process.exitCode = 1;
  } else await run(options);
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
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
    },
  });
  return {
    seconds: positive("seconds", values.seconds),
    rounds: positive("rounds", values.rounds),
    seed: positive("seed", values.seed),
    cells: cellsOf(values.cells.flatMap((text) => text.split(","))),
    targets: among("targets", values.targets, TARGETS),
    sockets: among("sockets", values.sockets, SOCKETS),
  };
}

function positive(name: string, text: string): number {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value >= 1) return value;
  throw new Error(`--${name} ${text}: give a whole number from 1 on\n${USAGE}`);
}

function among<T extends string>(name: string, text: string, known: readonly T[]): T[] {
  const words = text.split(",");
  for (const word of words) {
    if (!known.some((one) => one === word))
      throw new Error(`--${name} ${word}: it is one of ${known.join(", ")}\n${USAGE}`);
  }
  return known.filter((one) => words.includes(one));
}

/** Without these there is nothing to compare. */
function prerequisiteMissing(): string | null {
  const pgbench = pgbenchMissing();
  if (pgbench)
    return `The bench needs pgbench: ${pgbench}. Install it (apt-get install postgresql-contrib) and run again.`;
  const server = postgresVersions().missing.find(({ version }) => version === POSTGRES);
  return server ? `The bench needs PostgreSQL ${POSTGRES}: ${server.why}. Install it and run again.` : null;
}

async function run({ cells, rounds, seconds, seed, ...options }: Options): Promise<void> {
  const names = options.targets.filter((name) => {
    const why = targetMissing(name);
    if (why) say(`SKIPPED  ${name}: ${why}`);
    return !why;
  });
  const random = seededRandom(seed);
  const ground = await startGround();
  try {
    const wanted = options.sockets.flatMap((sockets) => names.map((name) => ({ name, sockets })));
    const { targets, stop } = await startTargets(ground, wanted);
    try {
      const minutes = Math.ceil((cells.length * targets.length * rounds * seconds) / 60);
      say(
        `${cells.length} cells, ${targets.length} targets, ${rounds} rounds of ${seconds} s, seed ${seed}: about ${minutes} min`,
      );
      for (const cell of cells) {
        say(`\n${cellTable(cell, await measureCell({ cell, targets, rounds, seconds, random, tidy: ground.tidy }))}`);
      }
    } finally {
      await stop();
    }
  } finally {
    await ground.stop();
  }
}
