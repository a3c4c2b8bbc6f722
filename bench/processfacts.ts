/** What the kernel knows of a process: processor time, memory. */
import { readFileSync, writeFileSync } from "node:fs";

/** Of /proc's clock: the same on every Linux that a distribution ships. */
const TICK_US = 10_000;

export interface ProcessorTime {
  readonly userUs: number;
  readonly systemUs: number;
}

/** Of all threads so far, in steps of 10 ms. */
export const cpuOf = (pid: number): ProcessorTime => parseStat(readFileSync(`/proc/${pid}/stat`, "utf8"));

/** utime and stime; the program's name in parentheses may hold spaces and parentheses itself. */
export function parseStat(stat: string): ProcessorTime {
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return { userUs: Number(fields[11]) * TICK_US, systemUs: Number(fields[12]) * TICK_US };
}

export interface Resident {
  readonly nowKb: number;
  /** Of it the process's own: not the program's file, which all processes of it share. */
  readonly ownKb: number;
  /** The most since the process began, or since `forgetPeak`. */
  readonly peakKb: number;
}

export function resident(pid: number): Resident {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return { nowKb: kilobytes(status, "VmRSS"), ownKb: kilobytes(status, "RssAnon"), peakKb: kilobytes(status, "VmHWM") };
}

export function kilobytes(status: string, name: string): number {
  const found = new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(status)?.[1];
  if (found === undefined) throw new Error(`no ${name} in the status of the process`);
  return Number(found);
}

/** The peak begins anew at what is resident now. */
export function forgetPeak(pid: number): void {
  writeFileSync(`/proc/${pid}/clear_refs`, "5");
}
