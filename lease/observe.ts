/**
 * Observe, wait, claim: a Lease is taken over only when its record has not changed for its whole duration on the
 * observer's own monotonic clock. No timestamp of another machine is ever compared (A07).
 *
 * Does NOT prove that the holder is dead: the fence protects the data, waiting only protects a live owner's progress.
 */
import type { LeaseRecord } from "./record.ts";
import { OBSERVED_DURATION_MS_MAX } from "./timing.ts";

export interface Observation {
  /** The record as one opaque value. */
  readonly fingerprint: string;
  /** Monotonic ms from which it counts as unchanged: first seen then, or later by the time without sight of it. */
  readonly sinceMs: number;
  /** When it was last known to be the present one. */
  readonly seenMs: number;
}

/** The observation after seeing `record` at `nowMs`: an unchanged record keeps its start. */
export function observe(previous: Observation | undefined, record: LeaseRecord, nowMs: number): Observation {
  const fingerprint = fingerprintOf(record);
  return previous?.fingerprint === fingerprint ? previous : { fingerprint, sinceMs: nowMs, seenMs: nowMs };
}

/**
 * The observation after the API server itself has answered with `record`. Time for which it gave no answer, beyond
 * `gapMs`, does not count as unchanged: whoever could not read the record can expect nobody to have renewed it.
 */
export function sight(
  previous: Observation | undefined,
  record: LeaseRecord,
  nowMs: number,
  gapMs: number,
): Observation {
  const seen = observe(previous, record, nowMs);
  const blindMs = Math.max(0, nowMs - seen.seenMs - gapMs);
  return { fingerprint: seen.fingerprint, sinceMs: seen.sinceMs + blindMs, seenMs: nowMs };
}

export function fingerprintOf(record: LeaseRecord): string {
  const { uid, resourceVersion, holder, generation, renewTime } = record;
  return JSON.stringify([uid, resourceVersion, holder, generation, renewTime]);
}

/** Monotonic time for which the record has stood unchanged. */
export function unchangedMs(observation: Observation, nowMs: number): number {
  return nowMs - observation.sinceMs;
}

/**
 * How long the record must still stand unchanged before it may be claimed; 0 = now. The longer of the record's own
 * duration and the spec's, capped: a spec that was shortened must not rob a holder that was promised more.
 */
export function remainingMs(observation: Observation, record: LeaseRecord, specMs: number, nowMs: number): number {
  const durationMs = Math.min(Math.max(record.durationMs, specMs), OBSERVED_DURATION_MS_MAX);
  return Math.max(0, durationMs - unchangedMs(observation, nowMs));
}
