/**
 * The database that takeovers are measured in: a PostgreSQL of this machine, which no lost node takes along. All times are its
 * own, of commits and of its clock, so that no two clocks are compared.
 */
import pg from "pg";
import { install } from "../../fence/client.ts";
import { makeRole } from "../../fence/role.ts";
import { addressFromUrl } from "../../fence/url.ts";
import { startPostgres } from "../../testing/postgres.ts";
import { until } from "../../testing/until.ts";

const ROLE = "writer";
const PASSWORD = "written";

export interface Ledger {
  /** For the Secret of a FencedJob. */
  readonly uri: string;
  /** The database's clock, in ms. */
  nowMs(): Promise<number>;
  /** Each pod that has written for the job, by its first row. */
  writers(job: string): Promise<Writer[]>;
  /** The pod, once it has written so many rows. */
  writes(job: string, pod: string, rows: number, msMax: number): Promise<Writer>;
  /** Tells the application in the pod to exit with the code after its next row. */
  tellToExit(pod: string, code: number): Promise<void>;
  query<Row extends object>(sql: string, values?: unknown[]): Promise<Row[]>;
  close(): Promise<void>;
}

export interface Writer {
  readonly pod: string;
  /** Commit times, in ms. */
  readonly firstMs: number;
  readonly lastMs: number;
  readonly rows: number;
}

const SCHEMA = `
  CREATE TABLE written (job text NOT NULL, pod text NOT NULL);
  CREATE TABLE told (pod text PRIMARY KEY, exit_code int NOT NULL);
  GRANT SELECT, INSERT ON written, told TO ${ROLE}`;

const WRITERS = `
  SELECT pod, min(at)::float8 AS "firstMs", max(at)::float8 AS "lastMs", count(*)::int AS rows
  FROM (SELECT pod, extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000 AS at FROM written WHERE job = $1) AS row
  GROUP BY pod ORDER BY 2`;

export async function openLedger(host: string): Promise<Ledger> {
  const hba = ["host all postgres all trust", "host all all all scram-sha-256"];
  const server = await startPostgres({ host, hba, settings: { track_commit_timestamp: "on" } });
  const address = addressFromUrl(server.url());
  await install(address);
  await makeRole(address, { name: ROLE, password: PASSWORD });
  const pool = new pg.Pool({ connectionString: server.url(), max: 2 });
  const query = async <Row extends object>(sql: string, values: unknown[] = []): Promise<Row[]> =>
    (await pool.query(sql, values)).rows;
  await query(SCHEMA);
  const writers = (job: string): Promise<Writer[]> => query<Writer>(WRITERS, [job]);
  return {
    uri: `postgres://${ROLE}:${PASSWORD}@${server.host}:${server.port}/postgres?sslmode=disable`,
    nowMs: async () => {
      const sql = "SELECT extract(epoch FROM clock_timestamp())::float8 * 1000 AS ms";
      const [now] = (await query<{ ms: number }>(sql)) as [{ ms: number }];
      return now.ms;
    },
    writers,
    writes: (job, pod, rows, msMax) =>
      until(async () => (await writers(job)).find((writer) => writer.pod === pod && writer.rows >= rows), msMax, {
        what: `${pod} has written ${rows} rows`,
      }),
    tellToExit: async (pod, code) => void (await query("INSERT INTO told VALUES ($1, $2)", [pod, code])),
    query,
    close: async () => {
      await pool.end();
      await server.remove();
    },
  };
}
