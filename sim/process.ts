/**
 * A simulated process: a clock of its own that drifts and can be set, pauses in which nothing of it runs, and an end.
 *
 * Does NOT stop code that is running: a pause or an end takes effect at the next event.
 */
import type { Clock } from "../platform/clock.ts";
import type { Random } from "../platform/random.ts";
import { seededRandom } from "../testing/seeded.ts";
import type { Scheduler } from "./scheduler.ts";

export const WALL_MS_AT_START = Date.UTC(2026, 10, 29, 12);

/** As Node's: without it a timer for what is left of a deadline could come in front of that by a rounding, for ever. */
const TIMER_MS_MIN = 1;

/** Streams of randomness that do not disturb each other, so that leaving a fault out leaves everything else as it was. */
export function streamOf(seed: number, name: string): Random {
  let hash = seed ^ 0x811c9dc5;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  return seededRandom(hash ^ (hash >>> 15));
}

/** Of honest clocks. */
const DRIFT_MAX = 0.0005;
/** Of a machine that nobody sets; most are off by seconds only. */
const WALL_OFFSET_MS_MAX = 180_000;

/** On a machine with a clock of its own. */
export function newProcess(name: string, { scheduler, seed }: Pick<ProcessOptions, "scheduler" | "seed">): Process {
  const random = streamOf(seed, `machine ${name}`);
  const spread = (most: number): number => (2 * random.unit() - 1) * most;
  const [drift, wallOffsetMs] = [spread(DRIFT_MAX), spread(1) ** 3 * WALL_OFFSET_MS_MAX];
  return new Process({ scheduler, seed, name, drift, wallOffsetMs });
}

export interface ProcessOptions {
  readonly scheduler: Scheduler;
  readonly seed: number;
  readonly name: string;
  /** How much faster than true time its monotonic clock runs: ±0.0005 is what an honest one may. */
  readonly drift: number;
  /** How far its wall clock is off. */
  readonly wallOffsetMs: number;
}

export class Process {
  readonly name: string;
  readonly random: Random;
  readonly clock: Clock;
  alive = true;
  wallOffsetMs: number;
  readonly #scheduler: Scheduler;
  readonly #rate: number;
  readonly #atExit = new Set<() => void>();
  #pausedUntilMs = 0;
  /** What its monotonic clock has missed because the machine stood still with it. */
  #missedMs = 0;

  constructor({ scheduler, seed, name, drift, wallOffsetMs }: ProcessOptions) {
    this.name = name;
    this.random = streamOf(seed, name);
    this.wallOffsetMs = wallOffsetMs;
    this.#scheduler = scheduler;
    this.#rate = 1 + drift;
    this.clock = {
      monoMs: () => this.#monoMs(),
      wall: () => new Date(WALL_MS_AT_START + scheduler.nowMs + this.wallOffsetMs),
      sleep: (ms, signal) => this.#sleep(ms, signal),
      after: (ms, fn) => this.#after(ms, fn),
    };
  }

  get paused(): boolean {
    return this.#scheduler.nowMs < this.#pausedUntilMs;
  }

  /** Nothing of it runs for so long. `clockToo`: as when a virtual machine is suspended, its monotonic clock stands still. */
  pause(ms: number, clockToo = false): void {
    const untilMs = this.#scheduler.nowMs + ms;
    if (clockToo) this.#missedMs += Math.max(0, untilMs - Math.max(this.#pausedUntilMs, this.#scheduler.nowMs));
    this.#pausedUntilMs = Math.max(this.#pausedUntilMs, untilMs);
  }

  /** What its kernel does when it ends: connections are closed. */
  atExit(fn: () => void): () => void {
    this.#atExit.add(fn);
    return () => this.#atExit.delete(fn);
  }

  kill(): void {
    if (!this.alive) return;
    this.alive = false;
    for (const fn of this.#atExit) fn();
  }

  /** With its machine: nobody hears of it. */
  vanish(): void {
    this.alive = false;
  }

  /** Something reaches the process: now, at the end of a pause, or never. */
  deliver(fn: () => void): void {
    if (!this.alive) return;
    if (this.paused) this.#scheduler.at(this.#pausedUntilMs, () => this.deliver(fn));
    else fn();
  }

  #monoMs(): number {
    return (this.#scheduler.nowMs - this.#missedMs) * this.#rate;
  }

  #after(ms: number, fn: () => void): () => void {
    let cancelled = false;
    const cancel = this.#scheduler.at(this.#scheduler.nowMs + Math.max(TIMER_MS_MIN, ms) / this.#rate, () =>
      this.deliver(() => {
        if (!cancelled) fn();
      }),
    );
    return () => {
      cancelled = true;
      cancel();
    };
  }

  #sleep(ms: number, signal?: AbortSignal): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const onAbort = (): void => {
      cancel();
      reject(signal?.reason);
    };
    const cancel = this.#after(ms, () => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    });
    if (signal?.aborted) onAbort();
    else signal?.addEventListener("abort", onAbort, { once: true });
    return promise;
  }
}
