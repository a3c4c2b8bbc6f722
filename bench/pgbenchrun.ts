/** One run of pgbench against one target, and what it says of itself. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { command } from "../conformance/command.ts";
import { PGBENCH } from "../conformance/pgbench.ts";
import type { Cell } from "./cells.ts";
import { quantile } from "./figures.ts";

export interface Place {
  /** A host, or the directory of a Unix socket. */
  readonly host: string;
  readonly port: number;
  readonly user: string;
  readonly database: string;
}

export interface Run {
  readonly cell: Cell;
  readonly seconds: number;
  readonly randomSeed: number;
  /** A command that runs pgbench at its end and watches meanwhile. */
  readonly under?: readonly string[];
}

export interface PgbenchSays {
  readonly transactions: number;
  /** Transactions per second, without the time to connect. */
  readonly tps: number;
  readonly latencyAverageUs: number;
  /** To open all sessions, one after the other in each thread. */
  readonly connectMs: number;
}

export interface Measured extends PgbenchSays {
  /** Of one transaction; with one client only: with more they say how clients queue, not what a target adds. */
  readonly latency: { readonly medianUs: number; readonly p99Us: number } | undefined;
}

/** Threads of pgbench: more than the cores would only make it compete with itself. */
const THREADS_MAX = 2;
/** Beyond its seconds: connecting, and the last transactions. */
const RUN_MS_SPARE = 60_000;
const INITIALISE_SECONDS_MAX = 600;

/** Throws with pgbench's own words when it fails, or when any transaction does. */
export async function runPgbench(place: Place, run: Run): Promise<Measured> {
  const scratch = mkdtempSync(join(tmpdir(), "fencedjob-bench-"));
  try {
    const logged = run.cell.clients === 1;
    const log = logged ? ["--log", `--log-prefix=${join(scratch, "log")}`] : [];
    const said = await pgbench(place, [...argumentsOf(run), ...log], { seconds: run.seconds, under: run.under });
    return { ...parsePgbench(said), latency: logged ? latencyOf(readLogs(scratch)) : undefined };
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

/** Makes pgbench's tables. */
export async function initialise(place: Place, scale: number): Promise<void> {
  await pgbench(place, ["-i", "-q", "-s", String(scale)], { seconds: INITIALISE_SECONDS_MAX });
}

function argumentsOf({ cell, seconds, randomSeed }: Run): string[] {
  const threads = Math.min(cell.clients, THREADS_MAX);
  const what = ["-n", "-b", cell.script, "-M", cell.protocol, `--random-seed=${randomSeed}`];
  return [...what, "-c", String(cell.clients), "-j", String(threads), "-T", String(seconds)];
}

async function pgbench(
  place: Place,
  args: readonly string[],
  { seconds, under = [] }: { seconds: number; under?: readonly string[] | undefined },
): Promise<string> {
  const [program = PGBENCH, ...rest] = [...under, PGBENCH, ...args];
  const { code, stdout, stderr } = await command(program, rest, {
    env: {
      PGHOST: place.host,
      PGPORT: String(place.port),
      PGUSER: place.user,
      PGDATABASE: place.database,
      PGSSLMODE: "disable",
      PGGSSENCMODE: "disable",
    },
    timeoutMs: seconds * 1000 + RUN_MS_SPARE,
  });
  if (code !== 0) throw new Error(`pgbench ${args.join(" ")} ended with ${code}:\n${stderr}`);
  return stdout;
}

/** Throws when the text is not a whole report of a run without failures. */
export function parsePgbench(text: string): PgbenchSays {
  const figure = (pattern: RegExp): number => {
    const found = pattern.exec(text)?.[1];
    if (found === undefined) throw new Error(`pgbench does not say ${pattern.source}:\n${text}`);
    return Number(found);
  };
  const failed = figure(/number of failed transactions: (\d+)/);
  if (failed > 0) throw new Error(`${failed} transactions failed:\n${text}`);
  const transactions = figure(/number of transactions actually processed: (\d+)/);
  // Its seconds begin before it has connected.
  if (transactions === 0)
    throw new Error("no transaction was done in the time it took to connect: give more --seconds");
  return {
    transactions,
    tps: figure(/tps = ([\d.]+) \(without initial connection time\)/),
    latencyAverageUs: figure(/latency average = ([\d.]+) ms/) * 1000,
    connectMs: figure(/initial connection time = ([\d.]+) ms/),
  };
}

function readLogs(scratch: string): string {
  return readdirSync(scratch)
    .map((file) => readFileSync(join(scratch, file), "utf8"))
    .join("");
}

/** From lines of `--log`: client, number, time in µs, … */
export function latencyOf(log: string): { medianUs: number; p99Us: number } {
  const times = Float64Array.from(log.trimEnd().split("\n"), (line) => Number(line.split(" ", 3)[2])).sort();
  return { medianUs: quantile(times, 0.5), p99Us: quantile(times, 0.99) };
}
