/**
 * A new server session: connect, TLS by sslmode, log in, and the checks and admission that come before the client sees
 * anything of it (INV-4).
 */
import { connect, isIP, type Socket } from "node:net";
import { type ConnectionOptions, connect as connectTls } from "node:tls";
import type { DatabaseAddress } from "../../fence/database.ts";
import type { SessionStartStep } from "../../fence/enter.ts";
import { codeOfSqlState, FenceError, toFenceError } from "../../fence/errors.ts";
import type { Clock } from "../../platform/clock.ts";
import type { Random } from "../../platform/random.ts";
import { Login, LoginError } from "./auth/login.ts";
import { ScramError } from "./auth/scram.ts";
import { Channel } from "./channel.ts";
import { errorBytes, fatalOf } from "./errors.ts";
import { type Action, DROP, Framer, type MessageHandler, ProtocolError } from "./framer.ts";
import { BACK, cstringEnd, type ErrorFields, errorFields, errorMessage, query } from "./messages.ts";

export interface UpstreamOptions {
  readonly address: DatabaseAddress;
  readonly startup: Buffer;
  readonly steps: readonly SessionStartStep[];
  readonly clock: Clock;
  readonly random: Random;
  /** Bound of the whole start, connecting included. */
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

export interface Upstream {
  readonly channel: Channel;
  readonly parameters: ReadonlyMap<string, string>;
  readonly pid: number;
  readonly key: Buffer;
}

/** The client is not let in; `bytes` is the ErrorResponse for it. */
export class NotAdmitted extends Error {
  override name = "NotAdmitted";
  readonly bytes: Buffer;
  /** The gate refused: read the fence row before saying that the generation is over. */
  readonly byGate: boolean;
  /** pg_hba.conf has no line for this kind of connection, or the TLS handshake failed. */
  readonly mayTryOtherTls: boolean;

  constructor(text: string, bytes: Buffer, options: { byGate?: boolean; mayTryOtherTls?: boolean } = {}) {
    super(text);
    this.bytes = bytes;
    this.byGate = options.byGate ?? false;
    this.mayTryOtherTls = options.mayTryOtherTls ?? false;
  }
}

const MESSAGE_BYTES_MAX = 1024 * 1024;
const SSL_REQUEST = Buffer.from([0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]);

/** Throws NotAdmitted. */
export async function openUpstream(options: UpstreamOptions): Promise<Upstream> {
  const [first, second] = tlsAttempts(options.address);
  try {
    return await attempt({ ...options, address: first });
  } catch (error) {
    const another = error instanceof NotAdmitted && error.mayTryOtherTls && !options.signal.aborted;
    if (!second || !another) throw error;
    return await attempt({ ...options, address: second });
  }
}

/** As libpq: `allow` begins without TLS, `prefer` with it, and each tries the other when the server refuses. */
function tlsAttempts(address: DatabaseAddress): [DatabaseAddress, DatabaseAddress?] {
  const { ca: _unverified, ...plain } = address;
  if (address.sslmode === "allow")
    return [
      { ...plain, sslmode: "disable" },
      { ...plain, sslmode: "require" },
    ];
  if (address.sslmode === "prefer")
    return [
      { ...plain, sslmode: "prefer" },
      { ...plain, sslmode: "disable" },
    ];
  return [address];
}

async function attempt(options: UpstreamOptions): Promise<Upstream> {
  const { address, clock, signal } = options;
  let opened: Socket | undefined;
  let late = false;
  const destroy = (): void => void opened?.destroy();
  const cancelTimer = clock.after(options.timeoutMs, () => {
    late = true;
    destroy();
  });
  signal.addEventListener("abort", destroy, { once: true });
  try {
    const socket = await openSocket(address, (raw) => {
      opened = raw;
      if (signal.aborted) raw.destroy();
    });
    // From here on the channel reads the socket; before, TLS may have to.
    return await start(new Channel(socket), options);
  } catch (error) {
    destroy();
    if (error instanceof NotAdmitted) throw error;
    throw notReached(late ? new Error(`no answer within ${options.timeoutMs} ms`) : error, address);
  } finally {
    cancelTimer();
    signal.removeEventListener("abort", destroy);
  }
}

function notReached(error: unknown, address: DatabaseAddress): NotAdmitted {
  if (error instanceof LoginError || error instanceof ScramError || error instanceof ProtocolError) {
    const code = error instanceof ProtocolError ? "LF015" : "LF016";
    const fence = new FenceError(code, { message: `cannot log in to the database: ${error.message}`, cause: error });
    return new NotAdmitted(fence.message, errorBytes(fatalOf(fence)));
  }
  const fence = toFenceError(error, address, "opening a session");
  const mayTryOtherTls = fence.message.includes("no TLS connection");
  return new NotAdmitted(fence.message, errorBytes(fatalOf(fence)), { mayTryOtherTls });
}

// ---- socket and TLS ----

/** Opens TCP and, by sslmode, TLS. `opened` gets each socket as soon as it exists, so that it can be destroyed. */
export async function openSocket(address: DatabaseAddress, opened: (socket: Socket) => void): Promise<Socket> {
  const raw = connect({ host: address.host, port: address.port, noDelay: true });
  opened(raw);
  await once(raw, "connect");
  if (address.sslmode === "disable" || address.sslmode === "allow") return raw;
  raw.write(SSL_REQUEST);
  const answer = await firstByte(raw);
  if (answer !== 0x53) {
    if (address.sslmode === "prefer") return raw;
    throw Object.assign(new Error("the server does not support SSL"), { code: "ERR_TLS_REFUSED_BY_SERVER" });
  }
  const secure = connectTls({ ...tlsOptions(address), socket: raw });
  await once(secure, "secureConnect");
  return secure;
}

/** As libpq: require verifies the chain only when an authority is given; verify-full also the name. */
function tlsOptions(address: DatabaseAddress): ConnectionOptions {
  const verifyChain =
    address.sslmode.startsWith("verify") || (address.sslmode === "require" && address.ca !== undefined);
  return {
    rejectUnauthorized: verifyChain,
    ALPNProtocols: ["postgresql"],
    ...(address.ca === undefined ? {} : { ca: address.ca }),
    ...(isIP(address.host) ? {} : { servername: address.host }),
    host: address.host,
    ...(address.sslmode === "verify-full" ? {} : { checkServerIdentity: () => undefined }),
  };
}

function once(socket: Socket, event: "connect" | "secureConnect"): Promise<void> {
  return new Promise((resolve, reject) => {
    const done = (error?: unknown): void => {
      socket.off(event, onEvent);
      socket.off("error", done);
      socket.off("close", onClose);
      if (error) reject(error);
      else resolve();
    };
    const onEvent = (): void => done();
    const onClose = (): void => done(new Error("the connection was closed"));
    socket.once(event, onEvent);
    socket.once("error", done);
    socket.once("close", onClose);
  });
}

/** Reads exactly one byte: anything behind it belongs to TLS. */
function firstByte(socket: Socket): Promise<number> {
  return new Promise((resolve, reject) => {
    const done = (error: unknown, byte?: number): void => {
      socket.off("readable", onReadable);
      socket.off("error", onError);
      socket.off("close", onClose);
      if (byte === undefined) reject(error);
      else resolve(byte);
    };
    const onReadable = (): void => {
      const byte: Buffer | null = socket.read(1);
      if (byte) done(undefined, byte[0]);
    };
    const onError = (error: unknown): void => done(error);
    const onClose = (): void => done(new Error("the connection was closed"));
    socket.on("readable", onReadable);
    socket.once("error", onError);
    socket.once("close", onClose);
  });
}

// ---- login and session start ----

interface Received {
  readonly type: number;
  readonly bytes: Buffer;
}

/** Messages of the server one by one, while nothing is in a hurry. */
class Mailbox implements MessageHandler {
  readonly #channel: Channel;
  readonly #framer = new Framer(this, { push: () => {} });
  readonly #received: Received[] = [];
  #wake: () => void = () => {};
  #failure: unknown;

  constructor(channel: Channel) {
    this.#channel = channel;
    channel.onBytes = (bytes, start, end) => {
      try {
        this.#framer.feed(bytes, start, end);
      } catch (error) {
        this.#failure = error;
      }
      this.#wake();
    };
    channel.onEnd = () => {
      this.#failure ??= new Error("the server closed the connection");
      this.#wake();
    };
    if (channel.ended) channel.onEnd();
  }

  bytesNeeded(_type: number, total: number): number {
    if (total > MESSAGE_BYTES_MAX) throw new ProtocolError(`the server sends ${total} bytes while starting`);
    return total;
  }

  message(type: number, bytes: Buffer, start: number, end: number): Action {
    this.#received.push({ type, bytes: Buffer.from(bytes.subarray(start, end)) });
    return DROP;
  }

  async next(): Promise<Received> {
    for (;;) {
      const received = this.#received.shift();
      if (received) return received;
      if (this.#failure) throw this.#failure;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  send(bytes: Buffer): void {
    this.#channel.push(bytes, 0, bytes.length);
    this.#channel.flush();
  }
}

async function start(channel: Channel, options: UpstreamOptions): Promise<Upstream> {
  const mailbox = new Mailbox(channel);
  const parameters = new Map<string, string>();
  const { pid, key } = await login(mailbox, options, parameters);
  for (const step of options.steps) await runStep(mailbox, step, parameters, options.address);
  return { channel, parameters, pid, key };
}

async function login(
  mailbox: Mailbox,
  { address, random, startup }: UpstreamOptions,
  parameters: Map<string, string>,
): Promise<{ pid: number; key: Buffer }> {
  mailbox.send(startup);
  const dialogue = new Login(address, random);
  let loggedIn = false;
  let pid = 0;
  let key = Buffer.alloc(0);
  for (;;) {
    const { type, bytes } = await mailbox.next();
    switch (type) {
      case BACK.authentication: {
        const answer = dialogue.answer(bytes.subarray(5));
        if (answer === "done") loggedIn = true;
        else if (answer) mailbox.send(answer);
        break;
      }
      case BACK.error:
        throw refusedByServer(errorFields(bytes, 0, bytes.length), address);
      case BACK.parameterStatus:
        noteParameter(parameters, bytes);
        break;
      case BACK.backendKey:
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

/** An error before the first ReadyForQuery: about the address (ours to explain) or about the client's parameters (its own). */
function refusedByServer(fields: ErrorFields, address: DatabaseAddress): NotAdmitted {
  const sqlState = fields.get("C") ?? "";
  if (codeOfSqlState(sqlState, "LF020") === "LF020") {
    return new NotAdmitted(fields.get("M") ?? "", errorMessage(BACK.error, fields));
  }
  const fence = toFenceError(asError(fields), address, "opening a session");
  return new NotAdmitted(fence.message, errorBytes(fatalOf(fence)), { mayTryOtherTls: sqlState === "28000" });
}

function asError(fields: ErrorFields): Error {
  return Object.assign(new Error(fields.get("M") ?? ""), {
    severity: fields.get("V") ?? fields.get("S") ?? "ERROR",
    code: fields.get("C"),
    detail: fields.get("D"),
    hint: fields.get("H"),
  });
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
    return new NotAdmitted(failure.get("M") ?? "", errorMessage(BACK.error, failure), {
      byGate: sqlState === "LF001",
    });
  }
  if (step.onUnexpected === "LF001") {
    const byGate = sqlState === "42501" || sqlState === "42P01";
    const fence = toFenceError(failure ? asError(failure) : new Error("no error"), address, "entering the gate");
    return new NotAdmitted(fence.message, errorBytes(fatalOf(fence)), { byGate });
  }
  const code = codeOfSqlState(sqlState, step.onUnexpected);
  const said = failure ? `PostgreSQL says: ${failure.get("M")} (SQLSTATE ${sqlState}).` : "It was not refused.";
  const fence = new FenceError(code, { message: UNEXPECTED[code] ?? "the session cannot be fenced", detail: said });
  return new NotAdmitted(fence.message, errorBytes(fatalOf(fence)));
}

const UNEXPECTED: Partial<Record<string, string>> = {
  LF010: "the role of this session cannot be refused by a closed gate",
  LF011: "the fence schema is missing or incomplete",
  LF012: "the role lacks a right that the fence needs",
  LF014: "the session is not one session of the server",
};

function noteParameter(parameters: Map<string, string>, bytes: Buffer): void {
  const nameEnd = cstringEnd(bytes, 5, bytes.length);
  const valueEnd = cstringEnd(bytes, nameEnd + 1, bytes.length);
  parameters.set(bytes.toString("utf8", 5, nameEnd), bytes.toString("utf8", nameEnd + 1, valueEnd));
}
