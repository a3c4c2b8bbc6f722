/** What a suite hands back: one outcome per check and side, and their comparison. Pure. */

export type Outcomes = ReadonlyMap<string, string>;

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
}

/** Reason of an expected difference by suite and check; null when there is none. */
export type Explain = (suite: string, check: string) => string | null;

/** `kind` names the outcome in the counts; by default the outcome itself. */
export function compare(
  name: { readonly suite: string; readonly postgres: number },
  direct: Outcomes,
  proxied: Outcomes,
  explain: Explain,
  kind: (outcome: string) => string = (outcome) => outcome,
): SuiteResult {
  const checks = [...new Set([...direct.keys(), ...proxied.keys()])].sort();
  const differences: Difference[] = [];
  for (const check of checks) {
    const d = direct.get(check) ?? "not run";
    const p = proxied.get(check) ?? "not run";
    if (d !== p) differences.push({ check, direct: d, proxied: p, reason: explain(name.suite, check) });
  }
  return {
    ...name,
    checks: checks.length,
    direct: counted(direct, kind),
    proxied: counted(proxied, kind),
    same: checks.length - differences.length,
    differences,
  };
}

function counted(outcomes: Outcomes, kind: (outcome: string) => string): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const outcome of outcomes.values()) counts[kind(outcome)] = (counts[kind(outcome)] ?? 0) + 1;
  return counts;
}

export const unexplained = ({ differences }: SuiteResult): Difference[] =>
  differences.filter(({ reason }) => reason === null);
