/** The files of `bench/results/`: what the programs of the bench write, and what the document is made of. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Cell, Sockets } from "./cells.ts";
import type { Series } from "./figures.ts";
import type { Machine } from "./machine.ts";
import type { Resident } from "./processfacts.ts";

/** Said of a run as a whole. */
export interface RunFacts {
  /** UTC, for people. */
  readonly startedAt: string;
  readonly machine: Machine;
  /** PostgreSQL's settings that are not its defaults. */
  readonly postgresSettings: Readonly<Record<string, string>>;
  readonly scale: number;
}

export interface WireResults extends RunFacts {
  readonly seconds: number;
  readonly rounds: number;
  readonly seed: number;
  readonly sockets: readonly Sockets[];
  /** The machine's load in the minute before: above a few tenths the figures are of something else, too. */
  readonly loadBefore: number;
  readonly skipped: readonly { readonly target: string; readonly why: string }[];
  /** By the targets' keys. */
  readonly cells: readonly (Cell & { readonly targets: Readonly<Record<string, Series>> })[];
}

export interface MemoryResults extends RunFacts {
  readonly sessions: number;
  readonly resident: readonly (Resident & { readonly target: string })[];
  /** What the proxy's memory did while so much went through it. */
  readonly loads: readonly LoadMemory[];
}

/** Of one process, before all loads, at most with a part of this one, at most with all of it. */
export interface LoadMemory {
  readonly load: string;
  readonly mib: number;
  readonly partMib: number;
  readonly beforeKb: number;
  readonly partPeakKb: number;
  readonly peakKb: number;
}

export interface ProfileResults extends RunFacts {
  readonly seconds: number;
  readonly profiles: readonly Profile[];
}

/** All figures are per round trip of the client. */
export interface Profile {
  readonly cell: string;
  readonly target: string;
  readonly userUs: number;
  readonly systemUs: number;
  readonly systemCalls: Readonly<Record<string, number>>;
  readonly contextSwitches: number;
  /** µs of processor time by kind of code, the most first. */
  readonly parts: readonly { readonly part: string; readonly us: number }[];
  /** The same of JavaScript functions. */
  readonly functions: readonly { readonly name: string; readonly us: number }[];
}

export interface Results {
  readonly wire: WireResults | undefined;
  readonly memory: MemoryResults | undefined;
  readonly profile: ProfileResults | undefined;
}

const FOLDER = join(import.meta.dirname, "results");

/** What was measured so far. */
export function readResults(): Results {
  return {
    wire: read("wire") as WireResults | undefined,
    memory: read("memory") as MemoryResults | undefined,
    profile: read("profile") as ProfileResults | undefined,
  };
}

function read(name: keyof Results): unknown {
  const file = join(FOLDER, `${name}.json`);
  return existsSync(file) ? JSON.parse(readFileSync(file, "utf8")) : undefined;
}

export function writeResults<Name extends keyof Results>(name: Name, results: NonNullable<Results[Name]>): void {
  mkdirSync(FOLDER, { recursive: true });
  writeFileSync(join(FOLDER, `${name}.json`), compactJson(results));
}

/** Of bench/soak.ts, for people. */
export function writeSoak(results: object): void {
  mkdirSync(FOLDER, { recursive: true });
  writeFileSync(join(FOLDER, "soak.json"), compactJson(results));
}

/** Indented, but a list of numbers on one line, and nothing finer than a thousandth. */
export function compactJson(value: unknown): string {
  const rounded = JSON.stringify(value, (_, of) => (typeof of === "number" ? Math.round(of * 1000) / 1000 : of), 2);
  return `${rounded.replaceAll(/\[[\d\s.,e-]+\]/g, (list) => list.replaceAll(/\s+/g, " "))}\n`;
}
