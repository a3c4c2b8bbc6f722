/**
 * Cuts a PostgreSQL byte stream (either direction, after startup) into messages without copying them.
 *
 * Does NOT understand messages: the handler decides on each one from its first bytes. A message larger than what the
 * decision needs streams through in pieces, so memory does not grow with a message's size. Bytes of consecutive passed
 * messages go to the sink as one run.
 */

/** Where passed bytes go. The sink copies: the caller reuses `bytes` at once. */
export interface Sink {
  push(bytes: Buffer, start: number, end: number): void;
}

/** Forward the whole message. */
export const PASS = 0;
/** Leave the whole message out (the handler may have pushed something else, after `flush()`). */
export const DROP = 1;
/** Not now: keep this message and all behind it until `resume()`. */
export const HOLD = 2;
export type Action = typeof PASS | typeof DROP | typeof HOLD;

export interface MessageHandler {
  /**
   * How many bytes of this message (header included, at most `total`) must be present before `message` is called.
   * Throws `ProtocolError` when `total` is over the cap of its type: nothing was allocated for it yet.
   */
  bytesNeeded(type: number, total: number): number;
  /** `bytes[start..end)` holds at least `bytesNeeded` and at most `total` bytes of the message. */
  message(type: number, bytes: Buffer, start: number, end: number, total: number): Action;
}

/** The peer does not speak the protocol, or goes beyond a bound. The connection cannot go on. */
export class ProtocolError extends Error {
  override name = "ProtocolError";
}

export const HEADER_BYTES = 5;
const EMPTY = Buffer.alloc(0);
/** First size of the buffer for an incomplete message; it grows by doubling as bytes really arrive. */
const PARTIAL_BYTES_FIRST = 4096;

export class Framer {
  readonly #handler: MessageHandler;
  readonly #sink: Sink;
  /** Start of a message whose needed bytes have not all arrived. */
  #partial: Buffer = EMPTY;
  #partialLength = 0;
  /** Rest of a message that was decided on and still arrives. */
  #streamLeft = 0;
  #streamPass = false;
  #backlog: Buffer = EMPTY;
  #holding = false;
  // The chunk being walked: where the run of passed bytes began, and the message now decided on.
  #bytes: Buffer = EMPTY;
  #runStart = 0;
  #at = 0;
  #end = 0;
  /** The handler has decided on everything up to there. */
  #decidedEnd = 0;

  constructor(handler: MessageHandler, sink: Sink) {
    this.#handler = handler;
    this.#sink = sink;
  }

  /** Where the bytes end that were received with the message now decided on, in the same buffer. */
  get receivedEnd(): number {
    return this.#end;
  }

  /** Called by the handler inside `message`, which returns PASS: the messages up to `end`, whole ones, pass with this one. */
  passUpTo(end: number): void {
    this.#decidedEnd = end;
  }

  get holding(): boolean {
    return this.#holding;
  }

  /** A part of a message was passed, its rest has not come: nothing of our own can be put behind it. */
  get partWay(): boolean {
    return this.#streamLeft > 0 && this.#streamPass;
  }

  /** True when no byte of an unfinished message has been taken. */
  get atBoundary(): boolean {
    return this.#partialLength === 0 && this.#streamLeft === 0 && !this.#holding;
  }

  /** The beginning of a message that was not decided on. */
  get unfinished(): Buffer {
    return this.#partial.subarray(0, this.#partialLength);
  }

  /** Takes the next bytes. While holding they are kept; the caller stops reading then, so it is one chunk at most. */
  feed(bytes: Buffer, start: number, end: number): void {
    if (this.#holding) {
      this.#backlog = Buffer.concat([this.#backlog, bytes.subarray(start, end)]);
      return;
    }
    const at = this.#partialLength > 0 ? this.#finishPartial(bytes, start, end) : start;
    if (at < end) this.#walk(bytes, at, end);
  }

  /** Decides again on the held message and goes on. */
  resume(): void {
    if (!this.#holding) return;
    const backlog = this.#backlog;
    this.#backlog = EMPTY;
    this.#holding = false;
    this.#walk(backlog, 0, backlog.length);
  }

  /** Called by the handler inside `message` before it pushes its own bytes: what was passed so far goes first. */
  flush(): void {
    this.#flushTo(this.#at);
  }

  #flushTo(at: number): void {
    if (at > this.#runStart) this.#sink.push(this.#bytes, this.#runStart, at);
    this.#runStart = at;
  }

  #walk(bytes: Buffer, start: number, end: number): void {
    this.#bytes = bytes;
    this.#runStart = start;
    this.#end = end;
    this.#decidedEnd = 0;
    let at = start;
    while (at < end) {
      if (this.#streamLeft > 0) {
        at = this.#stream(at, end);
        continue;
      }
      if (end - at < HEADER_BYTES) break;
      const type = bytes[at] as number;
      const total = messageLength(bytes, at);
      if (end - at < this.#handler.bytesNeeded(type, total)) break;
      this.#at = at;
      let stop = Math.min(at + total, end);
      const action = this.#handler.message(type, bytes, at, stop, total);
      if (action === HOLD) {
        this.#flushTo(at);
        this.#hold(bytes.subarray(at, end));
        return;
      }
      if (action === DROP) {
        this.#flushTo(at);
        this.#runStart = stop;
      }
      this.#streamLeft = total - (stop - at);
      this.#streamPass = action === PASS;
      if (this.#decidedEnd > stop) stop = this.#decidedEnd;
      at = stop;
    }
    this.#flushTo(at);
    this.#bytes = EMPTY;
    if (at < end) this.#keepPartial(bytes, at, end);
  }

  #stream(at: number, end: number): number {
    const stop = Math.min(at + this.#streamLeft, end);
    this.#streamLeft -= stop - at;
    if (!this.#streamPass) {
      this.#flushTo(at);
      this.#runStart = stop;
    }
    return stop;
  }

  #hold(rest: Buffer): void {
    this.#backlog = Buffer.from(rest);
    this.#holding = true;
    this.#bytes = EMPTY;
  }

  #keepPartial(bytes: Buffer, start: number, end: number): void {
    const length = this.#partialLength + (end - start);
    if (length > this.#partial.length) {
      const grown = Buffer.allocUnsafe(Math.max(PARTIAL_BYTES_FIRST, length, 2 * this.#partialLength));
      this.#partial.copy(grown, 0, 0, this.#partialLength);
      this.#partial = grown;
    }
    bytes.copy(this.#partial, this.#partialLength, start, end);
    this.#partialLength = length;
  }

  /** Completes the incomplete message from the new bytes; returns where the rest of them begins. */
  #finishPartial(bytes: Buffer, start: number, end: number): number {
    let at = start;
    if (this.#partialLength < HEADER_BYTES) {
      const stop = Math.min(end, at + HEADER_BYTES - this.#partialLength);
      this.#keepPartial(bytes, at, stop);
      at = stop;
      if (this.#partialLength < HEADER_BYTES) return end;
    }
    const type = this.#partial[0] as number;
    const total = messageLength(this.#partial, 0);
    const needed = this.#handler.bytesNeeded(type, total);
    if (this.#partialLength < needed) {
      const stop = Math.min(end, at + needed - this.#partialLength);
      this.#keepPartial(bytes, at, stop);
      at = stop;
      if (this.#partialLength < needed) return end;
    }
    const message = this.#partial;
    const length = this.#partialLength;
    this.#partialLength = 0;
    // A large buffer served one large message; do not keep it.
    this.#partial = EMPTY;
    this.#bytes = message;
    this.#runStart = 0;
    this.#at = 0;
    this.#end = length;
    const action = this.#handler.message(type, message, 0, length, total);
    if (action === HOLD) {
      this.#hold(Buffer.concat([message.subarray(0, length), bytes.subarray(at, end)]));
      return end;
    }
    if (action === PASS) this.#flushTo(length);
    this.#bytes = EMPTY;
    this.#streamLeft = total - length;
    this.#streamPass = action === PASS;
    return at;
  }
}

/** Length of the message with its type byte; the length on the wire counts itself but not the type. */
function messageLength(bytes: Buffer, at: number): number {
  const length = bytes.readUInt32BE(at + 1);
  if (length < 4 || length > 0x7fffffff) throw new ProtocolError(`invalid message length ${length}`);
  return length + 1;
}
