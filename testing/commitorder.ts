/**
 * Judges INV-3 by the database's own order of commits: what logical decoding (`test_decoding`) says was committed,
 * transaction by transaction, raises and protected writes in one stream.
 *
 * Does NOT believe what a client was told: only what the server has committed counts.
 */

export interface CommitOrder {
  /** Transactions that wrote to the protected table. */
  readonly commits: number;
  /** Raises committed. */
  readonly raises: number;
  /** Generations closed. */
  readonly closes: number;
  /** Protected commits of a generation that was not the fence's, or was closed, at that point. INV-3 says 0. */
  readonly stale: number;
  /** Raises that lowered or repeated the fence. INV-1 says 0. */
  readonly lowered: number;
  /** The first offence, for a person. */
  readonly example: string | null;
}

const CLOSED = /^table fence\.claim: UPDATE: .* closed_at\[timestamp with time zone\]:'/;
const GENERATION = / generation\[bigint\]:(\d+)/;

/** `lines` of test_decoding, in order; `table` (schema-qualified) has a column `generation`, as the fence row has. */
export function judgeCommitOrder(lines: readonly string[], table: string): CommitOrder {
  const order = { commits: 0, raises: 0, closes: 0, stale: 0, lowered: 0, example: null as string | null };
  let fence = 0;
  let isClosed = false;
  let raised: number | null = null;
  let closed = false;
  let written: number[] = [];
  for (const line of lines) {
    if (line.startsWith("BEGIN")) {
      raised = null;
      closed = false;
      written = [];
    } else if (line.startsWith("table fence.job: UPDATE:")) {
      raised = generationOf(line);
    } else if (CLOSED.test(line)) {
      closed = true;
    } else if (line.startsWith(`table ${table}: `)) {
      written.push(generationOf(line));
    } else if (line.startsWith("COMMIT")) {
      commit();
    }
  }
  return order;

  function commit(): void {
    if (raised !== null) {
      order.raises++;
      if (raised <= fence) offend("lowered", `fence ${fence} → ${raised}`);
      fence = raised;
      isClosed = false;
    }
    if (closed) {
      order.closes++;
      isClosed = true;
    }
    if (written.length === 0) return;
    order.commits++;
    const wrong = written.find((generation) => generation !== fence);
    if (wrong !== undefined) offend("stale", `generation ${wrong} committed while the fence was at ${fence}`);
    else if (isClosed) offend("stale", `generation ${fence} committed behind its close`);
  }

  function offend(kind: "stale" | "lowered", what: string): void {
    order[kind]++;
    order.example ??= `commit ${order.commits + order.raises}: ${what}`;
  }
}

function generationOf(line: string): number {
  const found = GENERATION.exec(line);
  if (!found) throw new Error(`no generation in: ${line}`);
  return Number(found[1]);
}
