/** What the fence row says about our ownership, read over a fresh connection before loss is declared. */
import { type FenceRow, readFence } from "../../fence/client.ts";
import type { DatabaseAddress, FenceIdentity } from "../../fence/database.ts";
import type { Witness } from "../../fence/witness.ts";
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
  /** Given up without a successor. */
  | { readonly kind: "closed"; readonly closedAt: string }
  | { readonly kind: "ours" }
  /** The row could not be read. */
  | { readonly kind: "unknown"; readonly why: string };

export const isLoss = ({ kind }: Verdict): boolean =>
  kind === "superseded" || kind === "incarnation" || kind === "closed";

/** Reads who owns the job. `ended`: a server session was ended from outside, which a raise does before it commits. */
export type VerdictReader = (ended: boolean) => Promise<Verdict>;

/** One look at the row. `raising`: a raise was under way when it was read, and may commit yet. */
export interface Reading {
  readonly verdict: Verdict;
  readonly raising: boolean;
}

/** The server may be the one that is gone: a session must not wait longer for the reason of its end. */
const READ_MS_MAX = 3_000;
/** A raise that has ended our session commits within this, or is not told as the reason. */
const RAISE_COMMITS_MS = 2_000;
const RAISE_POLL_MS = 25;

/** What the verdict is about: a generation, and the history in which it was raised. */
export interface RaisedIdentity {
  readonly identity: FenceIdentity;
  readonly incarnation: string;
  /** Of the last heartbeat that was confirmed. */
  readonly witness?: () => Witness | undefined;
}

/** A verdict function over `readFence`. */
export function fenceVerdict(address: () => DatabaseAddress, raised: RaisedIdentity, clock: Clock): VerdictReader {
  const { fenceName } = raised.identity;
  return verdictReader(
    () => lookAt(() => readFence(address(), fenceName, { clock, timeoutMs: READ_MS_MAX }), raised),
    clock,
  );
}

/**
 * Sessions that ask while a reading is under way share the next one: the present one may have looked before theirs was
 * refused or ended. A loss is final and is not read again. Never rejects, as `look` does not.
 */
export function verdictReader(look: () => Promise<Reading>, clock: Clock): VerdictReader {
  let loss: Verdict | undefined;
  const read = async (ended: boolean): Promise<Verdict> => {
    const untilMs = clock.monoMs() + RAISE_COMMITS_MS;
    while (!loss) {
      const { verdict, raising } = await look();
      if (isLoss(verdict)) loss = verdict;
      // Ended by somebody else, as long as no raise is under way.
      if (!ended || !raising || verdict.kind !== "ours" || clock.monoMs() >= untilMs) return verdict;
      await clock.sleep(RAISE_POLL_MS);
    }
    return loss;
  };
  const [plain, ended] = [shareTheNext(() => read(false)), shareTheNext(() => read(true))];
  return (isEnded) => (isEnded ? ended() : plain());
}

/** One run at a time; who asks during one gets the outcome of the run behind it. */
function shareTheNext<T>(run: () => Promise<T>): () => Promise<T> {
  let running: Promise<T> | undefined;
  let next: Promise<T> | undefined;
  const start = (): Promise<T> => {
    const started = run();
    running = started;
    void started.then(() => {
      if (running === started) running = undefined;
    });
    return started;
  };
  return () => {
    if (!running) return start();
    next ??= running.then(() => {
      next = undefined;
      return start();
    });
    return next;
  };
}

/** Never rejects. */
export async function lookAt(read: () => Promise<FenceRow | null>, raised: RaisedIdentity): Promise<Reading> {
  // As of before the row was read: a heartbeat that is confirmed meanwhile need not be on it.
  const witness = raised.witness?.();
  try {
    const row = await read();
    return { verdict: judge(row, raised, witness), raising: row?.raising ?? false };
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    return { verdict: { kind: "unknown", why }, raising: false };
  }
}

/** How a database that was set back calls itself; undefined if it was not. */
function missing(known: Witness | undefined, present: Witness | null): string | undefined {
  if (!known || (present && present.counter > known.counter)) return undefined;
  if (present?.counter === known.counter && present.nonce === known.nonce) return undefined;
  return `the same, set back to a time before heartbeat ${known.counter} of this generation`;
}

function judge(row: FenceRow | null, { identity, incarnation }: RaisedIdentity, witness: Witness | undefined): Verdict {
  // We have raised it, and a fence is never deleted (INV-1): this is a server that was left behind before.
  if (!row) return { kind: "incarnation", recorded: incarnation, present: "one that does not know the job" };
  const { generation, holderName, raisedAt, presentIncarnation: present } = row;
  if (generation > identity.generation) return { kind: "superseded", generation, holderName, raisedAt };
  // In front of the rest: a row that is lower is that of a server left behind, not of a successor (INV-1).
  if (present !== incarnation || generation < identity.generation) {
    return { kind: "incarnation", recorded: incarnation, present };
  }
  if (row.holder !== identity.holder) return { kind: "superseded", generation, holderName, raisedAt };
  const setBack = missing(witness, row.witness);
  if (setBack !== undefined) return { kind: "incarnation", recorded: incarnation, present: setBack };
  if (row.closedAt) return { kind: "closed", closedAt: row.closedAt };
  return { kind: "ours" };
}

/** A verdict for people. */
export function sayVerdict(verdict: Verdict): string {
  switch (verdict.kind) {
    case "superseded":
      return `pod ${verdict.holderName} raised the fence to generation ${verdict.generation}${verdict.raisedAt ? ` at ${verdict.raisedAt}` : ""}`;
    case "incarnation":
      return `the history of the database changed from ${verdict.recorded} to ${verdict.present}`;
    case "closed":
      return `the generation was closed at ${verdict.closedAt}`;
    case "ours":
      return "the fence names this generation";
    case "unknown":
      return `the fence could not be read: ${verdict.why}`;
  }
}
