/**
 * The typed client of the fence: raise a generation, read the row.
 *
 * Does NOT decide who may raise: the controller issues generations, the row refuses (INV-1, INV-2, INV-7). A raise
 * that fails or is killed leaves the fence as it was; one whose reply was lost is repeated under the same nonce.
 */
import type { Client } from "pg";
import type { Clock } from "../platform/clock.ts";
import { type Connect, isConnectionLoss, onDatabase, withConnection } from "./connection.ts";
import type { DatabaseAddress, FenceIdentity } from "./database.ts";
import { Drain } from "./drain.ts";
import { FenceError, sqlStateOf, toFenceError } from "./errors.ts";
import { SCHEMA_VERSION } from "./migrations.ts";

export { install, schemaStatus } from "./install.ts";

export interface RaiseOptions {
  /** How long transactions of the older generation may go on before their sessions are ended (INV-13). */
  readonly drainMs: number;
  /** Of this raise: the same again is our own retry, another one is another life of the pod (INV-7). */
  readonly nonce: string;
  /** Identity of the issuing control plane; two of them on one fence name must be noticed. */
  readonly issuer: string;
  readonly clock: Clock;
  readonly signal?: AbortSignal;
  readonly connect?: Connect | undefined;
}

export interface Raised {
  readonly jobId: number;
  readonly generation: number;
  /** null: the first generation in this database. */
  readonly previousGeneration: number | null;
  /** Issuer of the previous generation; differs from ours when two control planes share a fence name. */
  readonly previousIssuer: string | null;
  readonly incarnation: string;
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
  /** A raise, of this job or of another in this database, was under way just before the row was read. */
  readonly raising: boolean;
}

export interface ReadOptions {
  readonly clock: Clock;
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
  readonly connect?: Connect | undefined;
}

/** Beyond the drain: for what cannot be ended through the fence to be named (LF004), and for slow networks. */
export const RAISE_GRACE_MS = 3_000;
/** The client gives up this much after the server was told to. */
const SERVER_FIRST_MS = 1_000;
const RETRY_MS = 20;
const ATTEMPTS_MAX = 8;
const BRACKET_POLL_MS = 20;
const READ_MS_MAX = 5_000;

/** A raiser that is killed while it waits must not keep its place in the queue; not every platform of a server can. */
const NOTICE_LOST_CLIENT = `DO $$BEGIN SET LOCAL client_connection_check_interval = 250;
  EXCEPTION WHEN invalid_parameter_value THEN NULL; END$$`;

/** A role's own limit on transactions (PostgreSQL 17 on) must not be shorter than the drain; the raise bounds itself. */
const NO_TRANSACTION_TIMEOUT = `DO $$BEGIN SET LOCAL transaction_timeout = 0;
  EXCEPTION WHEN undefined_object THEN NULL; END$$`;

/** Deadlock, serialization, "tuple concurrently updated", a unique index met by two raisers at once. */
const TRANSIENT = new Set(["40P01", "40001", "XX000", "23505"]);

/**
 * Raises the fence of the job to the identity's generation. Returns within `drainMs` plus a few seconds, or throws a
 * FenceError: LF001 and LF003 are final for this pod, LF004 names who blocks, LF01x is about the database.
 */
export async function raise(address: DatabaseAddress, identity: FenceIdentity, options: RaiseOptions): Promise<Raised> {
  const { clock, signal } = options;
  if (!Number.isSafeInteger(identity.generation) || identity.generation < 1) {
    throw new RangeError(`not a generation: ${identity.generation}`);
  }
  const startedMs = clock.monoMs();
  const deadlineMs = startedMs + options.drainMs + RAISE_GRACE_MS;
  const run: RaiseRun = { sessionsEnded: new Set(), connected: false };
  for (let attempt = 1; ; attempt++) {
    try {
      const raised = await raiseOnce(address, identity, options, deadlineMs, run);
      return { ...raised, tookMs: clock.monoMs() - startedMs };
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      // Before anything was sent a lost connection is an unreachable database: the caller waits longer than we would.
      const transient = TRANSIENT.has(sqlStateOf(error) ?? "") || (run.connected && isConnectionLoss(error));
      const late = attempt >= ATTEMPTS_MAX || clock.monoMs() + RETRY_MS * attempt >= deadlineMs;
      if (error instanceof FenceError || !transient || late) throw toFenceError(error, address, "raising the fence");
      await clock.sleep(RETRY_MS * attempt, signal);
    }
  }
}

interface RaiseRun {
  /** By name: an attempt that failed ended sessions too, and one session may be told to end twice. */
  readonly sessionsEnded: Set<string>;
  /** We were let in once: what is lost from then on is worth another try, and may have been done. */
  connected: boolean;
}

async function raiseOnce(
  address: DatabaseAddress,
  identity: FenceIdentity,
  options: RaiseOptions,
  deadlineMs: number,
  run: RaiseRun,
): Promise<Omit<Raised, "tookMs">> {
  const { clock, signal, connect } = options;
  const leftMs = (): number => Math.max(1, Math.ceil(deadlineMs - clock.monoMs()));
  const connection = { clock, signal, timeoutMs: leftMs() + SERVER_FIRST_MS, doing: "raise" };
  return await (connect ?? withConnection)(address, connection, async (client) => {
    run.connected = true;
    const pid = await begin(client, address, leftMs());
    const drain = new Drain(address, identity, { clock, signal, connect, pid, sessionsEnded: run.sessionsEnded });
    // Before the first lock: a session of an older generation can hold the fence row as well as its gate.
    drain.start(options.drainMs);
    try {
      const begun = await client.query("SELECT id FROM fence.raise_begin($1, $2, $3, $4)", [
        identity.fenceName,
        identity.generation,
        identity.holder,
        options.nonce,
      ]);
      const jobId: number = begun.rows[0].id;
      await closeBracket(client, jobId, clock, leftMs, signal);
      const { rows } = await client.query("SELECT * FROM fence.raise($1, $2, $3, $4, $5, $6)", [
        identity.fenceName,
        identity.generation,
        identity.holder,
        identity.holderName,
        options.nonce,
        options.issuer,
      ]);
      await client.query("COMMIT");
      await drain.stop();
      // The fence is raised: tables of older generations that somebody still holds are dropped by a later raise.
      await client
        .query(`BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT fence.sweep(${jobId}); COMMIT`)
        .catch(() => {});
      const [raised] = rows;
      for (const session of raised.sessions_ended) run.sessionsEnded.add(session);
      return {
        jobId,
        generation: identity.generation,
        previousGeneration: raised.previous_generation === null ? null : Number(raised.previous_generation),
        previousIssuer: raised.previous_issuer,
        incarnation: raised.incarnation,
        sessionsEnded: run.sessionsEnded.size,
        checkpoint: raised.checkpoint,
      };
    } catch (error) {
      await drain.stop();
      throw isWaitTooLong(error) ? drain.blocked(error) : error;
    }
  });
}

/** The transaction with its bounds, and the schema's version, in one message. Returns the server process. */
async function begin(client: Client, address: DatabaseAddress, leftMs: number): Promise<number> {
  // A message of several statements: its results come as an array, which the types do not know.
  const results = (await client.query(
    `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
     SET LOCAL lock_timeout = ${leftMs};
     SET LOCAL statement_timeout = ${leftMs};
     SET LOCAL idle_in_transaction_session_timeout = ${leftMs + SERVER_FIRST_MS};
     ${NOTICE_LOST_CLIENT};
     ${NO_TRANSACTION_TIMEOUT};
     SELECT pg_catalog.pg_backend_pid() AS pid, max(version) AS version FROM fence.schema_version`,
  )) as unknown as { rows: { pid: number; version: number | null }[] }[];
  const [row] = results.at(-1)?.rows ?? [];
  if (row?.version !== SCHEMA_VERSION) {
    throw new FenceError("LF011", {
      message: `the fence schema of database "${address.database}" has version ${row?.version ?? "none"}, this program speaks ${SCHEMA_VERSION}`,
      ...(Number(row?.version) > SCHEMA_VERSION
        ? { hint: "Use the fencedjob that installed it, or a newer one." }
        : {}),
    });
  }
  return row.pid;
}

/** Waits, polling, for statements that run outside transactions (fence/enter.ts, bracketSql). */
async function closeBracket(
  client: Client,
  jobId: number,
  clock: Clock,
  leftMs: () => number,
  signal: AbortSignal | undefined,
): Promise<void> {
  for (;;) {
    // Without parameters: a bound portal would keep its snapshot while we sleep, and CREATE INDEX CONCURRENTLY waits
    // for every older snapshot. That would be a deadlock nobody sees.
    const { rows } = await client.query(`SELECT fence.raise_bracket(${jobId}) AS got`);
    if (rows[0].got || leftMs() <= BRACKET_POLL_MS) return; // at the end fence.raise tries once more, and says 55P03
    await clock.sleep(BRACKET_POLL_MS, signal);
  }
}

function isWaitTooLong(error: unknown): boolean {
  const sqlState = sqlStateOf(error);
  return sqlState === "55P03" || sqlState === "57014";
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
      `SELECT id, generation, holder, holder_name, incarnation, fence.incarnation() AS present, issuer, raised_at
       FROM fence.job WHERE name = $1`,
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
      raising,
    };
  });
}
