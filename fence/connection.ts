/**
 * One short-lived connection to a protected database for the fence's own statements.
 *
 * Does NOT pool and does not hide a lost connection: whoever uses it decides whether to try again. Fresh each time,
 * because a connection by name is what notices that the name now leads to another server.
 */
import type { ConnectionOptions } from "node:tls";
import pg from "pg";
import type { Clock } from "../platform/clock.ts";
import { isFenceCode } from "./codes.ts";
import type { DatabaseAddress } from "./database.ts";
import { FenceError, sqlStateOf, toFenceError } from "./errors.ts";

export interface ConnectionOptionsOfFence {
  readonly clock: Clock;
  /** For everything on this connection, connecting included: past it the socket is destroyed. */
  readonly timeoutMs: number;
  readonly signal?: AbortSignal | undefined;
  /** What is being done, for messages and `application_name`. */
  readonly doing: string;
}

/** The message of node-postgres when the server answers the request for TLS with no. */
const NO_TLS = /does not support SSL/;

/** Runs `use` on a new connection and closes it. Every failure comes out as a FenceError, or as the server's own error. */
export async function withConnection<T>(
  address: DatabaseAddress,
  options: ConnectionOptionsOfFence,
  use: (client: pg.Client) => Promise<T>,
): Promise<T> {
  const { clock, signal, doing } = options;
  signal?.throwIfAborted();
  const deadlineMs = clock.monoMs() + options.timeoutMs;
  let client: pg.Client | undefined;
  let endedBecause: unknown;
  // Destroying the socket fails whatever waits on it: no statement of ours can outlive its bound.
  const destroy = (reason: unknown): void => {
    endedBecause ??= reason;
    if (client) socketOf(client).destroy();
  };
  const cancelTimer = clock.after(options.timeoutMs, () =>
    destroy(
      new FenceError("LF015", {
        message: `the database at ${address.host}:${address.port} did not answer in time (${doing})`,
        detail: `Nothing came back within ${Math.round(options.timeoutMs)} ms; whether it was done there is not known.`,
      }),
    ),
  );
  const onAbort = (): void => destroy(signal?.reason ?? new Error("aborted"));
  signal?.addEventListener("abort", onAbort, { once: true });
  try {
    for (const ssl of tlsAttempts(address)) {
      client = newClient(address, ssl, doing, deadlineMs - clock.monoMs());
      try {
        await client.connect();
        break;
      } catch (error) {
        socketOf(client).destroy();
        const another = endedBecause === undefined && mayTryOtherTls(address, ssl, error);
        if (!another) throw error;
      }
    }
    if (!client) throw new Error("no way to connect");
    return await use(client);
  } catch (error) {
    if (endedBecause !== undefined) throw endedBecause;
    throw error;
  } finally {
    cancelTimer();
    signal?.removeEventListener("abort", onAbort);
    // No farewell is waited for: a server that hangs must not hang us. Terminate is in the socket's buffer already.
    if (client) void client.end().catch(() => {});
  }
}

/** As `withConnection`, with every failure as a FenceError. */
export async function onDatabase<T>(
  address: DatabaseAddress,
  options: ConnectionOptionsOfFence,
  use: (client: pg.Client) => Promise<T>,
): Promise<T> {
  try {
    return await withConnection(address, options, use);
  } catch (error) {
    if (options.signal?.aborted && error === options.signal.reason) throw error;
    throw toFenceError(error, address, options.doing);
  }
}

/** The connection went away, or its server session was ended: what was sent last may or may not have happened. */
export function isConnectionLoss(error: unknown): boolean {
  const sqlState = sqlStateOf(error);
  if (sqlState !== undefined) return sqlState.startsWith("57P") || sqlState.startsWith("08");
  return error instanceof Error && !isFenceCode((error as { code?: unknown }).code);
}

function newClient(address: DatabaseAddress, ssl: ConnectionOptions | false, doing: string, leftMs: number): pg.Client {
  const client = new pg.Client({
    host: address.host,
    port: address.port,
    database: address.database,
    user: address.user,
    // An absent password must not be looked up in this process's environment or home directory.
    password: address.password ?? "",
    ssl,
    application_name: `fencedjob ${doing}`,
    connectionTimeoutMillis: Math.max(1, Math.ceil(leftMs)),
    keepAlive: true,
  });
  // A connection that ends while nothing waits on it would otherwise end the process.
  client.on("error", () => {});
  return client;
}

function socketOf(client: pg.Client): { destroy(): void } {
  return (client as unknown as { connection: { stream: { destroy(): void } } }).connection.stream;
}

/** libpq's sslmode, as the TLS settings to try in turn. */
function tlsAttempts(address: DatabaseAddress): (ConnectionOptions | false)[] {
  const unverified: ConnectionOptions = { rejectUnauthorized: false };
  const verified: ConnectionOptions = { rejectUnauthorized: true, ...(address.ca ? { ca: address.ca } : {}) };
  const verifiedChain: ConnectionOptions = { ...verified, checkServerIdentity: () => undefined };
  switch (address.sslmode) {
    case "disable":
      return [false];
    case "allow":
      return [false, unverified];
    case "prefer":
      return [unverified, false];
    case "require":
      // As libpq does: with a certificate authority given, require means verify-ca.
      return [address.ca ? verifiedChain : unverified];
    case "verify-ca":
      return [verifiedChain];
    case "verify-full":
      return [verified];
  }
}

function mayTryOtherTls(address: DatabaseAddress, tried: ConnectionOptions | false, error: unknown): boolean {
  const refusedByHba = sqlStateOf(error) === "28000";
  if (address.sslmode === "prefer" && tried !== false) {
    return refusedByHba || (error instanceof Error && NO_TLS.test(error.message));
  }
  return address.sslmode === "allow" && tried === false && refusedByHba;
}
