/**
 * One socket of the wire: small writes gathered into one, reading that stops while the other side is behind.
 *
 * Does NOT buffer without bound: past `BEHIND_BYTES` unsent the peer that fills it is paused. What is handed to
 * `onBytes` is valid during the call only.
 */
import type { Socket } from "node:net";
import type { Sink } from "./framer.ts";

/** Unsent bytes at which the source of a channel is paused. */
const BEHIND_BYTES = 256 * 1024;
/** Silence after which the network is asked whether the other end is still there. */
const KEEPALIVE_MS = 30_000;
/** Size of the gathering buffer; larger runs are written in pieces of it. */
const GATHER_BYTES = 32 * 1024;

export class Channel implements Sink {
  readonly socket: Socket;
  onBytes: (bytes: Buffer, start: number, end: number) => void = () => {};
  /** The peer has ended its side, or the connection failed; called once. */
  onEnd: () => void = () => {};
  /** Everything written was taken by the network again, after `behind` had been true. */
  onDrain: () => void = () => {};
  #gather = Buffer.allocUnsafe(GATHER_BYTES);
  #gathered = 0;
  #ended = false;
  #paused = false;

  constructor(socket: Socket) {
    this.socket = socket;
    socket.setNoDelay(true);
    socket.setKeepAlive(true, KEEPALIVE_MS);
    socket.on("data", (chunk: Buffer) => this.onBytes(chunk, 0, chunk.length));
    socket.on("end", () => this.#end());
    socket.on("close", () => this.#end());
    // "close" follows with the same meaning.
    socket.on("error", () => {});
    socket.on("drain", () => this.onDrain());
  }

  get ended(): boolean {
    return this.#ended;
  }

  /** More is unsent than the peer seems to take. */
  get behind(): boolean {
    return this.socket.writableLength > BEHIND_BYTES;
  }

  push(bytes: Buffer, start: number, end: number): void {
    let at = start;
    while (at < end) {
      const length = Math.min(end - at, GATHER_BYTES - this.#gathered);
      bytes.copy(this.#gather, this.#gathered, at, at + length);
      this.#gathered += length;
      at += length;
      if (this.#gathered === GATHER_BYTES) this.flush();
    }
  }

  /** Writes what was pushed. */
  flush(): void {
    if (this.#gathered === 0) return;
    const length = this.#gathered;
    this.#gathered = 0;
    if (this.socket.destroyed || this.socket.writableEnded) return;
    this.socket.write(this.#gather.subarray(0, length));
    // Written at once (the usual case): the buffer is free again. Else it belongs to the socket.
    if (this.socket.writableLength > 0) this.#gather = Buffer.allocUnsafe(GATHER_BYTES);
  }

  pause(): void {
    if (this.#paused) return;
    this.#paused = true;
    this.socket.pause();
  }

  resume(): void {
    if (!this.#paused) return;
    this.#paused = false;
    this.socket.resume();
  }

  /** Sends what was pushed, then ends our side. */
  end(): void {
    this.flush();
    this.socket.end();
  }

  destroy(): void {
    this.socket.destroy();
  }

  #end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.onEnd();
  }
}
