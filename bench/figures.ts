/** From the runs of a cell to what is said of it. Pure. */

/** Of one target in one cell; the index is the round, so that figures of one round can be set against each other. */
export interface Series {
  readonly tps: readonly number[];
  readonly latencyAverageUs: readonly number[];
  /** With one client only; else empty. */
  readonly latencyMedianUs: readonly number[];
  readonly latencyP99Us: readonly number[];
  /** To open all sessions of the cell. */
  readonly connectMs: readonly number[];
  /** Processor time of the target's own process per transaction; empty for `direct`. */
  readonly cpuUs: readonly number[];
}

export interface Spread {
  readonly median: number;
  readonly min: number;
  readonly max: number;
}

/** Of sorted values, the nearest one; NaN of none. */
export function quantile(sorted: ArrayLike<number>, share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN;
}

export function spread(values: readonly number[]): Spread | undefined {
  if (values.length === 0) return undefined;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length / 2;
  const upper = quantile(sorted, 0.5);
  const median = Number.isInteger(middle) ? ((sorted[middle - 1] ?? upper) + upper) / 2 : upper;
  return { median, min: quantile(sorted, 0), max: quantile(sorted, 1) };
}

/** `combine` of each round's two figures: what the machine did besides in that round meets both alike. */
export function perRound(
  a: readonly number[],
  b: readonly number[],
  combine: (a: number, b: number) => number,
): Spread | undefined {
  return spread(a.slice(0, b.length).map((value, round) => combine(value, b[round] ?? Number.NaN)));
}

/** Throughput of `of` as a share of that of `to`. */
export const throughputRatio = (of: Series, to: Series): Spread | undefined =>
  perRound(of.tps, to.tps, (a, b) => a / b);

/** What `of` adds to a round trip of `to`, in µs. */
export function addedLatency(
  of: Series,
  to: Series,
  which: "latencyMedianUs" | "latencyP99Us",
  roundTrips: number,
): Spread | undefined {
  return perRound(of[which], to[which], (a, b) => (a - b) / roundTrips);
}
