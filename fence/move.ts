/**
 * One transaction that moves a fence: a raise, or a close. Bounded, with a drain beside it (INV-13), and tried again where
 * that can help: one that fails or is killed leaves the fence as it was, and one whose reply was lost is told so by the row.
 */
import type { Client } from "pg";
import type { Clock } from "../platform/clock.ts";
import { type Connect, isConnectionLoss, withConnection } from "./connection.ts";
import type { DatabaseAddress, FenceIdentity } from "./database.ts";
import { Drain } from "./drain.ts";
import { FenceError, sqlStateOf, toFenceError } from "./errors.ts";
import { SCHEMA_VERSION } from "./migrations.ts";

export interface MoveOptions {
  /** How long transactions that are inside may go on before their sessions are ended (INV-13). */
  readonly drainMs: number;
  readonly clock: Clock;
  readonly signal?: AbortSignal | undefined;
  readonly connect?: Connect | undefined;
}

export interface Statement {
  readonly text: string;
  readonly values: readonly unknown[];
}

export interface Move {
  /** In the `application_name`, and for people. */
  readonly doing: "raise" | "close";
  readonly saying: string;
  /** Locks the row, or refuses; its `id`. */
  readonly begin: Statement;
  /** All the rest but the COMMIT; has `sessions_ended`. */
  readonly move: Statement;
  /** Of the drain, without a lock: the job's `id`, and whether the sessions of generations `below` `may` be ended. */
  readonly ending: Statement;
}

export interface Moved {
  readonly row: Readonly<Record<string, unknown>>;
  readonly jobId: number;
  readonly sessionsEnded: number;
  readonly tookMs: number;
}

/** Beyond the drain: for what cannot be ended through the fence to be named (LF004), and for slow networks. */
export const MOVE_GRACE_MS = 3_000;
/** The client gives up this much after the server was told to. */
const SERVER_FIRST_MS = 1_000;
const RETRY_MS = 20;
const ATTEMPTS_MAX = 8;
const BRACKET_POLL_MS = 20;

/** One who is killed while he waits must not keep his place in the queue; not every platform of a server can. */
const NOTICE_LOST_CLIENT = `DO $$BEGIN SET LOCAL client_connection_check_interval = 250;
  EXCEPTION WHEN invalid_parameter_value THEN NULL; END$$`;

/** A role's own limit on transactions (PostgreSQL 17 on) must not be shorter than the drain; this one bounds itself. */
const NO_TRANSACTION_TIMEOUT = `DO $$BEGIN SET LOCAL transaction_timeout = 0;
  EXCEPTION WHEN undefined_object THEN NULL; END$$`;

/** Deadlock, serialization, "tuple concurrently updated", a unique index met by two raisers at once. */
const TRANSIENT = new Set(["40P01", "40001", "XX000", "23505"]);

/** Returns within `drainMs` plus a few seconds, or throws a FenceError. */
export async function moveFence(
  address: DatabaseAddress,
  identity: FenceIdentity,
  options: MoveOptions,
  move: Move,
): Promise<Moved> {
  const { clock, signal } = options;
  const startedMs = clock.monoMs();
  const deadlineMs = startedMs + options.drainMs + MOVE_GRACE_MS;
  const run: Run = { sessionsEnded: new Set(), connected: false };
  for (let attempt = 1; ; attempt++) {
    try {
      const moved = await moveOnce(address, identity, options, move, deadlineMs, run);
      return { ...moved, sessionsEnded: run.sessionsEnded.size, tookMs: clock.monoMs() - startedMs };
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      // Before anything was sent a lost connection is an unreachable database: the caller waits longer than we would.
      const transient = TRANSIENT.has(sqlStateOf(error) ?? "") || (run.connected && isConnectionLoss(error));
      const late = attempt >= ATTEMPTS_MAX || clock.monoMs() + RETRY_MS * attempt >= deadlineMs;
      if (error instanceof FenceError || !transient || late) throw toFenceError(error, address, move.saying);
      await clock.sleep(RETRY_MS * attempt, signal);
    }
  }
}

interface Run {
  /** By name: an attempt that failed ended sessions too, and one session may be told to end twice. */
  readonly sessionsEnded: Set<string>;
  /** We were let in once: what is lost from then on is worth another try, and may have been done. */
  connected: boolean;
}

async function moveOnce(
  address: DatabaseAddress,
  identity: FenceIdentity,
  options: MoveOptions,
  move: Move,
  deadlineMs: number,
  run: Run,
): Promise<Pick<Moved, "row" | "jobId">> {
  const { clock, signal, connect } = options;
  const leftMs = (): number => Math.max(1, Math.ceil(deadlineMs - clock.monoMs()));
  const connection = { clock, signal, timeoutMs: leftMs() + SERVER_FIRST_MS, doing: move.doing };
  return await (connect ?? withConnection)(address, connection, async (client) => {
    run.connected = true;
    const pid = await begin(client, address, leftMs());
    const { sessionsEnded } = run;
    const drain = new Drain(address, identity, { ...options, ...move, pid, sessionsEnded });
    // Before the first lock: a session of an older generation can hold the fence row as well as its gate.
    drain.start(options.drainMs);
    try {
      const jobId: number = (await one(client, move.begin)).id as number;
      await closeBracket(client, jobId, clock, leftMs, signal);
      const row = await one(client, move.move);
      await client.query("COMMIT");
      await drain.stop();
      // The fence has moved: tables of older generations that somebody still holds are dropped by a later raise.
      await client
        .query(`BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT fence.sweep(${jobId}); COMMIT`)
        .catch(() => {});
      for (const session of row.sessions_ended as string[]) sessionsEnded.add(session);
      return { row, jobId };
    } catch (error) {
      await drain.stop();
      throw isWaitTooLong(error) ? drain.blocked(error) : error;
    }
  });
}

async function one(client: Client, { text, values }: Statement): Promise<Record<string, unknown>> {
  const { rows } = await client.query(text, [...values]);
  return rows[0];
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

/**
 * Waits, polling, for statements that run outside transactions (fence/enter.ts, bracketSql). Whatever was waited for, the next
 * statement has what is left: a lock that takes longer is the server's to tell, in front of our own bound (LF004 and not LF015).
 */
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
    const { rows } = await client.query(`SELECT fence.raise_bracket(${jobId}) AS got,
      pg_catalog.set_config('lock_timeout', '${leftMs()}', true),
      pg_catalog.set_config('statement_timeout', '${leftMs()}', true)`);
    if (rows[0].got || leftMs() <= BRACKET_POLL_MS) return; // at the end fence.shut tries once more, and says 55P03
    await clock.sleep(BRACKET_POLL_MS, signal);
  }
}

function isWaitTooLong(error: unknown): boolean {
  const sqlState = sqlStateOf(error);
  return sqlState === "55P03" || sqlState === "57014";
}
