/**
 * Makes the login role of a fenced application: one that a closed gate can refuse, and whose sessions a takeover can
 * end. Repairs an existing role as far as it can, and says what it cannot.
 */
import { createHash, createHmac, pbkdf2Sync } from "node:crypto";
import type { Client } from "pg";
import { type Clock, systemClock } from "../platform/clock.ts";
import { type Random, systemRandom } from "../platform/random.ts";
import { onDatabase } from "./connection.ts";
import type { DatabaseAddress } from "./database.ts";
import { quoteIdentifier, quoteLiteral } from "./enter.ts";
import { FenceError, toAdministrator } from "./errors.ts";

export interface RoleOptions {
  readonly name: string;
  /** Absent: the password is left as it is (none for a new role). */
  readonly password?: string;
  /** Its transactions in this database are read-only unless they say otherwise: for a pooler, which cannot be told. */
  readonly readOnlyDefault?: boolean;
  readonly clock?: Clock;
  readonly random?: Random;
  readonly signal?: AbortSignal;
}

const ROLE_MS_MAX = 30_000;
const SCRAM_ITERATIONS = 4096;

/** `address` is an administrator's. Returns whether the role was created. */
export async function makeRole(address: DatabaseAddress, options: RoleOptions): Promise<{ created: boolean }> {
  const clock = options.clock ?? systemClock;
  const connection = { clock, timeoutMs: ROLE_MS_MAX, signal: options.signal, doing: "db role" };
  return await onDatabase(address, connection, async (client) => {
    try {
      return await makeInTransaction(client, options);
    } catch (error) {
      throw toAdministrator(error, address);
    }
  });
}

async function makeInTransaction(client: Client, options: RoleOptions): Promise<{ created: boolean }> {
  await client.query("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");
  await client.query("SET LOCAL search_path = pg_catalog");
  const role = quoteIdentifier(options.name);
  const { rowCount } = await client.query("SELECT FROM pg_roles WHERE rolname = $1", [options.name]);
  const created = !rowCount;
  if (created) {
    await client.query(
      `CREATE ROLE ${role} LOGIN INHERIT NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS`,
    );
  }
  if (options.password !== undefined) {
    const verifier = scramVerifier(options.password, options.random ?? systemRandom);
    await client.query(`ALTER ROLE ${role} PASSWORD ${quoteLiteral(verifier)}`);
  }
  await client.query(`GRANT fence_sidecar TO ${role}`);
  const database = await client.query("SELECT current_database() AS name");
  const inDatabase = `DATABASE ${quoteIdentifier(database.rows[0].name)}`;
  await client.query(`GRANT CONNECT ON ${inDatabase} TO ${role}`);
  if (options.readOnlyDefault) {
    await client.query(`ALTER ROLE ${role} IN ${inDatabase} SET default_transaction_read_only = on`);
  }
  await letTakeoverEndSessions(client, options.name);
  await refuseUnfenceable(client, options.name);
  await client.query("COMMIT");
  return { created };
}

async function letTakeoverEndSessions(client: Client, name: string): Promise<void> {
  const { rows } = await client.query("SELECT fence.can_end_sessions_of($1) AS able", [name]);
  if (!rows[0].able) await client.query(`GRANT ${quoteIdentifier(name)} TO fence_owner`);
}

async function refuseUnfenceable(client: Client, name: string): Promise<void> {
  const { rows } = await client.query("SELECT fence.why_not_fenceable($1) AS why", [name]);
  const why: string | null = rows[0].why;
  if (why === null) return;
  throw new FenceError("LF010", {
    message: `role "${name}" cannot be fenced`,
    detail: `It is ${why}, so a revoked gate would not refuse it. Nothing was changed.`,
    hint: "Take that right away from it, or choose another name: a role of its own for the application is the simplest.",
  });
}

/** What PostgreSQL stores for SCRAM-SHA-256, so that the password itself is in no statement and in no log. */
function scramVerifier(password: string, random: Random): string {
  const salt = random.bytes(16);
  const salted = pbkdf2Sync(password.normalize("NFKC"), salt, SCRAM_ITERATIONS, 32, "sha256");
  const key = (label: string): Buffer => createHmac("sha256", salted).update(label).digest();
  const storedKey = createHash("sha256").update(key("Client Key")).digest("base64");
  return `SCRAM-SHA-256$${SCRAM_ITERATIONS}:${salt.toString("base64")}$${storedKey}:${key("Server Key").toString("base64")}`;
}
