/** Waits that end early in order, without an error. */
import type { Clock } from "./clock.ts";

/** One wait at a time that others can cut short. */
export class Pause {
  #wake: () => void = () => {};

  /** Ends the wait that is under way. Nobody who waits later hears of it. */
  wake(): void {
    this.#wake();
  }

  /** Resolves after `ms`, when it is woken, or when `signal` aborts. */
  async wait(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return;
    const woken = Promise.withResolvers<void>();
    const wake = (): void => woken.resolve();
    this.#wake = wake;
    const cancel = clock.after(ms, wake);
    signal.addEventListener("abort", wake, { once: true });
    await woken.promise;
    cancel();
    signal.removeEventListener("abort", wake);
  }
}

/** Resolves when `signal` aborts. */
export function whenAborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
}
