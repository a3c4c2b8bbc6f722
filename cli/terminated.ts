/**
 * SIGTERM and SIGINT from the first moment on: loaded before everything else. The first process of a container is not told
 * of a signal that it has no handler for, and a kubelet sends it once: what came while the program was still being loaded would
 * be waited for until the end of the grace period (C05).
 */
import { constants } from "node:os";

const SIGNALS = ["SIGTERM", "SIGINT"] as const;

type Signal = (typeof SIGNALS)[number];

const ended = new AbortController();
let first: Signal | null = null;
let awaited = false;
let loaded = false;

const exit = (name: Signal): never => process.exit(128 + constants.signals[name]);

for (const name of SIGNALS) {
  process.on(name, () => {
    // A second one is in a hurry.
    if (first || (loaded && !awaited)) exit(name);
    first = name;
    ended.abort(new Error(name));
  });
}

/** For a command that ends in order: aborts at the first signal, which may have come already. */
export function untilTerminated(): AbortSignal {
  awaited = true;
  return ended.signal;
}

/** The command has begun: unless it awaits the end it is ended by a signal as any program. */
export function commandHasBegun(): void {
  loaded = true;
  if (first && !awaited) exit(first);
}
