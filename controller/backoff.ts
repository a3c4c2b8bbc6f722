/** The pause behind failures: of owners and candidates, and, counted apart, of the pods that only close. Pure. */
import { isoSeconds, type Wall, wallMsOf } from "../platform/clock.ts";
import type { Draft } from "./draft.ts";
import { isClosing } from "./snapshot.ts";

const BACKOFF_MS_BASE = 1_000;
const BACKOFF_MS_MAX = 300_000;

/** More are made in a minute only where somebody takes each away at once (a taint, a policy, a janitor), which is no failure. */
const MADE_MAX = 30;
const MADE_MAX_PER_STANDBY = 3;
const LATELY_MS = 60_000;

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

export function madeLately(madeAtMs: readonly number[], nowMs: number): number[] {
  return madeAtMs.filter((atMs) => nowMs - atMs < LATELY_MS);
}

/** Until another pod may be made, on the monotonic clock; 0: now. The API server bears no loop of pods made and taken away. */
export function creationRestMs(madeAtMs: readonly number[], standbys: number, nowMs: number): number {
  const lately = madeLately(madeAtMs, nowMs);
  const made = lately.at(-(MADE_MAX + MADE_MAX_PER_STANDBY * standbys));
  return made === undefined ? 0 : made + LATELY_MS - nowMs;
}

export function tooManyMade(restMs: number, wall: Wall): string {
  return `its pods go as soon as they are made (a taint of their node, a policy?); the next one is made at ${isoSeconds(wall.getTime() + restMs)}`;
}
