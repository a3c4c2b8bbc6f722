/** What the fence row says about our ownership, read over a fresh connection before loss is declared. */
import { readFence } from "../../fence/client.ts";
import type { DatabaseAddress, FenceIdentity } from "../../fence/database.ts";
import type { Clock } from "../../platform/clock.ts";

export type Verdict =
  | {
      readonly kind: "superseded";
      readonly generation: number;
      readonly holderName: string;
      /** The database's wall time, ISO 8601, for people; may be empty. */
      readonly raisedAt: string;
    }
  /** The database is in another history than the one in which the fence was raised. */
  | { readonly kind: "incarnation"; readonly recorded: string; readonly present: string }
  | { readonly kind: "ours" }
  /** The row could not be read. */
  | { readonly kind: "unknown"; readonly why: string };

export const isLoss = (verdict: Verdict): boolean => verdict.kind === "superseded" || verdict.kind === "incarnation";

/** Reads who owns the job. `ended`: a server session was ended from outside, which a raise does before it commits. */
export type VerdictReader = (ended: boolean) => Promise<Verdict>;

/** The server may be the one that is gone: a session must not wait longer for the reason of its end. */
const READ_MS_MAX = 3_000;
/** A raise that has ended our session commits within this, or it was somebody else who ended it. */
const RAISE_COMMITS_MS = 2_000;
const RAISE_POLL_MS = 25;

/**
 * A verdict function over `readFence`. Sessions that ask at the same time share one reading; a loss is final and is not
 * read again. Never rejects.
 */
export function fenceVerdict(address: DatabaseAddress, identity: FenceIdentity, clock: Clock): VerdictReader {
  let loss: Verdict | undefined;
  const readings = new Map<boolean, Promise<Verdict>>();
  const read = async (ended: boolean): Promise<Verdict> => {
    const untilMs = clock.monoMs() + RAISE_COMMITS_MS;
    for (;;) {
      const verdict = await readOnce(address, identity, clock);
      if (!ended || verdict.kind !== "ours" || clock.monoMs() >= untilMs) return verdict;
      await clock.sleep(RAISE_POLL_MS);
    }
  };
  return async (ended) => {
    if (loss) return loss;
    const shared = readings.get(ended) ?? read(ended);
    readings.set(ended, shared);
    const verdict = await shared;
    readings.delete(ended);
    if (isLoss(verdict)) loss = verdict;
    return verdict;
  };
}

async function readOnce(address: DatabaseAddress, identity: FenceIdentity, clock: Clock): Promise<Verdict> {
  try {
    const row = await readFence(address, identity.fenceName, { clock, timeoutMs: READ_MS_MAX });
    if (!row) return { kind: "unknown", why: "the database does not know the job" };
    if (row.generation !== identity.generation || row.holder !== identity.holder) {
      const { generation, holderName, raisedAt } = row;
      return { kind: "superseded", generation, holderName, raisedAt };
    }
    if (row.incarnation !== row.presentIncarnation) {
      return { kind: "incarnation", recorded: row.incarnation, present: row.presentIncarnation };
    }
    return { kind: "ours" };
  } catch (error) {
    return { kind: "unknown", why: error instanceof Error ? error.message : String(error) };
  }
}

/** A verdict for people. */
export function sayVerdict(verdict: Verdict): string {
  switch (verdict.kind) {
    case "superseded":
      return `pod ${verdict.holderName} raised the fence to generation ${verdict.generation}${verdict.raisedAt ? ` at ${verdict.raisedAt}` : ""}`;
    case "incarnation":
      return `the history of the database changed from ${verdict.recorded} to ${verdict.present}`;
    case "ours":
      return "the fence names this generation";
    case "unknown":
      return `the fence could not be read: ${verdict.why}`;
  }
}
