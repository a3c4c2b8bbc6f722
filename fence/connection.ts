/**
 * One short-lived connection to a protected database for the fence's own statements.
 *
 * Does NOT pool and does not hide a lost connection: whoever uses it decides whether to try again. Fresh each time,
 * because a connection by name is what notices that the name now leads to another server.
 */
import type { Socket } from "node:net";
import pg from "pg";
import { type Bounds, within } from "../platform/within.ts";
import { RequiredBinding, serverEndPoint } from "./binding.ts";
import { isFenceCode } from "./codes.ts";
import { type DatabaseAddress, whereIs } from "./database.ts";
import { FenceError, LoginError, sqlStateOf, toFenceError } from "./errors.ts";
import { inTurn } from "./route.ts";
import { openSocket, type Route } from "./socket.ts";

/** The bound is that of everything on the connection, connecting included: past it the socket is destroyed. */
export interface ConnectionOptionsOfFence extends Bounds {
  /** What is being done, for messages and `application_name`. */
  readonly doing: string;
}

/** How the fence's client gets a connection: `withConnection`, or a simulation's own. */
export type Connect = typeof withConnection;

/** Rounds of the password's hash that a server may ask for: PostgreSQL's default is 4096. */
export const SCRAM_ITERATIONS_MAX = 1_000_000;

/**
 * Runs `use` on a new connection and closes it. Fails with what kept it from connecting, the server's own error, LF015 past
 * the bound, or the signal's reason.
 */
export async function withConnection<T>(
  address: DatabaseAddress,
  options: ConnectionOptionsOfFence,
  use: (client: pg.Client) => Promise<T>,
): Promise<T> {
  const { clock, timeoutMs, doing } = options;
  const deadlineMs = clock.monoMs() + timeoutMs;
  const { client, socket } = await inTurn(address, options, (route, bound) => open(route, bound, address, doing));
  // Destroying the socket fails whatever waits on it: no statement of ours can outlive its bound.
  const bounded = (bound: AbortSignal): Promise<T> => {
    bound.addEventListener("abort", () => socket.destroy(), { once: true });
    return use(client);
  };
  const late = (): Error =>
    new FenceError("LF015", {
      message: `the database at ${whereIs(address)} did not answer in time (${doing})`,
      detail: `Nothing came back within ${Math.round(timeoutMs)} ms; whether it was done there is not known.`,
    });
  try {
    return await within({ ...options, timeoutMs: deadlineMs - clock.monoMs() }, bounded, late);
  } finally {
    // No farewell is waited for: a server that hangs must not hang us. Terminate is in the socket's buffer already.
    void client.end().catch(() => {});
  }
}

/** As `withConnection`, with every failure as a FenceError. */
export async function onDatabase<T>(
  address: DatabaseAddress,
  options: ConnectionOptionsOfFence & { readonly connect?: Connect | undefined },
  use: (client: pg.Client) => Promise<T>,
): Promise<T> {
  try {
    return await (options.connect ?? withConnection)(address, options, use);
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

/** Connects and logs in; what is opened when `bound` aborts is destroyed. */
async function open(route: Route, bound: AbortSignal, address: DatabaseAddress, doing: string): Promise<Opened> {
  const socket = await openSocket(address, route, bound);
  const cut = (): void => void socket.destroy();
  bound.addEventListener("abort", cut, { once: true });
  try {
    return { client: await login(socket, address, doing), socket };
  } catch (error) {
    socket.destroy();
    throw error;
  } finally {
    bound.removeEventListener("abort", cut);
  }
}

/** Logs in over an open socket. A standby is refused with LF013: what the fence does there is a write. */
async function login(socket: Socket, address: DatabaseAddress, doing: string): Promise<pg.Client> {
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
  if (!rows[0].standby) return client;
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
