/**
 * Installs or upgrades the fence schema. One transaction: it is there in full or not at all, run twice or at once.
 *
 * Does NOT need a superuser: a role with CREATEROLE and CREATE on the database will do. What it cannot grant (from
 * PostgreSQL 16 on, pg_signal_backend without ADMIN OPTION) comes back as a warning; `fencedjob db role` then gives
 * the schema's owner the rights over each application role instead.
 */
import type { Client } from "pg";
import { type Clock, systemClock } from "../platform/clock.ts";
import { onDatabase } from "./connection.ts";
import type { DatabaseAddress } from "./database.ts";
import { quoteIdentifier } from "./enter.ts";
import { FenceError, sqlStateOf, toAdministrator } from "./errors.ts";
import { loadMigrations, type Migration, SCHEMA_VERSION } from "./migrations.ts";

export interface InstallOptions {
  readonly clock?: Clock;
  readonly signal?: AbortSignal;
  readonly migrations?: readonly Migration[];
}

export interface Installed {
  /** The version before, or null where there was none. */
  readonly from: number | null;
  readonly to: number;
  /** What could not be granted and what follows from it. */
  readonly warnings: readonly string[];
}

export interface SchemaStatus {
  /** Version in the database; null: not installed. */
  readonly installed: number | null;
  /** Version of this program. */
  readonly supported: number;
  /** What the role of the connection lacks to be an application's role; empty if nothing. */
  readonly problems: readonly string[];
}

const INSTALL_MS_MAX = 60_000;
const LOCK_POLL_MS = 50;
const ATTEMPTS_MAX = 5;
/** Key of the advisory lock of an install. */
const INSTALL_LOCK = 5_496_063_771_914_102_000n;
/** Roles are shared by all databases of a cluster: two installs at once may meet there. */
const COLLISION = new Set(["23505", "42710", "XX000", "40001", "40P01", "42P06"]);

export async function install(address: DatabaseAddress, options: InstallOptions = {}): Promise<Installed> {
  const clock = options.clock ?? systemClock;
  const connection = { clock, timeoutMs: INSTALL_MS_MAX, signal: options.signal, doing: "db install" };
  return await onDatabase(address, connection, async (client) => {
    for (let attempt = 1; ; attempt++) {
      try {
        await client.query("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");
        const installed = await installInTransaction(client, address, clock, options.migrations ?? loadMigrations());
        await client.query("COMMIT");
        return installed;
      } catch (error) {
        if (attempt >= ATTEMPTS_MAX || !COLLISION.has(sqlStateOf(error) ?? "")) throw toAdministrator(error, address);
        await client.query("ROLLBACK");
        await clock.sleep(LOCK_POLL_MS * attempt, options.signal);
      }
    }
  });
}

async function installInTransaction(
  client: Client,
  address: DatabaseAddress,
  clock: Clock,
  migrations: readonly Migration[],
): Promise<Installed> {
  // The tables are fence_owner's, who need not have a right on the tablespace that the database has as its default.
  await client.query(
    "SET LOCAL search_path = pg_catalog; SET LOCAL client_min_messages = error; SET LOCAL default_tablespace = ''",
  );
  await lockInstall(client, clock);
  const from = await installedVersion(client, address);
  const to = migrations.at(-1)?.version ?? 0;
  if (from !== null && from > to) {
    throw new FenceError("LF011", {
      message: `the fence schema of database "${address.database}" is newer than this program`,
      detail: `Version ${from} is installed, this program speaks ${to}. Nothing was changed.`,
      hint: "Use the newer fencedjob that installed it.",
    });
  }
  const warnings: string[] = [];
  await ensureRoles(client, warnings);
  const giveBack = await becomeOwner(client, address);
  if (from === null) await client.query("CREATE SCHEMA fence AUTHORIZATION fence_owner");
  await client.query("SET LOCAL ROLE fence_owner");
  for (const { version, sql } of migrations) {
    if (version <= (from ?? 0)) continue;
    await client.query(sql);
    await client.query("INSERT INTO fence.schema_version (version) VALUES ($1)", [version]);
  }
  // Repairs what a GRANT on all tables or a dump may have changed; a raise does the same for the gates.
  await client.query("SELECT fence.close_table('fence.never')");
  await client.query("SET LOCAL ROLE NONE");
  if (giveBack) await client.query("REVOKE fence_owner FROM CURRENT_USER");
  return { from, to, warnings };
}

/** Tried and polled: a waiting advisory lock deadlocks with CREATE INDEX CONCURRENTLY elsewhere. */
async function lockInstall(client: Client, clock: Clock): Promise<void> {
  for (;;) {
    const { rows } = await client.query(`SELECT pg_try_advisory_xact_lock(${INSTALL_LOCK}) AS got`);
    if (rows[0].got) return;
    await clock.sleep(LOCK_POLL_MS);
  }
}

async function installedVersion(client: Client, address: DatabaseAddress): Promise<number | null> {
  const { rows } = await client.query(
    `SELECT pg_get_userbyid(n.nspowner) AS owner, to_regclass('fence.schema_version') AS versions
     FROM pg_namespace n WHERE n.nspname = 'fence'`,
  );
  const [schema] = rows;
  if (!schema) return null;
  if (schema.owner !== "fence_owner" || schema.versions === null) {
    throw new FenceError("LF011", {
      message: `database "${address.database}" has a schema "fence" that FencedJob did not install`,
      detail: `It belongs to role "${schema.owner}"${schema.versions === null ? " and has no table schema_version" : ""}. Nothing was changed.`,
      hint: "Rename or drop it if it is foreign. If it is ours and was restored without owners: ALTER SCHEMA fence OWNER TO fence_owner, and the same for what is in it.",
    });
  }
  const version = await client.query("SELECT max(version) AS version FROM fence.schema_version");
  return version.rows[0].version ?? 0;
}

async function ensureRoles(client: Client, warnings: string[]): Promise<void> {
  for (const role of ["fence_owner", "fence_sidecar", "fence_admin"]) {
    const { rowCount } = await client.query("SELECT FROM pg_roles WHERE rolname = $1", [role]);
    if (!rowCount) await client.query(`CREATE ROLE ${role} NOLOGIN`);
  }
  const { rows } = await client.query(
    `SELECT pg_has_role('fence_owner', 'pg_signal_backend', 'USAGE')
        AND pg_has_role('fence_owner', 'pg_read_all_stats', 'USAGE') AS able`,
  );
  if (rows[0].able) return;
  await client.query("SAVEPOINT granting");
  try {
    await client.query("GRANT pg_signal_backend, pg_read_all_stats TO fence_owner");
    await client.query("RELEASE SAVEPOINT granting");
  } catch (error) {
    if (sqlStateOf(error) !== "42501") throw error;
    await client.query("ROLLBACK TO SAVEPOINT granting");
    warnings.push(
      "fence_owner did not get pg_signal_backend and pg_read_all_stats: a takeover could not end the sessions of an " +
        "application role unless it was made by `fencedjob db role`, which grants that role to fence_owner. " +
        "Or run, as a superuser: GRANT pg_signal_backend, pg_read_all_stats TO fence_owner;",
    );
  }
}

/** Makes SET ROLE fence_owner possible; true if that has to be undone. */
async function becomeOwner(client: Client, address: DatabaseAddress): Promise<boolean> {
  const { rows } = await client.query(
    `SELECT rolsuper AS super, current_setting('server_version_num')::int >= 160000 AS options,
       pg_has_role('fence_owner', CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END) AS member
     FROM pg_roles WHERE rolname = current_user`,
  );
  const { super: superuser, options, member } = rows[0];
  if (superuser || member) return false;
  try {
    await client.query(`GRANT fence_owner TO CURRENT_USER${options ? " WITH SET TRUE, INHERIT FALSE" : ""}`);
    return true;
  } catch (error) {
    if (sqlStateOf(error) !== "42501") throw error;
    throw new FenceError("LF012", {
      message: `role ${quoteIdentifier(address.user)} may not install the fence schema`,
      detail: "It cannot become role fence_owner, which another role created.",
      // A member of fence_owner cannot be refused: an application's role, given here by mistake, must not become one.
      hint: `Install as a superuser, or as the role that made fence_owner. Only if ${quoteIdentifier(address.user)} is an administrator, and runs no application, as a superuser: GRANT fence_owner TO ${quoteIdentifier(address.user)} WITH ADMIN OPTION`,
      cause: error,
    });
  }
}

/** What is installed, and whether the role of this address could run a fenced application. */
export async function schemaStatus(address: DatabaseAddress, options: InstallOptions = {}): Promise<SchemaStatus> {
  const clock = options.clock ?? systemClock;
  const connection = { clock, timeoutMs: 10_000, signal: options.signal, doing: "db status" };
  return await onDatabase(address, connection, async (client) => {
    const installed = await installedVersion(client, address);
    if (installed === null) return { installed, supported: SCHEMA_VERSION, problems: [] };
    const { rows } = await client.query(
      `SELECT pg_is_in_recovery() AS standby, fence.why_not_fenceable(current_user) AS unfenceable,
         fence.can_end_sessions_of(current_user) AS can_end, pg_has_role('fence_sidecar', 'USAGE') AS sidecar`,
    );
    const [state] = rows;
    const problems: string[] = [];
    if (state.standby) problems.push("LF013: the database is a standby");
    if (state.unfenceable) problems.push(`LF010: role "${address.user}" cannot be fenced: it is ${state.unfenceable}`);
    if (!state.sidecar) problems.push(`LF012: role "${address.user}" is not a member of fence_sidecar`);
    if (!state.can_end) problems.push(`LF012: a takeover could not end the sessions of role "${address.user}"`);
    return { installed, supported: SCHEMA_VERSION, problems };
  });
}
