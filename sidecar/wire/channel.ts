/**
 * One socket of the wire: small writes gathered into one, reading that stops while the other side is behind.
 *
 * Does NOT buffer without bound: past `BEHIND_BYTES` unsent the peer that fills it is paused. What is handed to
 * `onBytes` is valid during the call only.
 */
import type { Socket } from "node:net";
import type { Sink } from "./framer.ts";
import { type Gather, giveBack, takeGather } from "./gather.ts";
import { type Line, lineOf } from "./line.ts";

/** Unsent bytes at which the source of a channel is paused. */
const BEHIND_BYTES = 256 * 1024;

export class Channel implements Sink {
  readonly socket: Socket;
  onBytes: (bytes: Buffer, start: number, end: number) => void = () => {};
  /** The peer has ended its side, or the connection failed; called once. */
  onEnd: () => void = () => {};
  /** Something that was unsent has been taken by the network. */
  onDrain: () => void = () => {};
  readonly #line: Line;
  #gather: Gather | undefined;
  /** What the network has not taken yet, in order. */
  readonly #unsent: Gather[] = [];
  #ended = false;
  #paused = false;

  /** Of a connected socket, which is read from now on. Its options (no delay, keepalive) are those of who opened it. */
  constructor(socket: Socket) {
    this.socket = socket;
    this.#line = lineOf(socket, {
      received: (bytes, end) => this.onBytes(bytes, 0, end),
      ended: () => this.#end(),
      sent: () => this.#sent(),
    });
  }

  get ended(): boolean {
    return this.#ended;
  }

  /** More is unsent than the peer seems to take. */
  get behind(): boolean {
    return this.#line.unsent > BEHIND_BYTES;
  }

  push(bytes: Buffer, start: number, end: number): void {
    let at = start;
    while (at < end) {
      this.#gather ??= takeGather();
      at = this.#gather.take(bytes, at, end);
      if (this.#gather.full) this.flush();
    }
  }

  /** Writes what was pushed. */
  flush(): void {
    const gather = this.#gather;
    if (!gather) return;
    this.#gather = undefined;
    if (this.#line.write(gather.view())) giveBack(gather);
    else this.#unsent.push(gather);
  }

  pause(): void {
    if (this.#paused) return;
    this.#paused = true;
    this.#line.pause();
  }

  resume(): void {
    if (!this.#paused) return;
    this.#paused = false;
    this.#line.resume();
  }

  /** Sends what was pushed, then ends our side. */
  end(): void {
    this.flush();
    if (this.#ended) this.socket.destroySoon();
    else this.socket.end();
  }

  destroy(): void {
    this.socket.destroy();
  }

  #sent(): void {
    const gather = this.#unsent.shift();
    if (gather) giveBack(gather);
    this.onDrain();
  }

  #end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.onEnd();
  }
}
