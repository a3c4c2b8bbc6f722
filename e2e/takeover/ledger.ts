/**
 * The database that takeovers are measured in: a PostgreSQL of this machine, which no lost node takes along. All times are its
 * own, of commits and of its clock, so that no two clocks are compared.
 */
import { install } from "../../fence/client.ts";
import { makeRole } from "../../fence/role.ts";
import { addressFromUrl } from "../../fence/url.ts";
import { until } from "../../testing/until.ts";
import { LedgerServer, type ServerOptions } from "./server.ts";

export const ROLE = "writer";
const PASSWORD = "written";

export interface LedgerOptions extends ServerOptions {
  /** An asynchronous replica follows it, and the address leads to the one of both that takes writes. */
  readonly replicated?: boolean;
}

export interface Ledger {
  /** For what happens to the database itself. */
  readonly server: LedgerServer;
  /** For the Secret of a FencedJob. */
  readonly uri: string;
  /** The same of another database; of the one that is written to if absent. */
  uriOf(database?: string): string;
  /** The database's clock, in ms. */
  nowMs(): Promise<number>;
  /** Each pod that has written for the job, by its first row. */
  writers(job: string): Promise<Writer[]>;
  /** The pod, once it has written so many rows. */
  writes(job: string, uid: string, rows: number, msMax: number): Promise<Writer>;
  /** Tells the application in the pod to exit with the code after its next row. */
  tellToExit(uid: string, code: number): Promise<void>;
  query<Row extends object>(sql: string, values?: unknown[]): Promise<Row[]>;
  /** Holds the fence's row, as an administrator's transaction may, until it is released. */
  lockFence(fenceName: string): Promise<() => Promise<void>>;
  /** Another one beside it, protected and without tables, unless it is there. */
  addDatabase(name: string): Promise<void>;
  close(): Promise<void>;
}

export interface Writer {
  /** Of the pod: names come back, with a job or a namespace that is made anew. */
  readonly uid: string;
  /** Commit times, in ms. */
  readonly firstMs: number;
  readonly lastMs: number;
  readonly rows: number;
}

const SCHEMA = `
  CREATE TABLE written (job text NOT NULL, uid text NOT NULL);
  CREATE TABLE told (uid text PRIMARY KEY, exit_code int NOT NULL);
  GRANT SELECT, INSERT ON written, told TO ${ROLE}`;

const WRITERS = `
  SELECT uid, min(at)::float8 AS "firstMs", max(at)::float8 AS "lastMs", count(*)::int AS rows
  FROM (SELECT uid, extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000 AS at FROM written WHERE job = $1) AS row
  GROUP BY uid ORDER BY 2`;

export async function openLedger(host: string, options: LedgerOptions = {}): Promise<Ledger> {
  const server = await LedgerServer.start(host, options);
  await protect(server.url());
  await server.query(SCHEMA);
  if (options.replicated) await server.replicate();
  const writers = (job: string): Promise<Writer[]> => server.query<Writer>(WRITERS, [job]);
  const parameters = options.replicated ? "sslmode=disable&target_session_attrs=read-write" : "sslmode=disable";
  const uriOf = (database = "postgres"): string =>
    `postgres://${ROLE}:${PASSWORD}@${server.hosts}/${database}?${parameters}`;
  return {
    server,
    uri: uriOf(),
    uriOf,
    nowMs: () => server.nowMs(),
    writers,
    writes: (job, uid, rows, msMax) =>
      until(async () => (await writers(job)).find((writer) => writer.uid === uid && writer.rows >= rows), msMax, {
        what: `pod ${uid} of ${job} has written ${rows} rows`,
      }),
    tellToExit: async (uid, code) => void (await server.query("INSERT INTO told VALUES ($1, $2)", [uid, code])),
    query: (sql, values) => server.query(sql, values),
    lockFence: (fenceName) => server.holdOpen("SELECT FROM fence.job WHERE name = $1 FOR UPDATE", [fenceName]),
    addDatabase: async (name) => {
      const [found] = await server.query("SELECT FROM pg_database WHERE datname = $1", [name]);
      if (!found) await server.query(`CREATE DATABASE ${name}`);
      await protect(server.url(name));
    },
    close: () => server.remove(),
  };
}

async function protect(url: string): Promise<void> {
  const address = addressFromUrl(url);
  await install(address);
  await makeRole(address, { name: ROLE, password: PASSWORD });
}
