/**
 * Which texts are plain reads: one SELECT, VALUES or TABLE that calls nothing but the functions named here.
 *
 * Does NOT say that a text writes nothing: a view, an operator, a cast or a policy may call any function. It only makes
 * that rare; PostgreSQL refuses the write (bare.ts). A call that is not known counts as a write, as a function may swallow that
 * refusal, or do something that cannot be done twice. Works on bytes, allocates nothing.
 */

import {
  AS,
  BEHIND_CALL,
  BY,
  CATALOG,
  DISTINCT,
  FIRST,
  FOR,
  JOIN,
  LOCKS,
  NEVER,
  ON,
  OPENS,
  ORDERS,
  READ_WORDS,
  SIDE,
} from "./readwords.ts";
import { commentEnd, isDigit, isNamePart, isNameStart, isSpace, lineEnd } from "./scanner.ts";

const WORD_BYTES_MAX = 63;
const FNV_START = 0x811c9dc5 | 0;
const FNV_PRIME = 0x01000193;

/** Open addressing by the hash of a word; the bytes decide. */
class WordTable {
  readonly #slots = new Int16Array(1024).fill(-1);
  readonly #kinds: number[] = [];
  readonly #words: Buffer[] = [];

  constructor(lists: typeof READ_WORDS) {
    for (const [kind, list] of lists) for (const word of list.split(/\s+/)) this.#add(Buffer.from(word), kind);
  }

  #add(word: Buffer, kind: number): void {
    let slot = wordHash(word, 0, word.length) & 1023;
    while (this.#slots[slot] !== -1) slot = (slot + 1) & 1023;
    this.#slots[slot] = this.#words.length;
    this.#words.push(word);
    this.#kinds.push(kind);
  }

  /** What the word `bytes[start..end)` may do, in whatever case it is written. */
  kindOf(bytes: Buffer, start: number, end: number, hash: number): number {
    if (end - start > WORD_BYTES_MAX) return 0;
    for (let slot = hash & 1023; this.#slots[slot] !== -1; slot = (slot + 1) & 1023) {
      const index = this.#slots[slot] as number;
      if (isWord(bytes, start, end, this.#words[index] as Buffer)) return this.#kinds[index] as number;
    }
    return 0;
  }
}

const lowered = (c: number): number => (c >= 0x41 && c <= 0x5a ? c | 0x20 : c);

function isWord(bytes: Buffer, start: number, end: number, word: Buffer): boolean {
  if (end - start !== word.length) return false;
  for (let i = 0; i < word.length; i++) if (lowered(bytes[start + i] as number) !== word[i]) return false;
  return true;
}

function wordHash(bytes: Buffer, start: number, end: number): number {
  let hash = FNV_START;
  for (let at = start; at < end; at++) hash = Math.imul(hash ^ lowered(bytes[at] as number), FNV_PRIME);
  return hash ^ (hash >>> 15);
}

const TABLE = new WordTable(READ_WORDS);

// Kinds of the token before.
const START = 0;
const WORD = 1;
const QUOTED = 2;
const CLOSES = 3;
const DOT = 4;
const OTHER = 5;

/**
 * The scan of one text at a time; a single one serves all sessions of a thread, and every number that it keeps is for
 * the text at hand.
 */
class ReadScan {
  #bytes: Buffer = Buffer.alloc(0);
  #at = 0;
  #end = 0;
  #fingerprint = 0;
  /** The token before, and what it may do if it is a word; the same of the one before that. */
  #before = START;
  #beforeKind = 0;
  #earlier = START;
  #earlierKind = 0;
  /** The token before is the name behind `pg_catalog.`; or behind another qualifier. */
  #catalog = false;
  #qualified = false;
  #over = false;

  /** Fingerprint of the text, which texts share that differ in their numbers and strings only; 0: not a plain read. */
  read(bytes: Buffer, start: number, end: number, standardStrings: boolean): number {
    this.#bytes = bytes;
    this.#at = start;
    this.#end = end;
    this.#fingerprint = FNV_START;
    this.#before = START;
    this.#beforeKind = 0;
    this.#earlier = START;
    this.#earlierKind = 0;
    this.#catalog = false;
    this.#qualified = false;
    this.#over = false;
    while (this.#at < end) {
      const from = this.#at;
      if (!this.#skipBlank()) return 0;
      if (this.#at > from) continue;
      if (this.#over || !this.#token(bytes[this.#at] as number, standardStrings)) return 0;
    }
    return this.#before === START ? 0 : this.#fingerprint || 1;
  }

  /** Skips white space or one comment; false: the comment has no end. */
  #skipBlank(): boolean {
    const bytes = this.#bytes;
    while (this.#at < this.#end && isSpace(bytes[this.#at] as number)) this.#at++;
    const next = this.#at + 1 < this.#end ? bytes[this.#at + 1] : 0;
    if (bytes[this.#at] === 0x2d && next === 0x2d) {
      this.#at = lineEnd(bytes, this.#at, this.#end);
      return true;
    }
    if (bytes[this.#at] !== 0x2f || next !== 0x2a) return true;
    const stop = commentEnd(bytes, this.#at, this.#end);
    if (stop !== -1) this.#at = stop;
    return stop !== -1;
  }

  /** Takes one token; false: no read. */
  #token(c: number, standardStrings: boolean): boolean {
    if (isNameStart(c)) return this.#word();
    if (this.#before === START) return false;
    if (isDigit(c)) return this.#number();
    switch (c) {
      case 0:
        return false;
      case 0x27: // '
        return this.#string(standardStrings);
      case 0x22: // "
        return this.#quotedName();
      case 0x24: // $
        // A parameter; any other is the beginning of a string that is not looked into.
        this.#at++;
        return this.#at < this.#end && isDigit(this.#bytes[this.#at] as number) && this.#number();
      case 0x28: // (
        return this.#opens() && this.#sign(c, OTHER);
      case 0x29: // )
        return this.#sign(c, CLOSES);
      case 0x2e: // .
        return this.#sign(c, DOT);
      case 0x3b: // ;
        this.#over = true;
        return this.#sign(c, OTHER);
      default:
        return this.#sign(c, OTHER);
    }
  }

  #next(token: number, kind: number, hash: number): void {
    this.#earlier = this.#before;
    this.#earlierKind = this.#beforeKind;
    this.#before = token;
    this.#beforeKind = kind;
    this.#fingerprint = Math.imul(this.#fingerprint ^ hash, FNV_PRIME);
  }

  #sign(c: number, token: number): boolean {
    this.#at++;
    this.#next(token, 0, c);
    return true;
  }

  #word(): boolean {
    const bytes = this.#bytes;
    const start = this.#at;
    while (this.#at < this.#end && isNamePart(bytes[this.#at] as number)) this.#at++;
    const after = this.#at < this.#end ? bytes[this.#at] : 0;
    // E'…', U&'…' and the like are read by other rules.
    if (this.#at - start === 1 && (after === 0x27 || after === 0x26)) return false;
    const hash = wordHash(bytes, start, this.#at);
    const kind = TABLE.kindOf(bytes, start, this.#at, hash);
    if ((kind & NEVER) !== 0 || ((this.#beforeKind & FOR) !== 0 && (kind & LOCKS) !== 0)) return false;
    if (this.#before === START && (kind & FIRST) === 0) return false;
    if ((this.#beforeKind & DISTINCT) !== 0 && (kind & ON) !== 0) return false;
    this.#catalog = this.#before === DOT && (this.#earlierKind & CATALOG) !== 0 && !this.#qualified;
    this.#qualified = this.#before === DOT;
    this.#next(WORD, kind, hash);
    return true;
  }

  /** A parenthesis: whether it opens a call of a function that is not known. */
  #opens(): boolean {
    if (this.#before === QUOTED) return false;
    if (this.#before !== WORD) return true;
    if (this.#qualified) return this.#catalog && (this.#beforeKind & OPENS) !== 0;
    const kind = this.#beforeKind;
    // Behind AS there is a type, or a name with its columns.
    if ((kind & OPENS) !== 0 || (this.#earlierKind & AS) !== 0) return true;
    if ((kind & BY) !== 0) return (this.#earlierKind & ORDERS) !== 0;
    if ((kind & BEHIND_CALL) !== 0) return this.#earlier === CLOSES;
    // Behind another word, ILIKE say, an expression may begin with a function of that name.
    return (kind & JOIN) !== 0 && (this.#earlierKind & SIDE) !== 0;
  }

  #number(): boolean {
    while (this.#at < this.#end && isNumberPart(this.#bytes[this.#at] as number)) this.#at++;
    this.#next(OTHER, 0, 0x30);
    return true;
  }

  #string(standardStrings: boolean): boolean {
    const stop = this.#quoteEnd(0x27, standardStrings);
    if (stop === -1) return false;
    this.#at = stop;
    this.#next(OTHER, 0, 0x27);
    return true;
  }

  #quotedName(): boolean {
    const start = this.#at + 1;
    const stop = this.#quoteEnd(0x22, true);
    if (stop === -1) return false;
    this.#at = stop;
    const hash = wordHash(this.#bytes, start, stop - 1);
    if ((TABLE.kindOf(this.#bytes, start, stop - 1, hash) & NEVER) !== 0) return false;
    this.#next(QUOTED, 0, hash);
    return true;
  }

  /** Behind the closing quote; -1: there is none, or it is not certain. */
  #quoteEnd(quote: number, standardStrings: boolean): number {
    for (let at = this.#at + 1; at < this.#end; at++) {
      const c = this.#bytes[at];
      if (c === 0x5c && !standardStrings) return -1;
      if (c !== quote) continue;
      if (at + 1 >= this.#end || this.#bytes[at + 1] !== quote) return at + 1;
      at++;
    }
    return -1;
  }
}

const isNumberPart = (c: number): boolean => isDigit(c) || c === 0x2e;

const SCAN = new ReadScan();

/**
 * Fingerprint of the text `bytes[start..end)` if it is a plain read, else 0. Texts that differ only in their numbers and
 * strings share one; others may, which is harmless.
 */
export function readFingerprint(bytes: Buffer, start: number, end: number, standardStrings: boolean): number {
  return SCAN.read(bytes, start, end, standardStrings);
}
