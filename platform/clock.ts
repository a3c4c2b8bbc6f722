/**
 * Time, from outside: the only place (with the rest of platform/) that reads a clock or starts a timer.
 *
 * Does NOT promise that timers fire on time: a paused process wakes up late. Whoever must not act late compares
 * `monoMs()` with a deadline at the moment of acting (INV-5).
 */
import { setTimeout as delay } from "node:timers/promises";

/** A reading of the wall clock. */
export type Wall = Date;

export interface Clock {
  /** Milliseconds on CLOCK_MONOTONIC, shared by all threads of the machine; never goes back, has no meaning elsewhere. */
  monoMs(): number;
  /** Wall time, for people and records only; never compared with another machine's (controllers go by the API server's: serverclock.ts). */
  wall(): Wall;
  /** Resolves after `ms`; rejects with the signal's reason when aborted. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
  /** Calls `fn` once after `ms`; the returned function cancels. The timer does not keep the process alive. */
  after(ms: number, fn: () => void): () => void;
}

/** Longest delay a Node timer takes without firing at once (2^31 − 1 ms). */
const TIMER_MS_MAX = 2 ** 31 - 1;

export const systemClock: Clock = {
  // process.hrtime and not performance.now: the latter starts anew in each worker thread, and the permit's deadline
  // is written by one thread and read by another.
  monoMs: () => Number(process.hrtime.bigint()) / 1e6,
  wall: () => new Date(),
  sleep: async (ms, signal) => {
    await delay(Math.min(Math.max(0, ms), TIMER_MS_MAX), undefined, signal ? { signal } : {});
  },
  after: (ms, fn) => {
    const timer = setTimeout(fn, Math.min(Math.max(0, ms), TIMER_MS_MAX));
    timer.unref();
    return () => clearTimeout(timer);
  },
};

/** `2026-11-29T13:02:11Z` of a wall time in ms, for records. */
export function isoSeconds(wallMs: number): string {
  return new Date(wallMs).toISOString().replace(/\.\d{3}Z$/, "Z");
}

/** Wall ms of a record's ISO time; of our own records only, never compared for safety. */
export function wallMsOf(iso: string): number {
  return Date.parse(iso);
}
