/**
 * A PostgreSQL with the fence schema and a proper application role, and sessions that are admitted as the wire does
 * it. For tests of the fence and of whatever is built on it.
 */
import pg from "pg";
import { install, type Raised, type RaiseOptions, raise, readFence } from "../fence/client.ts";
import type { DatabaseAddress, FenceIdentity } from "../fence/database.ts";
import { sessionStartSteps } from "../fence/enter.ts";
import type { Migration } from "../fence/migrations.ts";
import { makeRole } from "../fence/role.ts";
import type { Witness } from "../fence/witness.ts";
import { systemClock } from "../platform/clock.ts";
import { mutatedMigrations } from "./mutants.ts";
import { type PostgresOptions, startPostgres, type TestPostgres } from "./postgres.ts";
import { until as untilSo } from "./until.ts";

export const FENCE_NAME = "billing/invoice-run";
export const APPLICATION_ROLE = "invoice_app";

/** One job's fence in the server's database. */
export interface JobOfTest {
  /** The application's role, as the sidecar has it. */
  readonly address: DatabaseAddress;
  identity(generation: number, holder?: string): FenceIdentity;
  /** By default holder `uid-<generation>`, nonce `nonce-<generation>`, half a second of drain. */
  raise(generation: number, options?: RaiseOfTest): Promise<Raised>;
  row(): ReturnType<typeof readFence>;
  /** A connection that was admitted with the wire's steps; `incarnation` is the server's own if absent. */
  admit(
    jobId: number,
    generation: number,
    options?: { holder?: string; role?: string; incarnation?: string; witness?: Witness },
  ): Promise<pg.Client>;
}

export type RaiseOfTest = Partial<RaiseOptions> & { holder?: string; address?: DatabaseAddress };

/** The handle of the default job, and the server. */
export interface Fenced extends JobOfTest {
  readonly postgres: TestPostgres;
  /** A superuser, for administration and for judging. */
  readonly admin: DatabaseAddress;
  /** Another job, so that tests can share a server. */
  job(fenceName: string): JobOfTest;
  /** A connection of the superuser; ended by `stop`. */
  connectAdmin(database?: string): Promise<pg.Client>;
  /** A plain connection of the application's role, with the wire's startup settings. */
  connect(role?: string): Promise<pg.Client>;
  /** Ends the server and removes its data. */
  stop(): Promise<void>;
}

export async function startFenced(
  options: PostgresOptions & { migrations?: readonly Migration[] } = {},
): Promise<Fenced> {
  const postgres = await startPostgres(options);
  const { host, port } = postgres;
  const admin: DatabaseAddress = { host, port, database: "postgres", user: "postgres", sslmode: "disable" };
  // A mutant from the environment is how testing/mutate.ts asks whether these tests notice a removed safety line.
  const migrations = options.migrations ?? mutatedMigrations(process.env.FENCEDJOB_MUTANT);
  const remove = (): Promise<void> => postgres.remove();
  try {
    await install(admin, migrations ? { migrations } : {});
    await makeRole(admin, { name: APPLICATION_ROLE });
  } catch (error) {
    await remove();
    throw error;
  }
  const address = { ...admin, user: APPLICATION_ROLE };

  const open: pg.Client[] = [];
  const connectAs = async (config: pg.ClientConfig): Promise<pg.Client> => {
    const client = new pg.Client({ host, port, database: "postgres", ...config });
    client.on("error", () => {});
    await client.connect();
    open.push(client);
    return client;
  };
  const connect = (role = APPLICATION_ROLE): Promise<pg.Client> =>
    connectAs({ user: role, options: "-c default_transaction_read_only=on" });
  const job = (fenceName: string): JobOfTest => {
    const identity = (generation: number, holder = `uid-${generation}`): FenceIdentity => ({
      fenceName,
      generation,
      holder,
      holderName: `invoice-run-${generation}`,
    });
    return {
      address,
      identity,
      raise: (generation, { holder, address: other, ...rest } = {}) =>
        raise(other ?? address, identity(generation, holder), {
          drainMs: 500,
          nonce: `nonce-${generation}`,
          issuer: "test",
          clock: systemClock,
          ...rest,
        }),
      row: () => readFence(address, fenceName, { clock: systemClock }),
      admit: async (jobId, generation, { holder, role, incarnation, witness } = {}) => {
        const client = await connect(role);
        try {
          await runSessionStart(client, jobId, identity(generation, holder), incarnation, witness);
        } catch (error) {
          await client.end().catch(() => {});
          throw error;
        }
        return client;
      },
    };
  };
  return {
    ...job(FENCE_NAME),
    postgres,
    admin,
    job,
    connectAdmin: (database = "postgres") =>
      // A judge that waits for a lock must fail and say so, not hang.
      connectAs({ user: "postgres", database, options: "-c lock_timeout=15s" }),
    connect,
    stop: async () => {
      for (const client of open) void client.end().catch(() => {});
      await remove();
    },
  };
}

/** A FenceError, or the server's own error. */
export interface Failure extends Error {
  readonly code: string;
  readonly detail: string;
  readonly hint: string;
  readonly final?: boolean;
}

/** What `promise` fails with; fails itself if it does not. */
export async function failure(promise: Promise<unknown>): Promise<Failure> {
  try {
    await promise;
  } catch (error) {
    return error as Failure;
  }
  throw new Error("it did not fail");
}

/** What a client is told without having asked: that its session has ended, and why. */
export const told = (client: pg.Client): Promise<Failure> =>
  new Promise((resolve) => client.once("error", (error) => resolve(error as Failure)));

/** Resolves when the server shows what `sql` asks for (its first column is true); fails after 10 s. */
export async function until(client: pg.Client, sql: string, parameters: unknown[] = []): Promise<void> {
  const ask = async (): Promise<boolean> => {
    const { rows } = await client.query({ text: sql, values: parameters, rowMode: "array" });
    return rows[0]?.[0] === true;
  };
  // Often: what is asked for may not stay true for long.
  await untilSo(ask, undefined, { what: sql, failureEnds: true, pollMs: 5 });
}

/**
 * The wire's session start over a node-postgres connection; throws what the server says at the first unexpected step.
 * Without an incarnation the pod is taken for one that has raised in this server's history.
 */
export async function runSessionStart(
  client: pg.Client,
  jobId: number,
  identity: FenceIdentity,
  incarnation?: string,
  witness?: Witness,
): Promise<void> {
  const raisedIn = incarnation ?? (await presentIncarnation(client));
  for (const { sql, expect, onUnexpected } of sessionStartSteps(jobId, identity, raisedIn, witness)) {
    let error: unknown;
    await client.query(sql).catch((caught: unknown) => {
      error = caught;
    });
    const outcome = error === undefined ? "success" : (error as { code?: string }).code;
    if (outcome === expect) continue;
    throw error ?? Object.assign(new Error(`${onUnexpected}: it succeeded: ${sql}`), { code: onUnexpected });
  }
}

/** Empty on a standby, which has none. */
async function presentIncarnation(client: pg.Client): Promise<string> {
  const { rows } = await client.query(
    "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN '' ELSE fence.incarnation() END AS present",
  );
  return rows[0].present;
}
