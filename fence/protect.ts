/**
 * Protected tables: triggers that refuse every writer who is not inside the gate of the table's job, whoever he is and
 * however he came (docs/protect.md).
 *
 * Does NOT hold against the owner of a table or a superuser who takes the triggers away: `uncovered` shows where.
 */
import type { Client } from "pg";
import { type Clock, systemClock } from "../platform/clock.ts";
import { onDatabase } from "./connection.ts";
import type { DatabaseAddress } from "./database.ts";
import { FenceError, sqlStateOf } from "./errors.ts";

export interface ProtectOptions {
  /** Also under `session_replication_role = replica`, and for the worker of a subscription. */
  readonly always?: boolean;
  readonly clock?: Clock;
  readonly signal?: AbortSignal;
}

export interface Uncovered {
  readonly table: string;
  readonly job: string;
  readonly why: string;
}

const PROTECT_MS_MAX = 30_000;
/** For the writers that are at work on the tables; each further write to them queues behind us meanwhile. */
const LOCK_MS_MAX = 5_000;
/** So that the server writes the names of tables with their schema. */
const FULL_NAMES = "SET LOCAL search_path = pg_catalog";

/** Binds the tables, and what inherits from them, to the job. Returns the tables that now carry the trigger. */
export async function protect(
  address: DatabaseAddress,
  fenceName: string,
  tables: readonly string[],
  options: ProtectOptions = {},
): Promise<string[]> {
  return await changeTriggers(address, tables, options, "db protect", async (client, found) => {
    const { rows } = await client.query("SELECT t::text AS name FROM fence.protect($1, $2::oid[]::regclass[], $3) t", [
      fenceName,
      found,
      options.always ?? false,
    ]);
    return rows.map(({ name }) => name);
  });
}

/** Takes the triggers away from the tables and what inherits from them. Returns the tables that carried one. */
export async function unprotect(
  address: DatabaseAddress,
  tables: readonly string[],
  options: ProtectOptions = {},
): Promise<string[]> {
  return await changeTriggers(address, tables, options, "db unprotect", async (client, found) => {
    const { rows } = await client.query("SELECT t::text AS name FROM fence.unprotect($1::oid[]::regclass[]) t", [
      found,
    ]);
    return rows.map(({ name }) => name);
  });
}

/** Where a write could pass by the triggers of the protected tables; empty is good. */
export async function uncovered(address: DatabaseAddress, options: ProtectOptions = {}): Promise<Uncovered[]> {
  const clock = options.clock ?? systemClock;
  const connection = { clock, timeoutMs: PROTECT_MS_MAX, signal: options.signal, doing: "db uncovered" };
  return await onDatabase(address, connection, async (client) => {
    await client.query(`BEGIN; ${FULL_NAMES}`);
    const { rows } = await client.query(`SELECT u."table"::text AS "table", u.job, u.why FROM fence.uncovered() u`);
    return rows;
  });
}

async function changeTriggers(
  address: DatabaseAddress,
  tables: readonly string[],
  options: ProtectOptions,
  doing: string,
  change: (client: Client, found: readonly string[]) => Promise<string[]>,
): Promise<string[]> {
  const clock = options.clock ?? systemClock;
  const connection = { clock, timeoutMs: PROTECT_MS_MAX, signal: options.signal, doing };
  return await onDatabase(address, connection, async (client) => {
    try {
      await client.query(`BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = ${LOCK_MS_MAX}`);
      const found = await findTables(client, address, tables);
      await client.query(FULL_NAMES);
      const changed = await change(client, found);
      await client.query("COMMIT");
      return changed;
    } catch (error) {
      throw explained(error, address);
    }
  });
}

/** Their oids; names are read as SQL reads them. */
async function findTables(client: Client, address: DatabaseAddress, tables: readonly string[]): Promise<string[]> {
  const { rows } = await client.query(
    "SELECT name, to_regclass(name)::oid::text AS oid FROM unnest($1::text[]) AS name",
    [tables],
  );
  for (const { name, oid } of rows) {
    if (oid !== null) continue;
    throw new FenceError("LF031", {
      message: `there is no table ${name} in database "${address.database}"`,
      detail: "Nothing was changed.",
      hint: "Give the name as in SQL, with its schema: public.invoice.",
    });
  }
  return rows.map(({ oid }) => oid);
}

function explained(error: unknown, address: DatabaseAddress): unknown {
  const detail = `PostgreSQL says: ${error instanceof Error ? error.message : error}. Nothing was changed.`;
  switch (sqlStateOf(error)) {
    case "42501":
      return new FenceError("LF012", {
        message: `role "${address.user}" may not change the triggers of these tables`,
        detail,
        hint: "Run it as the owner of the tables with membership in fence_admin, or as a superuser.",
        cause: error,
      });
    case "55P03":
      return new FenceError("LF031", {
        message: `a table is in use: its writers did not end within ${LOCK_MS_MAX / 1000} s`,
        detail,
        hint: "Run it again when no long transaction writes there.",
        cause: error,
      });
    default:
      return error;
  }
}
