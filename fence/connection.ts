/**
 * One short-lived connection to a protected database for the fence's own statements.
 *
 * Does NOT pool and does not hide a lost connection: whoever uses it decides whether to try again. Fresh each time,
 * because a connection by name is what notices that the name now leads to another server.
 */
import type { Socket } from "node:net";
import pg from "pg";
import type { Clock } from "../platform/clock.ts";
import { RequiredBinding, serverEndPoint } from "./binding.ts";
import { isFenceCode } from "./codes.ts";
import { type DatabaseAddress, whereIs } from "./database.ts";
import { FenceError, LoginError, sqlStateOf, toFenceError } from "./errors.ts";
import { inTurn } from "./route.ts";
import { openSocket } from "./socket.ts";

export interface ConnectionOptionsOfFence {
  readonly clock: Clock;
  /** For everything on this connection, connecting included: past it the socket is destroyed. */
  readonly timeoutMs: number;
  readonly signal?: AbortSignal | undefined;
  /** What is being done, for messages and `application_name`. */
  readonly doing: string;
}

/** Rounds of the password's hash that a server may ask for: PostgreSQL's default is 4096. */
export const SCRAM_ITERATIONS_MAX = 1_000_000;

/** Runs `use` on a new connection and closes it. Every failure comes out as a FenceError, or as the server's own error. */
export async function withConnection<T>(
  address: DatabaseAddress,
  options: ConnectionOptionsOfFence,
  use: (client: pg.Client) => Promise<T>,
): Promise<T> {
  const { clock, signal, doing } = options;
  signal?.throwIfAborted();
  let opened: Opened | undefined;
  let endedBecause: unknown;
  // Destroying the socket fails whatever waits on it: no statement of ours can outlive its bound.
  const bound = new AbortController();
  const destroy = (reason: unknown): void => {
    endedBecause ??= reason;
    bound.abort(reason);
    opened?.socket.destroy();
  };
  const cancelTimer = clock.after(options.timeoutMs, () =>
    destroy(
      new FenceError("LF015", {
        message: `the database at ${whereIs(address)} did not answer in time (${doing})`,
        detail: `Nothing came back within ${Math.round(options.timeoutMs)} ms; whether it was done there is not known.`,
      }),
    ),
  );
  const onAbort = (): void => destroy(signal?.reason ?? new Error("aborted"));
  signal?.addEventListener("abort", onAbort, { once: true });
  try {
    opened = await inTurn(
      address,
      { clock, timeoutMs: options.timeoutMs, signal: bound.signal },
      async (route, one) => {
        const socket = await openSocket(address, route, one);
        const cut = (): void => void socket.destroy();
        one.addEventListener("abort", cut, { once: true });
        try {
          return await login(socket, address, doing);
        } catch (error) {
          socket.destroy();
          throw error;
        } finally {
          one.removeEventListener("abort", cut);
        }
      },
    );
    return await use(opened.client);
  } catch (error) {
    if (endedBecause !== undefined) throw endedBecause;
    throw error;
  } finally {
    cancelTimer();
    signal?.removeEventListener("abort", onAbort);
    // No farewell is waited for: a server that hangs must not hang us. Terminate is in the socket's buffer already.
    if (opened) void opened.client.end().catch(() => {});
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

interface Opened {
  readonly client: pg.Client;
  readonly socket: Socket;
}

/** Logs in over an open socket. A standby is refused with LF013: what the fence does there is a write. */
async function login(socket: Socket, address: DatabaseAddress, doing: string): Promise<Opened> {
  const endPoint = address.channelBinding === "disable" ? undefined : serverEndPoint(socket);
  const watched = address.channelBinding === "require" ? watchLogin(socket, new RequiredBinding(endPoint)) : undefined;
  // It is connected: node-postgres is told so when it asks for that.
  socket.connect = () => {
    process.nextTick(() => socket.emit("connect"));
    return socket;
  };
  // A name that its types do not know.
  const scram = { scramMaxIterations: SCRAM_ITERATIONS_MAX };
  const client = new pg.Client({
    ...scram,
    stream: () => socket,
    ssl: false,
    host: address.host,
    database: address.database,
    user: address.user,
    // An absent password must not be looked up in this process's environment or home directory.
    password: address.password ?? "",
    application_name: `fencedjob ${doing}`,
    enableChannelBinding: endPoint !== undefined,
  });
  // A connection that ends while nothing waits on it would otherwise end the process.
  client.on("error", () => {});
  const failure = await client.connect().then(
    () => undefined,
    (error: Error) => (error.message.startsWith("SASL") ? new LoginError(error.message) : error),
  );
  // A refusal first: it may have come in one piece with what made node-postgres believe that it is logged in.
  if (watched?.refusal) throw watched.refusal;
  if (failure) throw failure;
  const { rows } = await client.query("SELECT pg_catalog.pg_is_in_recovery() AS standby");
  if (!rows[0].standby) return { client, socket };
  throw new FenceError("LF013", { message: `database "${address.database}" is a standby` });
}

const AUTHENTICATION = 0x52;
const LOGIN_BYTES_MAX = 64 * 1024;
const AUTHENTICATION_OK = 0;

/** Lets `rule` see the server's Authentication messages before node-postgres answers them; a refusal ends the socket. */
function watchLogin(socket: Socket, rule: RequiredBinding): { readonly refusal: unknown } {
  let refusal: unknown;
  let received: Buffer = Buffer.alloc(0);
  const onData = (chunk: Buffer): void => {
    received = Buffer.concat([received, chunk]);
    try {
      while (received.length >= 9 && received.length > received.readUInt32BE(1)) {
        const end = 1 + received.readUInt32BE(1);
        if (received[0] === AUTHENTICATION) {
          rule.see(received.subarray(5, end));
          if (received.readUInt32BE(5) === AUTHENTICATION_OK) return void socket.off("data", onData);
        }
        received = received.subarray(end);
      }
      if (received.length > LOGIN_BYTES_MAX) throw new LoginError("the server's answer to the login does not end");
    } catch (error) {
      refusal = error;
      socket.off("data", onData);
      socket.destroy();
    }
  };
  socket.on("data", onData);
  return {
    get refusal() {
      return refusal;
    },
  };
}
