/**
 * A bound of time for something that can be told to give up: by one signal, which is also that of the caller.
 *
 * Does NOT leave it behind: whatever runs must fail soon after its signal aborts.
 */
import type { Clock } from "./clock.ts";

export interface Bounds {
  readonly clock: Clock;
  readonly timeoutMs: number;
  /** Of the caller, who may give up earlier. */
  readonly signal?: AbortSignal | undefined;
}

/** The result of `run`. Once its signal has aborted, whatever it fails with is that signal's reason: `late`, or the caller's. */
export async function within<T>(
  { clock, timeoutMs, signal }: Bounds,
  run: (signal: AbortSignal) => Promise<T>,
  late = (): Error => new Error(`no answer within ${Math.round(timeoutMs)} ms`),
): Promise<T> {
  signal?.throwIfAborted();
  const bound = new AbortController();
  const cancelTimer = clock.after(timeoutMs, () => bound.abort(late()));
  const onCaller = (): void => bound.abort(signal?.reason);
  signal?.addEventListener("abort", onCaller, { once: true });
  try {
    return await run(bound.signal);
  } catch (error) {
    throw bound.signal.aborted ? bound.signal.reason : error;
  } finally {
    cancelTimer();
    signal?.removeEventListener("abort", onCaller);
  }
}
