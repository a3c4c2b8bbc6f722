/**
 * Looks ahead at a group of the extended protocol, up to its Sync: whether it does nothing but run one statement, or
 * nothing but prepare one. Does NOT look at the statement itself.
 */
import { cstringEnd, FRONT } from "./messages.ts";

/** What was found of the group at hand; one serves all sessions of a thread, for the length of a call. */
export class GroupShape {
  /** Behind the Sync. */
  end = 0;
  /** Text of its Parse; -1: there is none. */
  textStart = -1;
  textEnd = -1;
  /** Name of the statement that it binds or prepares. */
  nameStart = 0;
  nameEnd = 0;
  /** It executes. */
  runs = false;
  #portalStart = 0;
  #portalEnd = 0;
  #bound = false;

  /**
   * Parse?, Describe?, then Bind, Describe?, Execute, or none of these, then Sync, all of them of one statement and one
   * portal. False: another shape, or not all of it is there.
   */
  read(bytes: Buffer, start: number, end: number): boolean {
    this.textStart = -1;
    this.runs = false;
    this.#bound = false;
    let named = false;
    for (let at = start; at + 5 <= end; ) {
      const stop = at + 1 + bytes.readUInt32BE(at + 1);
      if (stop > end || stop < at + 5) return false;
      const type = bytes[at];
      if (type === FRONT.sync) {
        this.end = stop;
        return named && this.runs === this.#bound;
      }
      if (this.runs || !this.#take(type, bytes, at + 5, stop, named)) return false;
      named = true;
      at = stop;
    }
    return false;
  }

  #take(type: number | undefined, bytes: Buffer, at: number, end: number, named: boolean): boolean {
    const stop = cstringEnd(bytes, at, end);
    switch (type) {
      case FRONT.parse:
        if (named) return false;
        this.nameStart = at;
        this.nameEnd = stop;
        this.textStart = stop + 1;
        this.textEnd = cstringEnd(bytes, stop + 1, end);
        return true;
      case FRONT.bind: {
        const nameEnd = cstringEnd(bytes, stop + 1, end);
        if (this.#bound || (named && !this.#isName(bytes, stop + 1, nameEnd))) return false;
        this.#bound = true;
        this.#portalStart = at;
        this.#portalEnd = stop;
        this.nameStart = stop + 1;
        this.nameEnd = nameEnd;
        return true;
      }
      case FRONT.describe:
        return this.#describes(bytes, at, stop, named);
      case FRONT.execute:
        this.runs = this.#bound && equal(bytes, at, stop, this.#portalStart, this.#portalEnd);
        return this.runs;
      default:
        return false;
    }
  }

  #describes(bytes: Buffer, at: number, stop: number, named: boolean): boolean {
    if (bytes[at] === 0x50) return this.#bound && equal(bytes, at + 1, stop, this.#portalStart, this.#portalEnd);
    return bytes[at] === 0x53 && named && this.#isName(bytes, at + 1, stop);
  }

  #isName(bytes: Buffer, start: number, end: number): boolean {
    return equal(bytes, start, end, this.nameStart, this.nameEnd);
  }
}

function equal(bytes: Buffer, aStart: number, aEnd: number, bStart: number, bEnd: number): boolean {
  if (aEnd - aStart !== bEnd - bStart) return false;
  for (let i = 0; i < aEnd - aStart; i++) if (bytes[aStart + i] !== bytes[bStart + i]) return false;
  return true;
}
