/** The server that all targets lead to: a PostgreSQL of the bench's own, with pgbench's tables and a role that can be fenced. */
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { install } from "../fence/client.ts";
import type { DatabaseAddress } from "../fence/database.ts";
import { makeRole } from "../fence/role.ts";
import { type PostgresVersion, startPostgres } from "../testing/postgres.ts";
import { initialise } from "./pgbenchrun.ts";

export interface Ground {
  /** Of the application's role. */
  readonly address: DatabaseAddress;
  /** Where the Unix sockets of the server and of the targets are; anybody may make files there. */
  readonly socketDir: string;
  /** For people: what of PostgreSQL's settings is not the default. */
  readonly settings: Readonly<Record<string, string>>;
  readonly serverVersion: string;
  /** What pgbench does before a run when it may: small tables without dead rows, an empty history, no checkpoint due. */
  tidy(): Promise<void>;
  stop(): Promise<void>;
}

export const POSTGRES: PostgresVersion = 15;
/** 150 MB of tables: in memory, and more branches than a few. */
export const SCALE = 10;
const NAME = "bench";
const SETTINGS = { fsync: "on", shared_buffers: "512MB", max_wal_size: "4GB", max_connections: "200" };

export async function startGround(): Promise<Ground> {
  const socketDir = mkdtempSync(join(tmpdir(), "fencedjob-sockets-"));
  chmodSync(socketDir, 0o777);
  const settings = { ...SETTINGS, unix_socket_directories: socketDir };
  const server = await startPostgres({ version: POSTGRES, settings });
  const { host, port } = server;
  const remove = async (): Promise<void> => {
    await server.remove();
    rmSync(socketDir, { recursive: true, force: true });
  };
  try {
    const administrator: DatabaseAddress = { host, port, database: "postgres", user: "postgres", sslmode: "disable" };
    const inDatabase = { ...administrator, database: NAME };
    await withClient(administrator, async (client) => {
      await client.query(`CREATE ROLE ${NAME} LOGIN`);
      await client.query(`CREATE DATABASE ${NAME} OWNER ${NAME}`);
    });
    await install(inDatabase);
    await makeRole(inDatabase, { name: NAME });
    const address = { ...inDatabase, user: NAME };
    await initialise(address, SCALE);
    return {
      address,
      socketDir,
      settings: SETTINGS,
      serverVersion: await withClient(inDatabase, async (client) => {
        const { rows } = await client.query("SHOW server_version");
        return String(rows[0].server_version).split(" ", 1).join();
      }),
      tidy: () =>
        withClient(inDatabase, async (client) => {
          await client.query("TRUNCATE pgbench_history");
          await client.query("VACUUM pgbench_branches, pgbench_tellers");
          await client.query("CHECKPOINT");
        }),
      stop: remove,
    };
  } catch (error) {
    await remove();
    throw error;
  }
}

async function withClient<T>(address: DatabaseAddress, use: (client: pg.Client) => Promise<T>): Promise<T> {
  const { host, port, database, user } = address;
  const client = new pg.Client({ host, port, database, user });
  await client.connect();
  try {
    return await use(client);
  } finally {
    await client.end();
  }
}
