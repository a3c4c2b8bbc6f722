/**
 * One server and the ways to one database of it: direct, through `fencedjob proxy` as a process of its own, and, for
 * comparison, through PgBouncer. All with the same application role, so that rights are no difference between them.
 */
import { chmodSync, chownSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { install, type Raised, raise } from "../fence/client.ts";
import type { DatabaseAddress } from "../fence/database.ts";
import { makeRole } from "../fence/role.ts";
import { systemClock } from "../platform/clock.ts";
import { type Certificates, makeCertificates } from "../testing/certificates.ts";
import { pgbouncerMissing, startPgbouncer } from "../testing/pgbouncer.ts";
import { freePort, type PostgresVersion, startPostgres } from "../testing/postgres.ts";
import { type ProxyProcess, startProxyProcess } from "../testing/proxyprocess.ts";
import type { Outcomes, Sides } from "./results.ts";

/** Where a program under test connects; any password will do. */
export interface Side {
  readonly name: "direct" | "proxied" | "pooled";
  /** The directory of the socket, by way of Unix sockets. */
  readonly host: string;
  readonly port: number;
  readonly user: string;
  readonly database: string;
  /** File of the authority that vouches for `host`; with it, TLS is asked for. */
  readonly authority?: string;
}

/** How programs connect, on each side. */
export type Way = "TCP" | "TLS" | "Unix socket";

export interface Arena {
  readonly version: PostgresVersion;
  readonly direct: Side;
  readonly proxied: Side;
  /** Through PgBouncer in session mode, if that was wanted and is installed. */
  readonly pooled: Side | undefined;
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
  /** TCP if absent. */
  readonly way?: Way;
  /** With PgBouncer as a third side. */
  readonly pooler?: boolean;
}

const FENCE_NAME = "conformance/run";
const NOBODY = 65534;

/** What libpq reads, and the programs of `drivers/`. */
export const environmentOf = ({ host, port, user, database, authority }: Side): Record<string, string> => ({
  PGHOST: host,
  PGPORT: String(port),
  PGUSER: user,
  PGDATABASE: database,
  PGSSLMODE: authority === undefined ? "disable" : "verify-full",
  ...(authority !== undefined && { PGSSLROOTCERT: authority }),
});

/** The same work on each side, each time from an empty database. */
export async function onEachSide(arena: Arena, work: (side: Side) => Promise<Outcomes>): Promise<Sides> {
  const on = async (side: Side): Promise<Outcomes> => {
    await arena.reset();
    return work(side);
  };
  return {
    direct: await on(arena.direct),
    proxied: await on(arena.proxied),
    ...(arena.pooled && { pooled: await on(arena.pooled) }),
  };
}

export async function startArena(options: ArenaOptions): Promise<Arena> {
  const { version, database, role } = options;
  const stops: (() => unknown)[] = [];
  const stop = async (): Promise<void> => {
    for (const one of stops.splice(0).reverse()) await one();
  };
  try {
    const ground = groundOf(options.way ?? "TCP", stops);
    const settings = { max_connections: "120", max_prepared_transactions: "5", wal_level: "logical" };
    const server = await startPostgres({ version, settings: { ...settings, ...ground.settings } });
    stops.push(() => server.remove());
    const { host, port } = server;
    const superuser: DatabaseAddress = { host, port, database: "postgres", user: "postgres", sslmode: "disable" };
    const inDatabase = { ...superuser, database };
    const address = { ...inDatabase, user: role };
    await inPostgres(superuser, [`CREATE ROLE ${role} LOGIN`, `CREATE DATABASE ${database} OWNER ${role}`]);
    await install(inDatabase);
    await makeRole(inDatabase, { name: role });
    const admin = await connect(inDatabase);
    stops.push(() => admin.end().catch(() => {}));
    for (const sql of options.setup ?? []) await admin.query(sql);

    let generation = 0;
    const startProxy = async (): Promise<ProxyProcess> =>
      startProxyProcess({ address, fenceName: FENCE_NAME, generation: ++generation, ...(await ground.serving()) });
    let proxy = await startProxy();
    stops.push(() => proxy.stop());
    const pooler = options.pooler && !pgbouncerMissing() ? await startPgbouncer(address, POOLING) : undefined;
    stops.push(() => pooler?.stop());

    const whoAndHow = { user: role, database, ...ground.side };
    return {
      version,
      admin,
      direct: { name: "direct", port, ...whoAndHow },
      get proxied() {
        return { name: "proxied" as const, port: proxy.port, ...whoAndHow };
      },
      pooled: pooler && { name: "pooled", port: pooler.port, ...whoAndHow },
      reset: async () => {
        await admin.query(`DROP OWNED BY ${role} CASCADE`);
      },
      takeOver: () => {
        const holder = `uid-${++generation}`;
        const identity = { fenceName: FENCE_NAME, generation, holder, holderName: `successor-${generation}` };
        return raise(address, identity, { drainMs: 300, nonce: holder, issuer: "conformance", clock: systemClock });
      },
      succeed: async () => {
        await proxy.stop();
        proxy = await startProxy();
      },
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** As it is usually set up for JDBC. */
const POOLING = {
  pool_mode: "session",
  max_client_conn: 200,
  default_pool_size: 100,
  ignore_startup_parameters: "extra_float_digits",
};

/** What a way needs of server and proxy, and where the programs find them. */
interface Ground {
  /** Of the server. */
  readonly settings: Readonly<Record<string, string>>;
  readonly side: { readonly host: string; readonly authority?: string };
  /** Of the proxy. */
  serving(): Promise<Pick<Parameters<typeof startProxyProcess>[0], "listen" | "certificate">>;
}

function groundOf(way: Way, stops: (() => unknown)[]): Ground {
  if (way === "TCP") return { settings: {}, side: { host: "127.0.0.1" }, serving: async () => ({}) };
  if (way === "TLS") {
    const certificates = makeCertificates();
    stops.push(() => certificates.remove());
    return overTls(certificates);
  }
  const dir = mkdtempSync(join(tmpdir(), "fencedjob-sockets-"));
  stops.push(() => rmSync(dir, { recursive: true, force: true }));
  // The server may run as another user than the programs.
  chmodSync(dir, 0o755);
  if (process.getuid?.() === 0) chownSync(dir, NOBODY, NOBODY);
  return {
    settings: { unix_socket_directories: dir },
    side: { host: dir },
    serving: async () => ({ listen: { host: dir, port: await freePort() } }),
  };
}

function overTls({ path }: Certificates): Ground {
  const certificate = { file: path("server.crt"), keyFile: path("server.key") };
  return {
    settings: { ssl: "on", ssl_cert_file: certificate.file, ssl_key_file: certificate.keyFile },
    side: { host: "localhost", authority: path("ca.crt") },
    serving: async () => ({ certificate }),
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
