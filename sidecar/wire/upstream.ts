/**
 * A new server session: connect, log in, and the checks and admission that come before the client sees
 * anything of it (INV-4).
 */
import type { Socket } from "node:net";
import { RequiredBinding, serverEndPoint } from "../../fence/binding.ts";
import type { DatabaseAddress } from "../../fence/database.ts";
import type { SessionStartStep } from "../../fence/enter.ts";
import { codeOfSqlState, FenceError, sqlStateOf, toFenceError } from "../../fence/errors.ts";
import { inTurn } from "../../fence/route.ts";
import { openSocket, type Route } from "../../fence/socket.ts";
import type { Clock } from "../../platform/clock.ts";
import type { Random } from "../../platform/random.ts";
import { Login } from "./auth/login.ts";
import { Channel } from "./channel.ts";
import { errorBytes, fatalOf } from "./errors.ts";
import { HEADER_BYTES, ProtocolError } from "./framer.ts";
import { Mailbox } from "./mailbox.ts";
import { BACK, cstringEnd, type ErrorFields, errorFields, errorMessage, query } from "./messages.ts";
import { READ_ONLY_DEFAULT } from "./startup.ts";

export interface UpstreamOptions {
  readonly address: DatabaseAddress;
  readonly startup: Buffer;
  /** For a pooler that refuses `startup` for its read-only default; `steps` find out whether the role has it by itself. */
  readonly poolerStartup?: Buffer;
  readonly steps: readonly SessionStartStep[];
  readonly clock: Clock;
  readonly random: Random;
  /** Bound of the whole start, connecting included. */
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

export interface Upstream {
  readonly channel: Channel;
  /** The way that led to this server. */
  readonly route: Route;
  readonly parameters: ReadonlyMap<string, string>;
  readonly pid: number;
  readonly key: Buffer;
  /** What came behind the start (a notice, the end of the server): it belongs to the session. */
  readonly behind: Buffer;
}

/** The client is not let in; `bytes` is the ErrorResponse for it. */
export class NotAdmitted extends Error {
  override name = "NotAdmitted";
  readonly severity = "FATAL";
  /** SQLSTATE. */
  readonly code: string;
  readonly bytes: Buffer;
  /** The gate or the row refused: read the fence row before saying that the generation is over. */
  readonly byGate: boolean;
  /** The row was read: ownership is over. */
  readonly byLoss: boolean;

  constructor(code: string, text: string, bytes: Buffer, options: { byGate?: boolean; byLoss?: boolean } = {}) {
    super(text);
    this.code = code;
    this.bytes = bytes;
    this.byGate = options.byGate ?? false;
    this.byLoss = options.byLoss ?? false;
  }
}

/** Throws NotAdmitted, or the signal's reason. */
export async function openUpstream(options: UpstreamOptions): Promise<Upstream> {
  const { address, signal } = options;
  try {
    return await inTurn(address, options, (route, bound) => attempt(route, bound, options));
  } catch (error) {
    if (error instanceof NotAdmitted || signal.aborted) throw error;
    const fields = error instanceof ServerError ? error.fields : undefined;
    // About the client's parameters: the server's own words.
    if (fields?.has("C") && codeOfSqlState(sqlStateOf(error) ?? "", "LF020") === "LF020") {
      throw new NotAdmitted(fields.get("C") ?? "", fields.get("M") ?? "", errorMessage(BACK.error, fields));
    }
    throw notAdmitted(toFenceError(error, address, "opening a session"));
  }
}

function notAdmitted(fence: FenceError, options: { byGate?: boolean } = {}): NotAdmitted {
  return new NotAdmitted(fence.code, fence.message, errorBytes(fatalOf(fence)), options);
}

async function attempt(route: Route, bound: AbortSignal, options: UpstreamOptions): Promise<Upstream> {
  const { poolerStartup } = options;
  try {
    return await openOnce(route, bound, options);
  } catch (error) {
    if (!poolerStartup || !(error instanceof ServerError) || !refusesReadOnlyDefault(error)) throw error;
    return await openOnce(route, bound, { ...options, startup: poolerStartup });
  }
}

/** PgBouncer's words for a parameter that it neither tracks nor was told to ignore. */
const refusesReadOnlyDefault = (error: ServerError): boolean =>
  error.code === "08P01" && error.message === `unsupported startup parameter: ${READ_ONLY_DEFAULT}`;

async function openOnce(route: Route, bound: AbortSignal, options: UpstreamOptions): Promise<Upstream> {
  const socket = await openSocket(options.address, route, bound);
  const channel = new Channel(socket);
  const cut = (): void => channel.destroy();
  bound.addEventListener("abort", cut, { once: true });
  try {
    return await start(channel, socket, route, options);
  } catch (error) {
    channel.destroy();
    throw error instanceof ProtocolError
      ? new ProtocolError(`the server breaks the protocol: ${error.message}`)
      : error;
  } finally {
    bound.removeEventListener("abort", cut);
  }
}

/** What the server answers to the startup message or the login. */
class ServerError extends Error {
  readonly fields: ErrorFields;
  readonly severity: string;
  readonly code: string;
  readonly detail: string | undefined;
  readonly hint: string | undefined;

  constructor(fields: ErrorFields) {
    super(fields.get("M") ?? "");
    this.fields = fields;
    this.severity = fields.get("V") ?? fields.get("S") ?? "ERROR";
    this.code = fields.get("C") ?? "";
    this.detail = fields.get("D");
    this.hint = fields.get("H");
  }
}

// ---- login and session start ----

async function start(channel: Channel, socket: Socket, route: Route, options: UpstreamOptions): Promise<Upstream> {
  const mailbox = new Mailbox(channel);
  const parameters = new Map<string, string>();
  const { pid, key } = await login(mailbox, socket, options, parameters);
  for (const step of options.steps) await runStep(mailbox, step, parameters, options.address);
  return { channel, route, parameters, pid, key, behind: mailbox.rest() };
}

async function login(
  mailbox: Mailbox,
  socket: Socket,
  { address, random, startup }: UpstreamOptions,
  parameters: Map<string, string>,
): Promise<{ pid: number; key: Buffer }> {
  const endPoint = address.channelBinding === "disable" ? undefined : serverEndPoint(socket);
  const rule = address.channelBinding === "require" ? new RequiredBinding(endPoint) : undefined;
  const dialogue = new Login(address, random, endPoint);
  mailbox.send(startup);
  let loggedIn = false;
  let pid = 0;
  let key = Buffer.alloc(0);
  for (;;) {
    const { type, bytes } = await mailbox.next();
    switch (type) {
      case BACK.authentication: {
        requireNumber(bytes);
        rule?.see(bytes.subarray(5));
        const answer = await dialogue.answer(bytes.subarray(5));
        if (answer === "done") loggedIn = true;
        else if (answer) mailbox.send(answer);
        break;
      }
      case BACK.error:
        throw new ServerError(errorFields(bytes, 0, bytes.length));
      case BACK.parameterStatus:
        noteParameter(parameters, bytes);
        break;
      case BACK.backendKey:
        requireNumber(bytes);
        pid = bytes.readInt32BE(5);
        key = Buffer.from(bytes.subarray(9));
        break;
      case BACK.ready:
        if (!loggedIn) throw new ProtocolError("the server is ready before the login");
        return { pid, key };
      default:
        break; // notices, NegotiateProtocolVersion
    }
  }
}

async function runStep(
  mailbox: Mailbox,
  step: SessionStartStep,
  parameters: Map<string, string>,
  address: DatabaseAddress,
): Promise<void> {
  mailbox.send(query(step.sql));
  let failure: ErrorFields | undefined;
  for (;;) {
    const { type, bytes } = await mailbox.next();
    if (type === BACK.error) failure = errorFields(bytes, 0, bytes.length);
    if (type === BACK.parameterStatus) noteParameter(parameters, bytes);
    if (type === BACK.ready) break;
    if (failure?.get("V") === "FATAL") break;
  }
  const sqlState = failure?.get("C");
  if (step.expect === "success" ? failure === undefined : sqlState === step.expect) return;
  throw stepFailed(step, failure, address);
}

function stepFailed(step: SessionStartStep, failure: ErrorFields | undefined, address: DatabaseAddress): NotAdmitted {
  const sqlState = failure?.get("C") ?? "";
  if (sqlState.startsWith("LF") && failure) {
    // The server's words are ours already; what it says as an ERROR ends a session that has not begun.
    failure.set("S", "FATAL").set("V", "FATAL").delete("W");
    const byGate = sqlState === "LF001" || sqlState === "LF003";
    return new NotAdmitted(sqlState, failure.get("M") ?? "", errorMessage(BACK.error, failure), { byGate });
  }
  if (step.onUnexpected === "LF001") {
    const byGate = sqlState === "42501" || sqlState === "42P01";
    const error = failure ? new ServerError(failure) : new Error("no error");
    return notAdmitted(toFenceError(error, address, "entering the gate"), { byGate });
  }
  const code = codeOfSqlState(sqlState, step.onUnexpected);
  const said = failure ? `PostgreSQL says: ${failure.get("M")} (SQLSTATE ${sqlState}).` : "It was not refused.";
  return notAdmitted(
    new FenceError(code, { message: UNEXPECTED[code] ?? "the session cannot be fenced", detail: said }),
  );
}

const UNEXPECTED: Partial<Record<string, string>> = {
  LF010: "the role of this session cannot be refused by a closed gate",
  LF011: "the fence schema is missing or incomplete",
  LF012: "the role lacks a right that the fence needs",
  LF014: "two sessions met one session of the server",
};

/** Messages that begin with a number of four bytes. */
function requireNumber(bytes: Buffer): void {
  if (bytes.length >= HEADER_BYTES + 4) return;
  throw new ProtocolError(`a message ${String.fromCharCode(bytes[0] as number)} of ${bytes.length} bytes`);
}

function noteParameter(parameters: Map<string, string>, bytes: Buffer): void {
  const nameEnd = cstringEnd(bytes, 5, bytes.length);
  const valueEnd = cstringEnd(bytes, nameEnd + 1, bytes.length);
  parameters.set(bytes.toString("utf8", 5, nameEnd), bytes.toString("utf8", nameEnd + 1, valueEnd));
}
