/**
 * The SQL text that puts a transaction inside the gate of one generation, and that admits a server session at its
 * start. Pure text: the wire sends it.
 *
 * Enter does NOT check who holds the generation: admission does that once per session. Enter only takes the lock that
 * a raise must wait for, and that a revoked gate refuses (INV-3).
 */
import type { FenceCode } from "./codes.ts";
import type { FenceIdentity } from "./database.ts";
import type { Witness } from "./witness.ts";

/** First key of the advisory locks (`integer, integer`) of brackets; the second is the job's id. */
const BRACKET_LOCK_CLASS = 1_279_673_923;

/** Name of the gate table, qualified. */
function gateName(jobId: number, generation: number): string {
  if (!Number.isSafeInteger(jobId) || jobId < 1) throw new RangeError(`not a job id: ${jobId}`);
  if (!Number.isSafeInteger(generation) || generation < 1) throw new RangeError(`not a generation: ${generation}`);
  return `fence.gate_${jobId}_${generation}`;
}

/**
 * Enters inside a block or in front of a simple query. Refused with 42501 (gate closed) or 42P01 (closed and swept):
 * both also have other causes, so read the fence row before declaring loss.
 */
export function enterLockSql(jobId: number, generation: number): string {
  return `LOCK TABLE ${gateName(jobId, generation)} IN ROW SHARE MODE`;
}

/** Enters in an extended implicit transaction, where LOCK is refused up to PostgreSQL 17. No row, no column. */
export function enterSelectSql(jobId: number, generation: number): string {
  return `SELECT FROM ${gateName(jobId, generation)} FOR SHARE`;
}

/**
 * Brackets a statement that cannot be in a transaction (CREATE INDEX CONCURRENTLY, VACUUM …): on one session, `lock`,
 * `check`, `SET default_transaction_read_only=off`, the statement, the default back on, `unlock`. The raise takes the
 * same advisory lock exclusively, so that it waits for the statement. `check` must be in a transaction of its own: under
 * REPEATABLE READ that of `lock` may have a snapshot from before the raise that it waited for (INV-3).
 */
export function bracketSql(jobId: number, identity: FenceIdentity): { lock: string; check: string; unlock: string } {
  return {
    lock: `SELECT pg_catalog.pg_advisory_lock_shared(${BRACKET_LOCK_CLASS}, ${jobId})`,
    check: `SELECT fence.check_owner(${ownerArguments(jobId, identity)})`,
    unlock: `SELECT pg_catalog.pg_advisory_unlock_shared(${BRACKET_LOCK_CLASS}, ${jobId})`,
  };
}

export interface SessionStartStep {
  /** One simple-query message, perhaps of several statements. */
  readonly sql: string;
  /** `42501`: the message must fail with exactly this SQLSTATE. */
  readonly expect: "success" | "42501";
  /**
   * What it means when the outcome is another one. A server's error that already has a code of ours, or one that
   * `codeOfSqlState` knows, is more precise and comes first; LF001 here means: read the fence row before saying so.
   */
  readonly onUnexpected: FenceCode;
}

/**
 * What a new server session runs, in this order, before its client sees the first ReadyForQuery. It was opened with
 * `default_transaction_read_only=on` as the last startup parameter; behind a pooler that drops it, the role must have it.
 * `incarnation`: of the history in which the generation was raised, by the answer of that raise; the first server of a list
 * that answers may live in another one. `witness`: of the last heartbeat that was confirmed, if there are any: a database that
 * was set back keeps its incarnation.
 */
export function sessionStartSteps(
  jobId: number,
  identity: FenceIdentity,
  incarnation: string,
  witness?: Witness,
): readonly SessionStartStep[] {
  const owner = ownerArguments(jobId, identity);
  return [
    // The read-only default must be what every RESET comes back to; the next step looks. Only this one: a pooler sets what
    // its client asked for (application_name, DateStyle …) behind the start of the server session.
    { sql: "RESET default_transaction_read_only", expect: "success", onUnexpected: "LF014" },
    { sql: "SELECT fence.begin_session()", expect: "success", onUnexpected: "LF011" },
    {
      // The owner's check in front of the lock only gives a better message than the gate's bare 42501; the one after it is
      // the safe one.
      sql: [
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
        `SELECT fence.check_history(${identity.generation}, ${quoteLiteral(incarnation)})`,
        `SELECT fence.check_owner(${owner})`,
        ...(witness ? [checkWitnessSql(jobId, identity, witness)] : []),
        enterLockSql(jobId, identity.generation),
        `SELECT fence.admit_session(${owner})`,
        // The claim that the trigger of a protected table reads; without it (RESET ALL) it looks through the locks.
        `SET fence.generation_${jobId} = ${identity.generation}`,
        "COMMIT",
      ].join(";"),
      expect: "success",
      onUnexpected: "LF001",
    },
    // Judged by behaviour, not by catalogue: a role that gets through here would get through a closed gate.
    { sql: "SELECT 1;LOCK TABLE fence.never IN ROW SHARE MODE", expect: "42501", onUnexpected: "LF010" },
  ];
}

function checkWitnessSql(jobId: number, { generation }: FenceIdentity, { counter, nonce }: Witness): string {
  if (!Number.isSafeInteger(counter) || counter < 0) throw new RangeError(`not a heartbeat: ${counter}`);
  return `SELECT fence.check_witness(${jobId}, ${generation}, ${counter}, ${quoteLiteral(nonce)})`;
}

/** A statement that PostgreSQL itself answers with an error of ours; needs no right, works under any role. */
export function refuseSql(code: FenceCode, message: string, detail: string, hint: string): string {
  return `SELECT fence.refuse(${[code, message, detail, hint].map(quoteLiteral).join(", ")})`;
}

/** A string as an SQL literal that means the same with standard_conforming_strings on and off. */
export function quoteLiteral(text: string): string {
  if (text.includes("\0")) throw new RangeError("a zero byte cannot be in an SQL literal");
  const quoted = `'${text.replaceAll("'", "''")}'`;
  return text.includes("\\") ? `E${quoted.replaceAll("\\", "\\\\")}` : quoted;
}

/** A name as an SQL identifier. */
export function quoteIdentifier(name: string): string {
  if (name.includes("\0")) throw new RangeError("a zero byte cannot be in an SQL name");
  return `"${name.replaceAll('"', '""')}"`;
}

function ownerArguments(jobId: number, identity: FenceIdentity): string {
  return `${jobId}, ${identity.generation}, ${quoteLiteral(identity.holder)}`;
}
