/**
 * The outstanding requests of a server session in order, one byte each: which reply comes next, and whether it goes to
 * the client (its own request) or nowhere (a request that the proxy put in).
 *
 * Replies are matched by what the server really sends: an error ends all requests up to the next Sync, whatever was
 * expected before.
 */
import { ProtocolError } from "./framer.ts";

export const PARSE = 1;
export const BIND = 2;
export const DESCRIBE = 3;
export const EXECUTE = 4;
export const CLOSE = 5;
export const SYNC = 6;
export const QUERY = 7;
export const FUNCTION = 8;
/** CopyDone or CopyFail of a COPY that an Execute started: no reply, but it ends the stretch in which Sync is ignored. */
export const COPY_END = 9;
/** Flag: the proxy's own request, its replies are not the client's. */
export const OWN = 0x80;
/** Flag: the proxy's own request that stands for a refused one: its error goes to the client in our words. */
export const REFUSAL = 0x40;
/** Flag: on its success a name has the meaning that was noted for it (`Names`). */
export const NOTED = 0x20;
/** Flag, with OWN: of a group between two of the client (`ApartGroup`); whatever comes of it is not the client's. */
export const APART = 0x10;
const KIND = 0x0f;

/** Requests in flight in one group of a client, a byte each; beyond it the session ends. */
export const REQUESTS_MAX = 4_194_304;

export class ReplyQueue {
  #ring = new Uint8Array(64);
  #head = 0;
  #length = 0;
  #readies = 0;
  #own = 0;
  #queries = 0;
  #executes = 0;

  get length(): number {
    return this.#length;
  }

  /** How many ReadyForQuery are still to come. */
  get readies(): number {
    return this.#readies;
  }

  /** How many of the proxy's own requests are outstanding. */
  get own(): number {
    return this.#own;
  }

  /** How many simple queries of the client are outstanding. */
  get queries(): number {
    return this.#queries;
  }

  /** How many Executes of the client are outstanding. */
  get executes(): number {
    return this.#executes;
  }

  push(code: number): void {
    if (this.#length === this.#ring.length) this.#grow();
    this.#ring[(this.#head + this.#length) & (this.#ring.length - 1)] = code;
    this.#length++;
    this.#count(code, 1);
  }

  /** The oldest request, 0 when there is none. */
  head(): number {
    return this.#length === 0 ? 0 : (this.#ring[this.#head] as number);
  }

  /** Takes the oldest request away, and the ends of COPY behind it: they are not answered. */
  shift(): void {
    do {
      this.#count(this.head(), -1);
      this.#head = (this.#head + 1) & (this.#ring.length - 1);
      this.#length--;
    } while (this.head() === COPY_END);
  }

  /** Whether the requests up to the next Sync are all the client's, and change no name's meaning. */
  get plainUntilSync(): boolean {
    for (let i = 0; i < this.#length; i++) {
      const code = this.#at(i);
      if (code & (OWN | NOTED)) return false;
      if (code === SYNC) return true;
    }
    return true;
  }

  /** How many of the requests up to the next Sync change what a name means. */
  notedUntilSync(): number {
    let noted = 0;
    for (let i = 0; i < this.#length; i++) {
      const code = this.#at(i);
      if ((code & KIND) === SYNC) break;
      if (code & NOTED) noted++;
    }
    return noted;
  }

  /** An error ended everything up to the next Sync; false when the client has not sent that Sync yet. */
  dropUntilSync(): boolean {
    while (this.#length > 0) {
      if ((this.head() & KIND) === SYNC) return true;
      this.shift();
    }
    return false;
  }

  /**
   * Whether the server waits for the COPY data of the oldest request: nothing was sent behind it, neither its end nor what makes it
   * fail, as any other request does. No Sync is sent in front of its end (copying.ts).
   */
  get copyWaits(): boolean {
    for (let i = 0; i < this.#length; i++) {
      const code = this.#at(i);
      if (code === COPY_END) return false;
      if (code === SYNC) throw new ProtocolError("the server asks for COPY data where none was expected");
    }
    return this.#length === 1;
  }

  #at(index: number): number {
    return this.#ring[(this.#head + index) & (this.#ring.length - 1)] as number;
  }

  #count(code: number, by: 1 | -1): void {
    const kind = code & KIND;
    if (kind === SYNC || kind === QUERY || kind === FUNCTION) this.#readies += by;
    if (kind === QUERY && !(code & OWN)) this.#queries += by;
    if (kind === EXECUTE && !(code & OWN)) this.#executes += by;
    if (code & OWN) this.#own += by;
  }

  #grow(): void {
    if (this.#length >= REQUESTS_MAX) throw new ProtocolError("too many requests in flight");
    const grown = new Uint8Array(this.#ring.length * 2);
    for (let i = 0; i < this.#length; i++) grown[i] = this.#at(i);
    this.#ring = grown;
    this.#head = 0;
  }
}

export const kindOf = (code: number): number => code & KIND;
