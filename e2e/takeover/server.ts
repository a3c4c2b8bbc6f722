/** The PostgreSQL of a ledger, and what administrators do to one: put a copy back, recover to a point in time, fail over. */
import { execFileSync } from "node:child_process";
import { appendFileSync, chmodSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { type PostgresVersion, startPostgres, type TestPostgres } from "../../testing/postgres.ts";
import { until } from "../../testing/until.ts";

export interface ServerOptions {
  readonly version?: PostgresVersion;
  /** Keeps its WAL for recoveries. */
  readonly archived?: boolean;
}

const HBA = ["host all postgres all trust", "host replication postgres all trust", "host all all all scram-sha-256"];
/** pg_dump and psql, which npm's binaries lack; of Debian, for servers of its version. */
const DUMP_BIN = "/usr/lib/postgresql/15/bin";
const SETTINGS = { track_commit_timestamp: "on" };

export class LedgerServer {
  /** When the history that is asked now began, by the database's clock; undefined: it is the first one. */
  setBackAtMs: number | undefined;
  readonly #primary: TestPostgres;
  readonly #archive: string | undefined;
  #replica: TestPostgres | undefined;
  #pool: pg.Pool;

  private constructor(primary: TestPostgres, archive: string | undefined) {
    this.#primary = primary;
    this.#archive = archive;
    this.#pool = poolOf(primary);
  }

  static async start(host: string, { version = 18, archived = false }: ServerOptions): Promise<LedgerServer> {
    const archive = archived ? mkdtempSync(join(tmpdir(), "fencedjob-archive-")) : undefined;
    if (archive) chmodSync(archive, 0o777);
    const archiving = archive ? { archive_mode: "on", archive_command: `cp %p ${archive}/%f` } : {};
    const settings = { ...SETTINGS, ...archiving };
    return new LedgerServer(await startPostgres({ version, host, hba: HBA, settings }), archive);
  }

  /** Of the administrator, at the server that was started first. */
  url(database?: string): string {
    return this.#primary.url(database);
  }

  /** For a connection string: the replica, if there is one, in front, as of two that take writes the first one is chosen. */
  get hosts(): string {
    return [this.#replica, this.#primary].flatMap((one) => (one ? `${one.host}:${one.port}` : [])).join(",");
  }

  async query<Row extends object>(sql: string, values: unknown[] = []): Promise<Row[]> {
    return (await this.#pool.query(sql, values)).rows;
  }

  /** In a transaction that stays open until it is undone. */
  async holdOpen(sql: string, values: unknown[]): Promise<() => Promise<void>> {
    const client = new pg.Client({ connectionString: this.url() });
    await client.connect();
    await client.query("BEGIN");
    await client.query(sql, values);
    return () => client.end();
  }

  async nowMs(): Promise<number> {
    const sql = "SELECT extract(epoch FROM clock_timestamp())::float8 * 1000 AS ms";
    const [now] = (await this.query<{ ms: number }>(sql)) as [{ ms: number }];
    return now.ms;
  }

  /** A copy of the data directory as it is now; the server is stopped for it. */
  async backUp(): Promise<void> {
    const { dataDir } = this.#primary;
    await this.#primary.stop("fast");
    execFileSync("cp", ["-a", dataDir, copyOf(dataDir)]);
    await this.#primary.start();
  }

  async restorePoint(name: string): Promise<void> {
    await this.query("SELECT pg_create_restore_point($1)", [name]);
  }

  /** The copy at the old one's address; with a restore point as it was then, recovered from the archive. */
  async restore(point?: string): Promise<void> {
    const { dataDir } = this.#primary;
    this.setBackAtMs = await this.nowMs();
    // Stopped in order it archives its last segment.
    await this.#primary.stop(point ? "fast" : "immediate");
    rmSync(dataDir, { recursive: true });
    execFileSync("mv", [copyOf(dataDir), dataDir]);
    if (point) {
      const recovery = {
        restore_command: `cp ${this.#archive}/%f %p`,
        recovery_target_name: point,
        recovery_target_action: "promote",
      };
      const lines = Object.entries(recovery).map(([name, value]) => `${name} = '${value}'\n`);
      appendFileSync(join(dataDir, "postgresql.auto.conf"), lines.join(""));
      // Its name is what counts; copied, it is the server's own, and not root's.
      execFileSync("cp", ["-a", join(dataDir, "PG_VERSION"), join(dataDir, "recovery.signal")]);
    }
    await this.#primary.start();
    await this.#ask(this.#primary);
  }

  /** It goes away without warning, and comes back at once. */
  async crash(): Promise<void> {
    await this.#primary.stop("immediate");
    await this.#primary.start();
    await this.#ask(this.#primary);
  }

  /** A dump of the database is loaded beside it, and takes its name. `role` is let in as before: that is not in a dump. */
  async loadDump(role: string): Promise<void> {
    const { host, port } = this.#primary;
    const run = (program: string, database: string, input = ""): string =>
      execFileSync(join(DUMP_BIN, program), ["-h", host, "-p", String(port), "-U", "postgres", database], {
        input,
        encoding: "utf8",
        stdio: ["pipe", "pipe", "pipe"],
        maxBuffer: 1e9,
      });
    const dump = run("pg_dump", "postgres");
    await this.query("CREATE DATABASE loaded");
    await this.query(`GRANT CONNECT ON DATABASE loaded TO ${role}`);
    run("psql", "loaded", `\\set ON_ERROR_STOP on\n${dump}`);
    this.setBackAtMs = await this.nowMs();
    await this.#pool.end();
    await onServer(
      this.#primary,
      async (client) => {
        await client.query("ALTER DATABASE postgres ALLOW_CONNECTIONS false");
        const others = "FROM pg_stat_activity WHERE datname IN ('postgres', 'loaded')";
        await client.query(`SELECT pg_terminate_backend(pid) ${others}`);
        await isTrue(client, `NOT EXISTS (SELECT ${others})`);
        await client.query("ALTER DATABASE postgres RENAME TO old");
        await client.query("ALTER DATABASE loaded RENAME TO postgres");
      },
      "template1",
    );
    this.#pool = poolOf(this.#primary);
  }

  /** Gives it an asynchronous replica, which follows from here on. */
  async replicate(): Promise<void> {
    const primary = this.#primary;
    await primary.stop("fast");
    const options = { version: primary.version, copyOf: primary.dataDir, signals: ["standby.signal"] };
    this.#replica = await startPostgres({ ...options, host: primary.host, settings: SETTINGS });
    await primary.start();
    const follow = `host=${primary.host} port=${primary.port} user=postgres`;
    await onServer(this.#replica, async (client) => {
      await client.query(`ALTER SYSTEM SET primary_conninfo = '${follow}'`);
      await client.query("SELECT pg_reload_conf()");
    });
  }

  /** From here on the replica lacks what is committed. */
  async cutReplica(): Promise<void> {
    const [{ lsn }] = (await this.query<{ lsn: string }>("SELECT pg_current_wal_lsn()::text AS lsn")) as [
      { lsn: string },
    ];
    await onServer(this.#replicaOf(), async (client) => {
      await isTrue(client, `pg_last_wal_replay_lsn() >= '${lsn}'`);
      await client.query("ALTER SYSTEM RESET primary_conninfo");
      await client.query("SELECT pg_reload_conf()");
      await isTrue(client, "NOT EXISTS (SELECT FROM pg_stat_wal_receiver)");
    });
  }

  /** The old primary is left running. */
  async promoteReplica(): Promise<void> {
    this.setBackAtMs = await this.nowMs();
    await onServer(this.#replicaOf(), (client) => client.query("SELECT pg_promote()"));
    await this.#ask(this.#replicaOf());
  }

  async remove(): Promise<void> {
    await this.#pool.end();
    await this.#replica?.remove();
    await this.#primary.remove();
    if (this.#archive) rmSync(this.#archive, { recursive: true });
  }

  async #ask(server: TestPostgres): Promise<void> {
    await this.#pool.end();
    this.#pool = poolOf(server);
    await onServer(server, (client) => isTrue(client, "NOT pg_is_in_recovery()"));
  }

  #replicaOf(): TestPostgres {
    if (!this.#replica) throw new Error("this ledger has no replica");
    return this.#replica;
  }
}

const copyOf = (dataDir: string): string => `${dataDir}-copy`;

function poolOf(server: TestPostgres): pg.Pool {
  const pool = new pg.Pool({ connectionString: server.url(), max: 2 });
  pool.on("error", () => {}); // the next query says what is wrong
  return pool;
}

async function onServer<T>(
  server: TestPostgres,
  work: (client: pg.Client) => Promise<T>,
  database?: string,
): Promise<T> {
  const client = new pg.Client({ connectionString: server.url(database) });
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

const isTrue = (client: pg.Client, expression: string): Promise<unknown> =>
  until(async () => (await client.query(`SELECT (${expression}) AS so`)).rows[0].so === true);
