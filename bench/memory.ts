/**
 * What stands in memory of the processes in between: with many sessions, and while more goes through than fits.
 * `node bench/memory.ts [--write]`
 */
import type { Cell, TargetName } from "./cells.ts";
import { Flood, MIB } from "./flood.ts";
import type { Ground } from "./ground.ts";
import { runPgbench } from "./pgbenchrun.ts";
import { forgetPeak, type Resident, resident } from "./processfacts.ts";
import { onGround, say } from "./program.ts";
import { type LoadMemory, type MemoryResults, writeResults } from "./results.ts";
import { startTargets, type Target, targetMissing } from "./targets.ts";

const SESSIONS = 50;
const SECONDS = 10;
/** When all sessions are open and nothing is warm-up any more. */
const LOOK_MS = 7_000;
const BUSY: Cell = { script: "tpcb-like", protocol: "prepared", clients: SESSIONS };
const MEASURED: readonly TargetName[] = ["pgbouncer", "unfenced", "fenced"];

/** Each load is sent twice: a part of it, to see what any traffic takes, then all of it. */
const PART = 1 / 16;
const STREAM_MIB = 1024;
const VALUE_MIB = 256;

interface Load {
  readonly load: string;
  readonly mib: number;
  run(client: Flood, mib: number): Promise<void>;
}

const LOADS: readonly Load[] = [
  {
    load: "COPY to a client that reads slowly",
    mib: STREAM_MIB,
    run: (client, mib) =>
      client.takeSlowly(`COPY (SELECT repeat('x', ${MIB} - 1) FROM generate_series(1, ${mib})) TO STDOUT`),
  },
  {
    load: "one row to a client that reads slowly",
    mib: VALUE_MIB,
    run: (client, mib) => client.takeSlowly(`SELECT repeat('x', ${mib * MIB})`),
  },
  {
    load: "COPY from a client",
    mib: STREAM_MIB,
    run: (client, mib) => client.copyIn("CREATE TEMPORARY TABLE sink (bytes text); COPY sink FROM STDIN", mib),
  },
  {
    load: "one parameter",
    mib: VALUE_MIB,
    run: (client, mib) => client.sendParameter("SELECT length($1::text)", mib),
  },
];

await onGround(async (ground, facts) => {
  const results: MemoryResults = {
    ...facts,
    sessions: SESSIONS,
    resident: await withTargets(ground, MEASURED, sessionsOf),
    loads: await withTargets(ground, ["fenced"], loadsOf),
  };
  if (process.argv.includes("--write")) writeResults("memory", results);
});

async function withTargets<T>(
  ground: Ground,
  names: readonly TargetName[],
  measure: (target: Target, pid: number) => Promise<T[]>,
): Promise<T[]> {
  const wanted = names.map((name) => ({ name, sockets: "tcp" as const }));
  const { targets, stop } = await startTargets(
    ground,
    wanted.filter((one) => targetMissing(one) === null),
  );
  try {
    const all: T[] = [];
    for (const target of targets) if (target.pid !== undefined) all.push(...(await measure(target, target.pid)));
    return all;
  } finally {
    await stop();
  }
}

async function sessionsOf(target: Target, pid: number): Promise<(Resident & { target: string })[]> {
  const running = runPgbench(target, { cell: BUSY, seconds: SECONDS, randomSeed: 1 });
  const looked = new Promise<Resident>((resolve) => setTimeout(() => resolve(resident(pid)), LOOK_MS));
  await running;
  const { nowKb, ownKb } = await looked;
  const { peakKb } = resident(pid);
  say(`${target.key}: ${SESSIONS} sessions, ${nowKb} kB, ${ownKb} kB of its own, at most ${peakKb} kB`);
  return [{ target: target.key, nowKb, ownKb, peakKb }];
}

async function loadsOf(target: Target, pid: number): Promise<LoadMemory[]> {
  const all: LoadMemory[] = [];
  const { nowKb: beforeKb } = resident(pid);
  for (const { load, mib, run } of LOADS) {
    const peakOf = async (much: number): Promise<number> => {
      const client = await Flood.open(target);
      forgetPeak(pid);
      await run(client, much);
      client.end();
      return resident(pid).peakKb;
    };
    const partMib = mib * PART;
    const told = { load, mib, partMib, beforeKb, partPeakKb: await peakOf(partMib), peakKb: await peakOf(mib) };
    say(`${load}: at most ${told.partPeakKb} kB with ${partMib} MiB, ${told.peakKb} kB with ${mib} MiB`);
    all.push(told);
  }
  return all;
}
