/**
 * Opens one socket to a server: TCP or a Unix socket, keepalive, and TLS as the address wants it. The one way to reach a
 * protected database, for the fence's own statements, for sessions and for cancel requests.
 */
import { connect, isIP, type Socket } from "node:net";
import { type ConnectionOptions, connect as connectTls, getCACertificates } from "node:tls";
import { type DatabaseAddress, type Endpoint, isUnixSocket, SYSTEM_AUTHORITIES, socketPath } from "./database.ts";

/** One way to one server. */
export interface Route {
  readonly endpoint: Endpoint;
  /** Address of the endpoint's host, as resolved; empty for a Unix socket. */
  readonly ip: string;
  /** Whether TLS is asked for. */
  readonly tls: boolean;
}

/** TLS was not to be had, or what came was not to be trusted. */
export class TlsFailure extends Error {
  override name = "TlsFailure";
  readonly code: string;

  constructor(message: string, cause?: unknown) {
    super(message, { cause });
    this.code = String((cause as { code?: unknown } | undefined)?.code ?? "");
  }
}

/** Silence after which the network is asked whether the other end is still there. */
export const KEEPALIVE_MS = 30_000;
const SSL_REQUEST = Buffer.from([0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]);
const YES = 0x53;
const NO = 0x4e;
const ALPN = "postgresql";

/** Rejects with the signal's reason when it aborts; an opened socket is the caller's to end. */
export async function openSocket(address: DatabaseAddress, route: Route, signal: AbortSignal): Promise<Socket> {
  signal.throwIfAborted();
  const { endpoint, ip } = route;
  const raw = connect(isUnixSocket(endpoint) ? { path: socketPath(endpoint) } : { host: ip, port: endpoint.port });
  // Whoever waits for something is told by it; an error that nobody waits for is not the process's.
  raw.on("error", () => {});
  const stop = (): void => void raw.destroy();
  signal.addEventListener("abort", stop, { once: true });
  try {
    await once(raw, "connect");
    raw.setNoDelay(true);
    const { keepAliveIdleMs = KEEPALIVE_MS } = address;
    raw.setKeepAlive(keepAliveIdleMs > 0, keepAliveIdleMs);
    return route.tls ? await secured(raw, address, endpoint.host) : raw;
  } catch (error) {
    raw.destroy();
    throw signal.aborted ? signal.reason : error;
  } finally {
    signal.removeEventListener("abort", stop);
  }
}

async function secured(raw: Socket, address: DatabaseAddress, host: string): Promise<Socket> {
  const direct = address.sslNegotiation === "direct";
  if (!direct && !(await agreed(raw, address))) return raw;
  const secure = connectTls({ ...tlsOptions(address, host), socket: raw });
  secure.on("error", () => {});
  try {
    await once(secure, "secureConnect");
  } catch (error) {
    const hint = direct ? "; sslnegotiation=direct needs PostgreSQL 17 or newer" : "";
    throw new TlsFailure(`${(error as Error).message}${hint}`, error);
  }
  // Without it another protocol's server could be meant by whoever redirected us.
  if (direct && secure.alpnProtocol !== ALPN) {
    secure.destroy();
    throw new TlsFailure("the server takes TLS at once, and does not say that it speaks PostgreSQL's protocol");
  }
  return secure;
}

/** Asks the server for TLS. False: it has none, and that is allowed. */
async function agreed(raw: Socket, address: DatabaseAddress): Promise<boolean> {
  raw.write(SSL_REQUEST);
  const answer = await firstByte(raw);
  if (answer === NO) {
    if (address.sslmode === "prefer" && address.channelBinding !== "require") return false;
    throw new TlsFailure("the server does not support SSL");
  }
  // An error message at this place is not authenticated, so it is not shown.
  if (answer !== YES) throw new TlsFailure("the server answers the request for SSL with an error");
  // What came unencrypted behind the answer could pass for a part of the encrypted conversation.
  if (raw.readableLength > 0) throw new TlsFailure("unencrypted data came behind the answer to the request for SSL");
  return true;
}

/** As libpq: require verifies the chain only when an authority is given; verify-full also the name. */
function tlsOptions(address: DatabaseAddress, host: string): ConnectionOptions {
  const { sslmode, ca, clientCertificate } = address;
  const verifyChain = sslmode.startsWith("verify") || (sslmode === "require" && ca !== undefined);
  return {
    rejectUnauthorized: verifyChain,
    ALPNProtocols: [ALPN],
    ...(verifyChain && ca !== undefined && { ca: ca === SYSTEM_AUTHORITIES ? systemAuthorities() : ca }),
    ...(clientCertificate && {
      cert: clientCertificate.certificate,
      key: clientCertificate.key,
      ...(clientCertificate.passphrase !== undefined && { passphrase: clientCertificate.passphrase }),
    }),
    ...(address.sslSni !== false && isIP(host) === 0 && { servername: host }),
    host,
    ...(sslmode !== "verify-full" && { checkServerIdentity: () => undefined }),
  };
}

/** Those of the machine; an image without any has those that Node.js brings. */
function systemAuthorities(): string[] {
  const system = getCACertificates("system");
  return system.length > 0 ? system : getCACertificates("bundled");
}

function once(socket: Socket, event: "connect" | "secureConnect"): Promise<void> {
  return waitFor(socket, event, () => true).then(() => undefined);
}

/** Reads exactly one byte: anything behind it belongs to TLS. */
function firstByte(socket: Socket): Promise<number> {
  return waitFor(socket, "readable", () => (socket.read(1) as Buffer | null)?.[0]);
}

/** Resolves with the first result of `look` after an `event`; rejects when `who` ends the connection before. */
export function waitFor<T>(
  socket: Socket,
  event: string,
  look: () => T | undefined,
  who: "server" | "client" = "server",
): Promise<T> {
  return new Promise((resolve, reject) => {
    const done = (settle: () => void): void => {
      socket.off(event, onEvent).off("error", onError).off("end", onEnd).off("close", onClose);
      settle();
    };
    const onEvent = (): void => {
      const found = look();
      if (found !== undefined) done(() => resolve(found));
    };
    const onError = (error: Error): void => done(() => reject(error));
    const onClose = (): void => done(() => reject(new Error(`the ${who} closed the connection`)));
    // One that may stay half open does not close by itself when its peer ends.
    const onEnd = (): void => {
      if (socket.allowHalfOpen) onClose();
    };
    socket.on(event, onEvent).once("error", onError).once("end", onEnd).once("close", onClose);
    if (socket.destroyed) onClose();
  });
}
