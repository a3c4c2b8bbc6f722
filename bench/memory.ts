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
import { type MemoryResults, writeResults } from "./results.ts";
import { startTargets, type Target, targetMissing } from "./targets.ts";

const SESSIONS = 50;
const SECONDS = 10;
/** When all sessions are open and nothing is warm-up any more. */
const LOOK_MS = 7_000;
const BUSY: Cell = { script: "tpcb-like", protocol: "prepared", clients: SESSIONS };
const MEASURED: readonly TargetName[] = ["pgbouncer", "unfenced", "fenced"];

const STREAM_MIB = 1024;
const VALUE_MIB = 256;

const LOADS: readonly { readonly load: string; run(client: Flood): Promise<void> }[] = [
  {
    load: `COPY of ${STREAM_MIB} MiB to a client that reads slowly`,
    run: (client) =>
      client.takeSlowly(`COPY (SELECT repeat('x', ${MIB} - 1) FROM generate_series(1, ${STREAM_MIB})) TO STDOUT`),
  },
  {
    load: `a row of ${VALUE_MIB} MiB to a client that reads slowly`,
    run: (client) => client.takeSlowly(`SELECT repeat('x', ${VALUE_MIB * MIB})`),
  },
  {
    load: `COPY of ${STREAM_MIB} MiB from a client`,
    run: (client) => client.copyIn("CREATE TEMPORARY TABLE sink (bytes text); COPY sink FROM STDIN", STREAM_MIB),
  },
  {
    load: `a parameter of ${VALUE_MIB} MiB`,
    run: (client) => client.sendParameter("SELECT length($1::text)", VALUE_MIB),
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

async function loadsOf(target: Target, pid: number): Promise<{ load: string; beforeKb: number; peakKb: number }[]> {
  const all = [];
  for (const { load, run } of LOADS) {
    const client = await Flood.open(target);
    forgetPeak(pid);
    const { nowKb: beforeKb } = resident(pid);
    await run(client);
    const { peakKb } = resident(pid);
    client.end();
    say(`${load}: ${beforeKb} kB before, at most ${peakKb} kB`);
    all.push({ load, beforeKb, peakKb });
  }
  return all;
}
