/** What the kernel knows of a process: processor time, memory. */
import { readFileSync, writeFileSync } from "node:fs";

/** Of /proc's clock: the same on every Linux that a distribution ships. */
const TICK_US = 10_000;

/** User and system time of all threads so far, in µs; in steps of 10 ms. */
export function cpuUs(pid: number): number {
  return ticksOf(readFileSync(`/proc/${pid}/stat`, "utf8")) * TICK_US;
}

/** utime + stime; the program's name in parentheses may hold spaces and parentheses itself. */
export function ticksOf(stat: string): number {
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return Number(fields[11]) + Number(fields[12]);
}

export interface Resident {
  readonly nowKb: number;
  /** The most since the process began, or since `forgetPeak`. */
  readonly peakKb: number;
}

export function resident(pid: number): Resident {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return { nowKb: kilobytes(status, "VmRSS"), peakKb: kilobytes(status, "VmHWM") };
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
