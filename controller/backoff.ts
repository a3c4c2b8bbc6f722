/** The pause behind failures: of owners and candidates, and, counted apart, of the pods that only close. Pure. */
import { wallMsOf } from "../platform/clock.ts";
import type { Draft } from "./draft.ts";
import { isClosing } from "./snapshot.ts";

const BACKOFF_MS_BASE = 1_000;
const BACKOFF_MS_MAX = 300_000;

interface Failures {
  failures: number;
  lastFailureTime?: string | undefined;
}

/** INV-9: a closer's end says nothing about the job's work; its failures only put the next closer off. */
export function closerFailed({ status, wall }: Draft): void {
  status.closers = { failures: (status.closers?.failures ?? 0) + 1, lastFailureTime: wall };
}

/** Of what the job needs now. */
export function failuresOf({ status, snapshot }: Draft): Failures {
  return isClosing(snapshot) ? (status.closers ?? { failures: 0 }) : status;
}

/** Until the next pod may be made. */
export function backoffLeftMs(draft: Draft): number {
  const { snapshot, wall } = draft;
  const counted = failuresOf(draft);
  if (counted.failures === 0 || !counted.lastFailureTime) return 0;
  // The wall clock was set back: nobody waits until it has caught up.
  if (wallMsOf(counted.lastFailureTime) > snapshot.wallMs) counted.lastFailureTime = wall;
  // The first failure is succeeded at once: most are the only one.
  const { failures } = counted;
  const backoffMs = failures === 1 ? 0 : Math.min(BACKOFF_MS_BASE * 2 ** (failures - 1), BACKOFF_MS_MAX);
  return wallMsOf(counted.lastFailureTime) + backoffMs - snapshot.wallMs;
}
