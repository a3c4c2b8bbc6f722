/** What every long-running command shares: its logger, and a signal that aborts at SIGTERM or SIGINT. */
import { systemClock } from "../platform/clock.ts";
import { jsonLogger, type Logger } from "../platform/log.ts";

export function processLogger(component: string): Logger {
  return jsonLogger((line) => process.stderr.write(line), systemClock.wall, { component });
}

export function untilTerminated(): AbortSignal {
  const ended = new AbortController();
  for (const signal of ["SIGTERM", "SIGINT"] as const) process.once(signal, () => ended.abort(new Error(signal)));
  return ended.signal;
}

export function whenAborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
}
