/**
 * One server and the two ways to one database of it: direct, and through `fencedjob proxy` as a process of its own.
 * Both with the same application role, so that rights are no difference between them.
 */
import pg from "pg";
import { install, type Raised, raise } from "../fence/client.ts";
import type { DatabaseAddress } from "../fence/database.ts";
import { makeRole } from "../fence/role.ts";
import { systemClock } from "../platform/clock.ts";
import { type PostgresVersion, startPostgres } from "../testing/postgres.ts";
import { type ProxyProcess, startProxyProcess } from "../testing/proxyprocess.ts";

/** Where a program under test connects; any password will do. */
export interface Side {
  readonly name: "direct" | "proxied";
  readonly host: string;
  readonly port: number;
  readonly user: string;
  readonly database: string;
}

export interface Arena {
  readonly version: PostgresVersion;
  readonly direct: Side;
  readonly proxied: Side;
  /** A superuser in the same database. */
  readonly admin: pg.Client;
  /** Drops whatever the application's role made, large objects included. */
  reset(): Promise<void>;
  /** A successor takes the job: the proxy's generation is over. */
  takeOver(): Promise<Raised>;
  /** A proxy of the next generation in place of the fenced one; `proxied` has its port. */
  succeed(): Promise<void>;
  stop(): Promise<void>;
}

export interface ArenaOptions {
  readonly version: PostgresVersion;
  readonly database: string;
  readonly role: string;
  /** Statements of the superuser in the new database. */
  readonly setup?: readonly string[];
}

const FENCE_NAME = "conformance/run";

export async function startArena(options: ArenaOptions): Promise<Arena> {
  const { version, database, role } = options;
  const settings = { max_connections: "120", max_prepared_transactions: "5", wal_level: "logical" };
  const server = await startPostgres({ version, settings });
  const { host, port } = server;
  const superuser: DatabaseAddress = { host, port, database: "postgres", user: "postgres", sslmode: "disable" };
  const inDatabase = { ...superuser, database };
  const address = { ...inDatabase, user: role };
  let generation = 0;
  let proxy: ProxyProcess | undefined;
  let admin: pg.Client | undefined;
  const stop = async (): Promise<void> => {
    await proxy?.stop();
    await admin?.end().catch(() => {});
    await server.remove();
  };
  try {
    await inPostgres(superuser, [`CREATE ROLE ${role} LOGIN`, `CREATE DATABASE ${database} OWNER ${role}`]);
    await install(inDatabase);
    await makeRole(inDatabase, { name: role });
    admin = await connect(inDatabase);
    for (const sql of options.setup ?? []) await admin.query(sql);
    proxy = await startProxyProcess({ address, fenceName: FENCE_NAME, generation: ++generation });
  } catch (error) {
    await stop();
    throw error;
  }
  const judge = admin;
  return {
    version,
    admin: judge,
    direct: { name: "direct", host, port, user: role, database },
    get proxied() {
      return { name: "proxied" as const, host: "127.0.0.1", port: proxy?.port ?? 0, user: role, database };
    },
    reset: async () => {
      await judge.query(`DROP OWNED BY ${role} CASCADE`);
    },
    takeOver: () => {
      const holder = `uid-${++generation}`;
      const identity = { fenceName: FENCE_NAME, generation, holder, holderName: `successor-${generation}` };
      return raise(address, identity, { drainMs: 300, nonce: holder, issuer: "conformance", clock: systemClock });
    },
    succeed: async () => {
      await proxy?.stop();
      proxy = await startProxyProcess({ address, fenceName: FENCE_NAME, generation: ++generation });
    },
    stop,
  };
}

async function connect(address: DatabaseAddress): Promise<pg.Client> {
  const { host, port, database, user } = address;
  const client = new pg.Client({ host, port, database, user });
  client.on("error", () => {});
  await client.connect();
  return client;
}

async function inPostgres(address: DatabaseAddress, statements: readonly string[]): Promise<void> {
  const client = await connect(address);
  for (const sql of statements) await client.query(sql);
  await client.end();
}
