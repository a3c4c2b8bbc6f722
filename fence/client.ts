/**
 * The typed client of the fence: raise a generation, read the row.
 *
 * Does NOT decide who may raise: the controller issues generations, the row refuses (INV-1, INV-2, INV-7). A raise
 * that fails or is killed leaves the fence as it was; one whose reply was lost is repeated under the same nonce.
 */
import type { Clock } from "../platform/clock.ts";
import { type Connect, onDatabase } from "./connection.ts";
import type { DatabaseAddress, FenceIdentity, TakeOver } from "./database.ts";
import { type MoveOptions, moveFence } from "./move.ts";
import type { Witness } from "./witness.ts";

export { install, schemaStatus } from "./install.ts";

export interface RaiseOptions extends MoveOptions {
  /** Of this raise: the same again is our own retry, another one is another life of the pod (INV-7). */
  readonly nonce: string;
  /** Identity of the issuing control plane: a row that another one raised last refuses (LF005). Empty: raised by hand. */
  readonly issuer: string;
  /** Another one's row that is taken over, as a person has seen it: its later generations refuse again. */
  readonly takeOver?: TakeOver | undefined;
}

export interface Raised {
  readonly jobId: number;
  readonly generation: number;
  /** null: the first generation in this database. */
  readonly previousGeneration: number | null;
  /** Control plane that ran the job before; differs from ours when it was taken over from another one. */
  readonly previousIssuer: string | null;
  readonly incarnation: string;
  /** The pair that the first heartbeat finds. */
  readonly witness: Witness;
  /** Server sessions of older generations that were ended. */
  readonly sessionsEnded: number;
  readonly tookMs: number;
  /** Progress of the generation before, as of the end of the drain; null if none was recorded. */
  readonly checkpoint: unknown;
}

export interface FenceRow {
  readonly jobId: number;
  /** 0: the job's row exists, nothing was raised. */
  readonly generation: number;
  readonly holder: string;
  readonly holderName: string;
  /** History in which the generation was raised … */
  readonly incarnation: string;
  /** … and that of the database as it is now. */
  readonly presentIncarnation: string;
  readonly issuer: string;
  /** The database's wall time, ISO 8601; for people. Empty if nothing was raised. */
  readonly raisedAt: string;
  /** As `raisedAt`; empty as long as the generation is open. */
  readonly closedAt: string;
  /** The last heartbeat of the generation. */
  readonly witness: Witness | null;
  /** A raise, of this job or of another in this database, was under way just before the row was read. */
  readonly raising: boolean;
}

export interface ReadOptions {
  readonly clock: Clock;
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
  readonly connect?: Connect | undefined;
}

const READ_MS_MAX = 5_000;

/**
 * Raises the fence of the job to the identity's generation. Returns within `drainMs` plus a few seconds, or throws a
 * FenceError: LF001 and LF003 are final for this pod, LF004 names who blocks, LF005 the other control plane, LF01x is about
 * the database.
 */
export async function raise(address: DatabaseAddress, identity: FenceIdentity, options: RaiseOptions): Promise<Raised> {
  const { fenceName, generation, holder, holderName } = identity;
  if (!Number.isSafeInteger(generation) || generation < 1) throw new RangeError(`not a generation: ${generation}`);
  const issuing = [options.nonce, options.issuer, options.takeOver?.issuer, options.takeOver?.generation];
  const { row, jobId, sessionsEnded, tookMs } = await moveFence(address, identity, options, {
    doing: "raise",
    saying: "raising the fence",
    begin: {
      text: "SELECT id FROM fence.raise_begin($1, $2, $3, $4, $5, $6, $7)",
      values: [fenceName, generation, holder, ...issuing],
    },
    move: {
      text: "SELECT * FROM fence.raise($1, $2, $3, $4, $5, $6, $7, $8)",
      values: [fenceName, generation, holder, holderName, ...issuing],
    },
    // What fence.raise_begin asks, without its lock: a raise that will be refused must not end the sessions of the owner.
    ending: {
      text: `SELECT j.id, $2::bigint AS below, (fence.why_not_raised(j, $2, $3, $4, $5, $6)).message IS NULL AS may
        FROM fence.job j WHERE j.name = $1`,
      values: [fenceName, generation, holder, ...issuing.slice(1)],
    },
  });
  return {
    jobId,
    generation,
    previousGeneration: row.previous_generation === null ? null : Number(row.previous_generation),
    previousIssuer: row.previous_issuer as string | null,
    incarnation: row.incarnation as string,
    witness: { counter: 0, nonce: options.nonce },
    sessionsEnded,
    checkpoint: row.checkpoint,
    tookMs,
  };
}

/**
 * A raise is under way: it holds or awaits a lock on the table of rows from its first statement to its end, and that is
 * given back only when its commit can be seen. `fence.protect` takes one, too, for a moment.
 */
const RAISING = `SELECT EXISTS (
  SELECT FROM pg_catalog.pg_locks WHERE locktype = 'relation' AND relation = pg_catalog.to_regclass('fence.job')
    AND mode IN ('RowShareLock', 'RowExclusiveLock')
    AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())) AS raising`;

/** The job's row over a fresh connection, or null if this database has never seen the job. */
export async function readFence(
  address: DatabaseAddress,
  fenceName: string,
  options: ReadOptions,
): Promise<FenceRow | null> {
  const connection = { ...options, timeoutMs: options.timeoutMs ?? READ_MS_MAX, doing: "read" };
  return await onDatabase(address, connection, async (client) => {
    // In front of the row: a raise that is not seen here has committed what is read next, or never will.
    const { raising } = (await client.query(RAISING)).rows[0];
    const { rows } = await client.query(
      `SELECT j.id, j.generation, j.holder, j.holder_name, j.incarnation, fence.incarnation() AS present, j.issuer,
         j.raised_at, c.closed_at, w.counter, w.nonce
       FROM fence.job j LEFT JOIN fence.claim c ON c.job_id = j.id AND c.generation = j.generation
         LEFT JOIN fence.witness w ON w.job_id = j.id AND w.generation = j.generation WHERE j.name = $1`,
      [fenceName],
    );
    const [row] = rows;
    if (!row) return null;
    return {
      jobId: row.id,
      generation: Number(row.generation),
      holder: row.holder ?? "",
      holderName: row.holder_name ?? "",
      incarnation: row.incarnation ?? "",
      presentIncarnation: row.present,
      issuer: row.issuer ?? "",
      raisedAt: row.raised_at?.toISOString() ?? "",
      closedAt: row.closed_at?.toISOString() ?? "",
      witness: row.nonce === null ? null : { counter: Number(row.counter), nonce: row.nonce },
      raising,
    };
  });
}
