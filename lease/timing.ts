/** The durations of the lease protocol and the relations between them that safety and liveness rest on. */

export interface LeaseTiming {
  /** How long an unchanged record protects its holder. */
  readonly durationMs: number;
  /** From one renewal's send to the next. */
  readonly renewIntervalMs: number;
  /** Budget of one request to the API server; well below the duration, so that several attempts fit. */
  readonly requestTimeoutMs: number;
  /** The permit ends this much before the duration does. */
  readonly marginMs: number;
}

/**
 * Of the controllers among themselves: a failover costs the duration, and a loss no more than a new election. The interval is
 * short, as one that stands by acts for a leader that has missed a renewal (`silentMs`): within a second.
 */
export const DEFAULT_ELECTION_TIMING: LeaseTiming = {
  durationMs: 5_000,
  renewIntervalMs: 700,
  requestTimeoutMs: 1_500,
  marginMs: 500,
};

/** Two honest clocks differ by at most this share in rate: the slew limit of NTP daemons (500 ppm), doubled. */
export const CLOCK_DRIFT_MAX = 0.001;

/** An edited Lease may claim a longer duration; nobody waits longer than this for an unchanged record. */
export const OBSERVED_DURATION_MS_MAX = 10 * 60_000;

/** The same relation that CEL demands on the resource, asserted where it is used. */
export function assertTiming(timing: LeaseTiming): void {
  for (const [name, ms] of Object.entries(timing)) {
    if (!Number.isFinite(ms) || ms < 0) throw new Error(`lease timing: ${name} is ${ms}, expected milliseconds ≥ 0`);
  }
  const { durationMs, renewIntervalMs, requestTimeoutMs, marginMs } = timing;
  if (renewIntervalMs <= 0 || requestTimeoutMs <= 0) throw new Error("lease timing: intervals must be above 0");
  if (renewIntervalMs + requestTimeoutMs + marginMs >= durationMs) {
    throw new Error(
      `lease timing: renewInterval ${renewIntervalMs} + requestTimeout ${requestTimeoutMs} + margin ${marginMs} ms must be below the duration ${durationMs} ms`,
    );
  }
}

/** As well where no resource is asked: of processes that elect, whose durations come from a command line. */
export function assertElectionTiming(timing: LeaseTiming): void {
  assertTiming(timing);
  if (timing.durationMs % 1000 !== 0) throw new Error("lease timing: a Lease lasts whole seconds");
}

/**
 * When the permit ends if the renewal sent at `sentAtMs` is the one that the record shows (INV-5): counted from the
 * send, since an observer may have seen the record at any moment after it, and shortened by the clocks' drift.
 */
export function permitDeadlineMs(sentAtMs: number, durationMs: number, marginMs: number): number {
  return sentAtMs + durationMs * (1 - CLOCK_DRIFT_MAX) - marginMs;
}

/** Unchanged for this long, a renewal was missed, or is late by a quarter of its interval: reason enough to look, and for nothing else. */
export function silentMs({ renewIntervalMs }: LeaseTiming): number {
  return 1.25 * renewIntervalMs;
}

/** Unchanged for this long, a record's renewal is overdue: a successor is prepared, nothing is claimed. Not later than the lease runs out. */
export function overdueMs({ durationMs, renewIntervalMs, requestTimeoutMs }: LeaseTiming): number {
  return Math.min(durationMs, renewIntervalMs + Math.max(renewIntervalMs, requestTimeoutMs));
}
