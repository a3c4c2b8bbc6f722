/**
 * Looks ahead at a group of the extended protocol, up to its Sync: whether it does nothing but run one statement, or
 * nothing but prepare one. Does NOT look at the statement itself.
 */
import { HEADER_BYTES } from "./framer.ts";
import { FRONT } from "./messages.ts";
import * as reply from "./replies.ts";

/** Requests behind which the shape leaves room for an Execute and a Sync. */
const DESCRIBES_UP_TO = 6;

/** What was found of the group at hand; one serves all sessions of a thread, for the length of a call. */
export class GroupShape {
  /** Behind the Sync. */
  end = 0;
  /** Name of the statement that it binds or prepares. */
  nameStart = 0;
  nameEnd = 0;
  /** It executes. */
  runs = false;
  /** Name of the portal that it binds. */
  portalStart = 0;
  portalEnd = 0;
  /** The requests, as `replies.ts` counts them; the Sync is one of them. */
  readonly requests = new Uint8Array(8);
  length = 0;
  #bound = false;

  /**
   * Parse?, Describe?, then Bind, Describe?, Execute, or none of these, then Sync, all of them of one statement and one
   * portal. False: another shape, or not all of it is there.
   */
  read(bytes: Buffer, start: number, end: number): boolean {
    this.runs = false;
    this.length = 0;
    this.#bound = false;
    let named = false;
    for (let at = start; at + HEADER_BYTES <= end; ) {
      const stop = at + 1 + bytes.readUInt32BE(at + 1);
      if (stop > end || stop < at + HEADER_BYTES) return false;
      const type = bytes[at];
      if (type === FRONT.sync) {
        if (stop > at + HEADER_BYTES) return false;
        this.end = stop;
        this.requests[this.length++] = reply.SYNC;
        return named && this.runs === this.#bound;
      }
      if (this.runs || !this.#take(type, bytes, at + HEADER_BYTES, stop, named)) return false;
      named = true;
      at = stop;
    }
    return false;
  }

  #take(type: number | undefined, bytes: Buffer, at: number, end: number, named: boolean): boolean {
    const stop = nameEnd(bytes, at, end);
    switch (type) {
      case FRONT.parse:
        if (named) return false;
        this.requests[this.length++] = reply.PARSE;
        this.nameStart = at;
        this.nameEnd = stop;
        return true;
      case FRONT.bind: {
        const statementEnd = nameEnd(bytes, stop + 1, end);
        if (this.#bound || (named && !this.#isName(bytes, stop + 1, statementEnd))) return false;
        this.requests[this.length++] = reply.BIND;
        this.#bound = true;
        this.portalStart = at;
        this.portalEnd = stop;
        this.nameStart = stop + 1;
        this.nameEnd = statementEnd;
        return true;
      }
      case FRONT.describe:
        // One of the statement, one of the portal; who asks more is not in a hurry.
        if (this.length >= DESCRIBES_UP_TO) return false;
        this.requests[this.length++] = reply.DESCRIBE;
        return this.#describes(bytes, at, stop, named);
      case FRONT.execute:
        this.requests[this.length++] = reply.EXECUTE;
        this.runs = this.#bound && equal(bytes, at, stop, this.portalStart, this.portalEnd);
        return this.runs;
      default:
        return false;
    }
  }

  #describes(bytes: Buffer, at: number, stop: number, named: boolean): boolean {
    if (bytes[at] === 0x50) return this.#bound && equal(bytes, at + 1, stop, this.portalStart, this.portalEnd);
    return bytes[at] === 0x53 && named && this.#isName(bytes, at + 1, stop);
  }

  #isName(bytes: Buffer, start: number, end: number): boolean {
    return equal(bytes, start, end, this.nameStart, this.nameEnd);
  }
}

/** As `cstringEnd` (messages.ts), faster where there are a few bytes. */
function nameEnd(bytes: Buffer, start: number, end: number): number {
  let at = start;
  while (at < end && bytes[at] !== 0) at++;
  return at;
}

function equal(bytes: Buffer, aStart: number, aEnd: number, bStart: number, bEnd: number): boolean {
  if (aEnd - aStart !== bEnd - bStart) return false;
  for (let i = 0; i < aEnd - aStart; i++) if (bytes[aStart + i] !== bytes[bStart + i]) return false;
  return true;
}
