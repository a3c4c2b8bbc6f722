/** Joins a client's channel and a server's channel through a Session: bytes, back-pressure, ends. */
import type { FenceIdentity } from "../../fence/database.ts";
import type { Permit } from "../../lease/permit.ts";
import type { Clock } from "../../platform/clock.ts";
import type { KnownWriters } from "./bare.ts";
import type { Channel } from "./channel.ts";
import type { FenceBytes, SessionHost } from "./core.ts";
import type { Counters } from "./counters.ts";
import { errorBytes, type WireError } from "./errors.ts";
import { ProtocolError } from "./framer.ts";
import { Session } from "./session.ts";
import type { VerdictReader } from "./verdict.ts";

export interface RelayOptions {
  readonly client: Channel;
  readonly server: Channel;
  readonly identity: FenceIdentity;
  readonly fence: FenceBytes;
  readonly permit: Permit;
  readonly clock: Clock;
  readonly counters: Counters;
  readonly verdict: VerdictReader;
  readonly readOnlyDefault: boolean;
  readonly standardStrings: boolean;
  readonly writers: KnownWriters;
  readonly onClosed: () => void;
}

/** A client that does not take its last message is cut off after this. */
export const LAST_MESSAGE_MS_MAX = 5_000;
const NOTHING: Buffer = Buffer.alloc(0);

export class Relay {
  readonly #options: RelayOptions;
  readonly #session: Session;
  #closed = false;
  #ending = false;
  #clientEnded = false;

  constructor(options: RelayOptions) {
    this.#options = options;
    const { client, server, permit, clock } = options;
    const host: SessionHost = {
      toClient: client,
      toServer: server,
      counters: options.counters,
      permit: () => permit.state(clock.monoMs()),
      permitEndedMsAgo: () => Math.max(0, clock.monoMs() - permit.deadlineMs()),
      verdict: (ended, done) => {
        void options.verdict(ended).then((verdict) => {
          if (!this.#closed) this.#run(() => done(verdict));
        });
      },
      closeServer: () => server.end(),
      end: () => this.#end(),
    };
    this.#session = new Session({ ...options, host });
    // Made once: for every chunk a closure of its own would be garbage on the hot path.
    const fromClient = this.#session.fromClient.bind(this.#session);
    const fromServer = this.#session.fromServer.bind(this.#session);
    client.onBytes = (bytes, start, end) => this.#run(fromClient, bytes, start, end);
    server.onBytes = (bytes, start, end) => this.#run(fromServer, bytes, start, end);
    client.onDrain = () => this.#settle();
    server.onDrain = () => this.#settle();
    client.onEnd = () => this.#onClientEnd();
    server.onEnd = () => this.#run(() => this.#onServerEnd());
  }

  get busy(): boolean {
    return this.#session.busy;
  }

  get cancellable(): boolean {
    return this.#session.cancellable;
  }

  setCancelling(cancelling: boolean): void {
    this.#run(() => this.#session.setCancelling(cancelling));
  }

  /** Ownership is over for good. */
  lose(): void {
    this.#run(() => this.#session.lose());
  }

  /** Ends the session with a reason, or with what the client must know before that. */
  end(reason: WireError): void {
    this.#endWith(this.#session.farewell(reason));
  }

  #endWith(bytes: Buffer): void {
    if (this.#ending || this.#closed) return;
    if (!this.#session.clientPartWay) this.#options.client.push(bytes, 0, bytes.length);
    this.#end();
  }

  #run(step: (bytes: Buffer, start: number, end: number) => void, bytes = NOTHING, start = 0, end = 0): void {
    if (this.#closed) return;
    try {
      step(bytes, start, end);
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      const message = `protocol violation: ${error.message}`;
      this.#endWith(errorBytes({ severity: "FATAL", code: "08P01", message }));
    }
    this.#settle();
  }

  /** Writes what was pushed and lets each side be read as far as the other keeps up. */
  #settle(): void {
    if (this.#closed || this.#ending) return;
    const { client, server } = this.#options;
    server.flush();
    client.flush();
    if (this.#session.clientHeld || server.behind) client.pause();
    else client.resume();
    if (this.#session.serverHeld || client.behind) server.pause();
    else server.resume();
    // Messages that waited when the client left are the client's will still.
    if (this.#clientEnded && !this.#session.clientUnserved) server.end();
  }

  #onClientEnd(): void {
    this.#clientEnded = true;
    if (this.#ending || this.#options.client.socket.destroyed) this.#close();
    else this.#settle();
  }

  #onServerEnd(): void {
    if (this.#clientEnded || this.#ending) this.#close();
    else this.#session.serverClosed();
  }

  #end(): void {
    if (this.#ending) return;
    this.#ending = true;
    const { client, server, clock } = this.#options;
    client.end();
    server.destroy();
    // Nothing more is heard, but read on: a paused socket does not tell that the client has gone, too.
    client.onBytes = () => {};
    client.resume();
    if (client.ended) this.#close();
    else clock.after(LAST_MESSAGE_MS_MAX, () => this.#close());
  }

  #close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#options.client.destroy();
    this.#options.server.destroy();
    this.#options.onClosed();
  }
}
