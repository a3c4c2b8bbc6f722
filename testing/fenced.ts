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
import { systemClock } from "../platform/clock.ts";
import { type PostgresOptions, startPostgres, type TestPostgres } from "./postgres.ts";

export const FENCE_NAME = "billing/invoice-run";
export const APPLICATION_ROLE = "invoice_app";

export interface Fenced {
  readonly postgres: TestPostgres;
  /** The application's role, as the sidecar has it. */
  readonly address: DatabaseAddress;
  /** A superuser, for administration and for judging. */
  readonly admin: DatabaseAddress;
  identity(generation: number, holder?: string): FenceIdentity;
  raise(generation: number, options?: Partial<RaiseOptions> & { holder?: string }): Promise<Raised>;
  row(): ReturnType<typeof readFence>;
  /** A connection of the superuser; ended by `stop`. */
  connectAdmin(database?: string): Promise<pg.Client>;
  /** A plain connection of the application's role, with the wire's startup settings. */
  connect(role?: string): Promise<pg.Client>;
  /** A connection that was admitted with the wire's steps. */
  admit(jobId: number, generation: number, holder?: string): Promise<pg.Client>;
  stop(): Promise<void>;
}

export async function startFenced(
  options: PostgresOptions & { migrations?: readonly Migration[] } = {},
): Promise<Fenced> {
  const postgres = await startPostgres(options);
  const open: pg.Client[] = [];
  const admin: DatabaseAddress = {
    host: postgres.host,
    port: postgres.port,
    database: "postgres",
    user: "postgres",
    sslmode: "disable",
  };
  await install(admin, options.migrations ? { migrations: options.migrations } : {});
  await makeRole(admin, { name: APPLICATION_ROLE });
  const address = { ...admin, user: APPLICATION_ROLE };
  const identity = (generation: number, holder = `uid-${generation}`): FenceIdentity => ({
    fenceName: FENCE_NAME,
    generation,
    holder,
    holderName: `invoice-run-${generation}`,
  });
  const connectAs = async (config: pg.ClientConfig): Promise<pg.Client> => {
    const client = new pg.Client({ host: postgres.host, port: postgres.port, database: "postgres", ...config });
    client.on("error", () => {});
    await client.connect();
    open.push(client);
    return client;
  };
  const connect = (role = APPLICATION_ROLE): Promise<pg.Client> =>
    connectAs({ user: role, options: "-c default_transaction_read_only=on" });
  return {
    postgres,
    address,
    admin,
    identity,
    raise: (generation, { holder, ...rest } = {}) =>
      raise(address, identity(generation, holder), {
        drainMs: 500,
        nonce: `nonce-${generation}`,
        issuer: "test",
        clock: systemClock,
        ...rest,
      }),
    row: () => readFence(address, FENCE_NAME, { clock: systemClock }),
    connectAdmin: (database = "postgres") => connectAs({ user: "postgres", database }),
    connect,
    admit: async (jobId, generation, holder) => {
      const client = await connect();
      await runSessionStart(client, jobId, identity(generation, holder));
      return client;
    },
    stop: async () => {
      for (const client of open) void client.end().catch(() => {});
      await postgres.stop();
    },
  };
}

/** The wire's session start over a node-postgres connection; throws what the server says at the first unexpected step. */
export async function runSessionStart(client: pg.Client, jobId: number, identity: FenceIdentity): Promise<void> {
  for (const { sql, expect, onUnexpected } of sessionStartSteps(jobId, identity)) {
    let error: unknown;
    await client.query(sql).catch((caught: unknown) => {
      error = caught;
    });
    if (expect === "success" && error !== undefined) throw error;
    if (expect !== "success" && (error as { code?: string } | undefined)?.code !== expect) {
      throw Object.assign(new Error(`${onUnexpected}: ${sql} did not fail with ${expect}`), { code: onUnexpected });
    }
  }
}
