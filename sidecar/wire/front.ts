/**
 * The client's messages: each is passed, gets the fence in front of it, waits, or is refused before it starts.
 *
 * Does NOT make a refusal up by itself: in place of a refused message PostgreSQL gets a statement that fails, so that
 * its transaction state and the client's idea of it stay one (the reply goes through `Back`).
 */
import { Copying } from "./copying.ts";
import type { Core } from "./core.ts";
import { COUNTER } from "./counters.ts";
import { errorBytes, type WireError } from "./errors.ts";
import { ExtendedProtocol } from "./extended.ts";
import { type Action, DROP, Framer, HEADER_BYTES, HOLD, type MessageHandler, PASS, ProtocolError } from "./framer.ts";
import { BACK, FRONT, IDLE, message, readyForQuery } from "./messages.ts";
import { Outgoing } from "./outgoing.ts";
import { QUERY_BYTES_MAX, SimpleProtocol } from "./simple.ts";

/** Beginning of a Parse that is looked at. */
const PARSE_BYTES_SEEN = 64 * 1024;
/** Beginning of a Bind that must hold its two names. */
const BIND_BYTES_SEEN = 4 * 1024;
/** Messages that are one name or nothing. */
const SMALL_BYTES_MAX = 64 * 1024;

const PARSE_COMPLETE = message(BACK.parseComplete, Buffer.alloc(0));

/** As the server says it; between the two runs of a bare request it has nothing to cancel. */
const CANCELLED: WireError = { severity: "ERROR", code: "57014", message: "canceling statement due to user request" };

/** What a client may send while the server waits for COPY data. */
const BELONGS_TO_COPY = new Set<number>([FRONT.copyData, FRONT.copyDone, FRONT.copyFail, FRONT.flush]);

export class Front implements MessageHandler {
  readonly framer: Framer;
  /** Ownership turns out to be lost: ends the session with the reason. */
  readonly lost: () => void;
  readonly out: Outgoing;
  readonly #core: Core;
  readonly #simple: SimpleProtocol;
  readonly #extended: ExtendedProtocol;
  readonly #copying: Copying;

  /** `end`: ends the session with an error. */
  constructor(core: Core, lost: () => void, end: (bytes: Buffer) => void) {
    this.#core = core;
    this.lost = lost;
    this.framer = new Framer(this, core.host.toServer);
    this.out = new Outgoing(core, () => this.framer.flush(), lost, end);
    this.#simple = new SimpleProtocol(core, this.out);
    this.#copying = new Copying(core, this.out);
    this.#extended = new ExtendedProtocol(core, this.out, this.framer, this.#copying);
  }

  /** Sends a bare request again that PostgreSQL refused: fenced, as its phase says. Nothing is in flight. */
  repeat(): void {
    const core = this.#core;
    const { bare, host } = core;
    const { bytes, length } = bare.request;
    if (bare.parsed) this.out.answer(PARSE_COMPLETE);
    if (bare.cancelled) {
      this.out.answer(errorBytes(CANCELLED));
      this.out.answer(readyForQuery(IDLE));
    } else {
      for (let at = 0; at < length; ) {
        const total = 1 + bytes.readUInt32BE(at + 1);
        const type = bytes[at] as number;
        // Its statement is there: a Parse is not undone by an error.
        if (!bare.parsed || type !== FRONT.parse) {
          host.counters.add(COUNTER.messages, -1);
          const action = this.message(type, bytes, at, at + total, total);
          if (action === HOLD) break; // ownership has ended, and the client is told so
          if (action === PASS) this.out.push(bytes.subarray(at, at + total));
        }
        at += total;
      }
    }
    bare.phase = bare.cancelled ? "none" : "again";
    // Answered here: no answer of the server comes that would let go on what has waited.
    if (bare.cancelled) this.framer.resume();
  }

  bytesNeeded(type: number, total: number): number {
    switch (type) {
      case FRONT.query:
        return total > QUERY_BYTES_MAX ? 5 : total;
      case FRONT.parse:
        return Math.min(total, PARSE_BYTES_SEEN);
      case FRONT.bind:
        return Math.min(total, BIND_BYTES_SEEN);
      case FRONT.copyData:
      case FRONT.functionCall:
        return 5;
      case FRONT.describe:
      case FRONT.execute:
      case FRONT.close:
      case FRONT.copyFail:
        if (total > SMALL_BYTES_MAX) throw new ProtocolError(`message ${String.fromCharCode(type)} of ${total} bytes`);
        return total;
      case FRONT.sync:
      case FRONT.flush:
      case FRONT.copyDone:
      case FRONT.terminate:
        // An error in answer to a Flush would fit no request, and the server would wait for a Sync that nobody owes.
        if (total > HEADER_BYTES) throw new ProtocolError(`message ${String.fromCharCode(type)} of ${total} bytes`);
        return total;
      default:
        throw new ProtocolError(`unknown message type 0x${type.toString(16)} from the client`);
    }
  }

  message(type: number, bytes: Buffer, start: number, end: number, total: number): Action {
    const core = this.#core;
    if (core.ending && type !== FRONT.terminate) return HOLD;
    core.host.counters.add(COUNTER.messages);
    if (type !== FRONT.sync && type !== FRONT.terminate) {
      if (core.dropping) return DROP;
      if (core.discarding) return PASS;
      // The server would end the session, too; held, the message would wait for an end of COPY that waits behind it.
      if ((core.copyIn || core.copyInSimple) && !BELONGS_TO_COPY.has(type)) return this.out.fatal(notInCopy(type));
    }
    switch (type) {
      case FRONT.copyData:
        return this.#copying.data();
      case FRONT.flush:
        return PASS;
      case FRONT.terminate:
        if (core.bare.unheard && !core.ending) return this.out.wait();
        core.terminated = true;
        return PASS;
      case FRONT.copyDone:
      case FRONT.copyFail:
        return this.#copying.end(type);
      case FRONT.sync:
        return this.#extended.sync();
      case FRONT.query:
        return this.#simple.query(bytes, start, end, total);
      case FRONT.functionCall:
        return this.#simple.functionCall();
      default:
        return this.#extended.request(type, bytes, start, end, total);
    }
  }
}

function notInCopy(type: number): WireError {
  return {
    severity: "FATAL",
    code: "08P01",
    message: `unexpected message type 0x${type.toString(16).toUpperCase()} during COPY from stdin`,
    hint: "Send CopyDone or CopyFail first.",
  };
}
