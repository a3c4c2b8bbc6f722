/**
 * A client's connection up to its startup message: TLS if it wants that and there is a certificate, or a cancel request.
 *
 * Does NOT demand TLS, and does not ask who the client is: the port is on loopback, or its operator's business.
 */
import type { Socket } from "node:net";
import { createSecureContext, type SecureContext, TLSSocket } from "node:tls";
import { waitFor } from "../../fence/socket.ts";
import { ProtocolError } from "./framer.ts";
import { beginsTls, readFirst, type Startup } from "./startup.ts";

/** PEM texts of the certificate that clients are shown. */
export interface ServerCertificate {
  readonly certificate: string;
  readonly key: string;
}

/** What a connection turns out to be for. `socket` is where it goes on: the raw one, or that of TLS. */
export type Opening =
  | { readonly kind: "startup"; readonly socket: Socket; readonly startup: Startup; readonly behind: Buffer }
  | { readonly kind: "cancel"; readonly socket: Socket; readonly pid: number; readonly key: Buffer }
  /** `socket` can still be told why. */
  | { readonly kind: "refused"; readonly socket: Socket; readonly error: ProtocolError };

const ALPN = "postgresql";

export const secureContextOf = ({ certificate, key }: ServerCertificate): SecureContext =>
  createSecureContext({ cert: certificate, key });

/** Rejects when the connection ends, by the client or because `raw` was destroyed. */
export async function open(raw: Socket, context: SecureContext | undefined): Promise<Opening> {
  const connection = new Connection(raw, context);
  try {
    return await connection.open();
  } catch (error) {
    if (!(error instanceof ProtocolError)) throw error;
    return { kind: "refused", socket: connection.socket, error };
  }
}

class Connection {
  socket: Socket;
  readonly #context: SecureContext | undefined;
  #received: Buffer = Buffer.alloc(0);

  constructor(raw: Socket, context: SecureContext | undefined) {
    this.socket = raw;
    this.#context = context;
    raw.on("error", () => {});
  }

  async open(): Promise<Opening> {
    const { socket: raw } = this;
    for (;;) {
      const context = this.socket === raw ? this.#context : undefined;
      if (context && beginsTls(this.#received)) {
        await this.#beginTls(context);
        // As PostgreSQL: who begins with TLS must say for which protocol, or a server of another one could be meant.
        if (this.alpn !== ALPN) throw new ProtocolError("direct TLS needs the ALPN protocol postgresql");
      }
      const first = readFirst(this.#received);
      if (!first) {
        await this.#more();
        continue;
      }
      this.#received = this.#received.subarray(first.bytes);
      const { socket } = this;
      if (first.kind === "startup") return { ...first, socket, behind: this.#received };
      if (first.kind === "cancel") return { ...first, socket };
      if (first.kind === "ssl" && context) await this.#agreeToTls(context);
      else socket.write("N");
    }
  }

  async #agreeToTls(context: SecureContext): Promise<void> {
    // Whoever stands in between could have put it there, to pass for a part of the encrypted conversation.
    if (this.#received.length > 0) throw new ProtocolError("unencrypted data came behind the request for SSL");
    this.socket.write("S");
    await this.#beginTls(context);
  }

  get alpn(): string | false | null {
    return this.socket instanceof TLSSocket ? this.socket.alpnProtocol : null;
  }

  async #beginTls(secureContext: SecureContext): Promise<void> {
    const raw = this.socket;
    // What was read of a handshake belongs to TLS.
    if (this.#received.length > 0) raw.unshift(this.#received);
    this.#received = Buffer.alloc(0);
    const secure = new TLSSocket(raw, { isServer: true, secureContext, ALPNProtocols: [ALPN] });
    secure.on("error", () => {});
    this.socket = secure;
    await waitFor(secure, "secure", () => true, "client");
  }

  /** Takes all that there is: a channel may read below the stream, and only promises lie between here and there. */
  async #more(): Promise<void> {
    const { socket } = this;
    const chunk = await waitFor(socket, "readable", (): Buffer | undefined => socket.read() ?? undefined, "client");
    this.#received = Buffer.concat([this.#received, chunk]);
  }
}
