/**
 * Two controllers that act on one job and are not of one opinion: two installations, or a leader and who acts for it, of which one hears
 * later of a Lease or a pod. Each would take back what the other has written, as fast as the API server answers, with a pod made
 * and deleted each time. So whoever takes the same back again rests first, longer each time.
 *
 * Does NOT decide who is right: both see the same in the end. Pure.
 */
import type { FencedJobStatus } from "./api/status.ts";

export interface Rivalry {
  /** What our last write said, word for word and without numbers, and when. */
  readonly words: string;
  readonly said: string;
  readonly atMs: number;
  /** How often we have said again what another had replaced, one time soon after the other. */
  readonly times: number;
  /** The last time. */
  readonly tookBackMs: number;
}

/** As often at once: a message that overtakes another is no dispute. */
const TIMES_FREE = 2;
const REST_MS_BASE = 1_000;
/** A takeover may have to wait for it. */
const REST_MS_MAX = 8_000;
/** So long without is the end of it. */
const OVER_MS = 60_000;

/** Until `next` may be written over `present`; 0: now. */
export function restMs(
  before: Rivalry | undefined,
  present: FencedJobStatus,
  next: FencedJobStatus,
  nowMs: number,
): number {
  const { times, atMs } = wrote(before, present, next, nowMs);
  if (!before || times === before.times || times <= TIMES_FREE) return 0;
  return Math.max(0, before.atMs + Math.min(REST_MS_MAX, REST_MS_BASE * 2 ** (times - TIMES_FREE - 1)) - atMs);
}

/** `next` was written over `present`. */
export function wrote(
  before: Rivalry | undefined,
  present: FencedJobStatus,
  next: FencedJobStatus,
  nowMs: number,
): Rivalry {
  const words = wordsOf(next);
  const said = words.replace(/\d+/g, "");
  if (!before) return { words, said, atMs: nowMs, times: 0, tookBackMs: Number.NEGATIVE_INFINITY };
  // Another has written since, and not the same: also where only a pod's number is another, as two see two Leases.
  const takesBack = said === before.said && ![before.words, words].includes(wordsOf(present));
  const times = nowMs - before.tookBackMs > OVER_MS ? 0 : before.times;
  return {
    words,
    said,
    atMs: nowMs,
    times: times + Number(takesBack),
    tookBackMs: takesBack ? nowMs : before.tookBackMs,
  };
}

/** Whoever takes the same back makes another pod each time: its name differs in the number only. */
function wordsOf({ summary, owner, candidates, conditions }: FencedJobStatus): string {
  const told = conditions.map(({ type, status, reason, message }) => [type, status, reason, message]);
  return JSON.stringify([summary, owner?.pod ?? "", candidates.map(({ pod }) => pod), told]);
}
