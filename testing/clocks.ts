/** Clocks for tests: one that a test moves by hand, one that runs faster than the real one. */
import { type Clock, systemClock } from "../platform/clock.ts";

/** The real clock, `factor` times faster: delays of minutes pass in seconds, over real sockets. */
export function fastClock(factor: number): Clock {
  return {
    monoMs: () => systemClock.monoMs() * factor,
    wall: systemClock.wall,
    sleep: (ms, signal) => systemClock.sleep(ms / factor, signal),
    after: (ms, fn) => systemClock.after(ms / factor, fn),
  };
}

/** Time stands still until `advance`. */
export class ManualClock implements Clock {
  #nowMs = 0;
  readonly #timers = new Set<{ dueMs: number; fn: () => void }>();

  monoMs(): number {
    return this.#nowMs;
  }

  wall(): Date {
    return new Date(Date.UTC(2026, 0, 1) + this.#nowMs);
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const cancel = this.after(ms, resolve);
    const onAbort = (): void => {
      cancel();
      reject(signal?.reason);
    };
    if (signal?.aborted) onAbort();
    else signal?.addEventListener("abort", onAbort, { once: true });
    return promise;
  }

  after(ms: number, fn: () => void): () => void {
    const timer = { dueMs: this.#nowMs + Math.max(0, ms), fn };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  /** Timers that have not fired. */
  get pending(): number {
    return this.#timers.size;
  }

  /** Fires what is due within `ms`, in order, each at its own time, and lets promises settle after each. */
  async advance(ms: number): Promise<void> {
    const endMs = this.#nowMs + ms;
    for (;;) {
      await settle();
      const [next] = [...this.#timers].filter(({ dueMs }) => dueMs <= endMs).sort((a, b) => a.dueMs - b.dueMs);
      if (!next) break;
      this.#timers.delete(next);
      this.#nowMs = next.dueMs;
      next.fn();
    }
    this.#nowMs = endMs;
  }
}

/** Lets everything that waits only for promises run. */
export async function settle(): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
}
