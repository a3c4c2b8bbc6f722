/** What a suite hands back: one outcome per check and side, and their comparison. Pure. */

export type Outcomes = ReadonlyMap<string, string>;

export interface Sides {
  readonly direct: Outcomes;
  readonly proxied: Outcomes;
  /** Through PgBouncer, where the suite runs there: what any middleman differs in. No judgement on it. */
  readonly pooled?: Outcomes;
}

export interface PooledDifference {
  readonly check: string;
  readonly direct: string;
  readonly pooled: string;
}

export interface Difference {
  readonly check: string;
  readonly direct: string;
  readonly proxied: string;
  /** Why it is expected; null when nobody has explained it, which fails the run. */
  readonly reason: string | null;
}

export interface SuiteResult {
  readonly suite: string;
  readonly postgres: number;
  readonly checks: number;
  /** How many checks had each outcome, e.g. pass, fail, skip. */
  readonly direct: Readonly<Record<string, number>>;
  readonly proxied: Readonly<Record<string, number>>;
  readonly same: number;
  readonly differences: readonly Difference[];
  /** How PgBouncer differs from direct; absent where the suite does not run through it. */
  readonly pooled?: readonly PooledDifference[];
}

/** Reason of an expected difference by suite and check; null when there is none. */
export type Explain = (suite: string, check: string) => string | null;

export interface Comparing {
  readonly explain: Explain;
  /** Names the outcome in the counts; the outcome itself if absent. */
  readonly kind?: (outcome: string) => string;
  /** What of two long outcomes is shown; all of both if absent. */
  readonly shorten?: (direct: string, other: string) => { readonly direct: string; readonly other: string };
}

export function compare(
  name: { readonly suite: string; readonly postgres: number },
  { direct, proxied, pooled }: Sides,
  { explain, kind = (outcome) => outcome, shorten = (one, other) => ({ direct: one, other }) }: Comparing,
): SuiteResult {
  const differing = (other: Outcomes) =>
    differ(direct, other).map((one) => ({ ...one, ...shorten(one.direct, one.other) }));
  const differences = differing(proxied).map(({ check, direct, other }) => ({
    check,
    direct,
    proxied: other,
    reason: explain(name.suite, check),
  }));
  const checks = new Set([...direct.keys(), ...proxied.keys()]).size;
  return {
    ...name,
    checks,
    direct: counted(direct, kind),
    proxied: counted(proxied, kind),
    same: checks - differences.length,
    differences,
    ...(pooled && { pooled: differing(pooled).map(({ check, direct, other }) => ({ check, direct, pooled: other })) }),
  };
}

const NOT_RUN = "not run";

function differ(direct: Outcomes, other: Outcomes): { check: string; direct: string; other: string }[] {
  return [...new Set([...direct.keys(), ...other.keys()])]
    .sort()
    .map((check) => ({ check, direct: direct.get(check) ?? NOT_RUN, other: other.get(check) ?? NOT_RUN }))
    .filter((one) => one.direct !== one.other);
}

function counted(outcomes: Outcomes, kind: (outcome: string) => string): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const outcome of outcomes.values()) counts[kind(outcome)] = (counts[kind(outcome)] ?? 0) + 1;
  return counts;
}

export const unexplained = ({ differences }: SuiteResult): Difference[] =>
  differences.filter(({ reason }) => reason === null);
