/**
 * Splits SQL text into statements as PostgreSQL does, and gives the first words of each. Works on bytes, without
 * decoding them.
 */
import { TELLING_WORDS } from "./statements.ts";

export interface LexOptions {
  /** standard_conforming_strings of the session. */
  readonly standardStrings: boolean;
}

/** Words of one statement that are looked at. */
const WORDS_MAX = 24;

const NEWLINE = 0x0a;
const RETURN = 0x0d;
const QUOTE = 0x27;
const DOUBLE_QUOTE = 0x22;
const DOLLAR = 0x24;
const DASH = 0x2d;
const SLASH = 0x2f;
const STAR = 0x2a;
const BACKSLASH = 0x5c;
const SEMICOLON = 0x3b;
const OPEN = 0x28;
const CLOSE = 0x29;

export const isSpace = (c: number): boolean => c === 0x20 || (c >= 0x09 && c <= 0x0d);
export const isDigit = (c: number): boolean => c >= 0x30 && c <= 0x39;
export const isNameStart = (c: number): boolean =>
  (c >= 0x61 && c <= 0x7a) || (c >= 0x41 && c <= 0x5a) || c === 0x5f || c >= 0x80;
export const isNamePart = (c: number): boolean => isNameStart(c) || isDigit(c) || c === DOLLAR;

/** Where the line that `at` is in ends: a comment that begins with -- goes so far. */
export function lineEnd(bytes: Buffer, at: number, end: number): number {
  let stop = at;
  while (stop < end && bytes[stop] !== NEWLINE && bytes[stop] !== RETURN) stop++;
  return stop;
}

/** Behind the comment that begins at `start`, and those inside of it; -1: it has no end. */
export function commentEnd(bytes: Buffer, start: number, end: number): number {
  let depth = 0;
  for (let at = start; at + 1 < end; ) {
    const opens = bytes[at] === SLASH && bytes[at + 1] === STAR;
    const closes = bytes[at] === STAR && bytes[at + 1] === SLASH;
    at += opens || closes ? 2 : 1;
    if (opens) depth++;
    else if (closes && --depth === 0) return at;
  }
  return -1;
}

export class Scanner {
  readonly #bytes: Buffer;
  readonly #end: number;
  readonly #options: LexOptions;
  #at: number;
  #parens = 0;
  /** Between BEGIN ATOMIC and END, in the body of an SQL function: its semicolons separate nothing. */
  #inBody = false;
  /** The token before: a word, a semicolon, or empty for any other. */
  #last = "";
  #wordIsCut = false;
  /** The first word has told the kind: further words are not decoded, only the statement's end is looked for. */
  #told = false;

  constructor(bytes: Buffer, start: number, end: number, options: LexOptions) {
    this.#bytes = bytes;
    this.#at = start;
    this.#end = end;
    this.#options = options;
  }

  get atEnd(): boolean {
    return this.#at >= this.#end;
  }

  /** The last word touches the end of what is looked at. */
  get wordIsCut(): boolean {
    return this.#wordIsCut;
  }

  /**
   * The next statement that is not empty: its first words and where its first token is. `untilTold`: stop as soon as
   * its kind is clear; nothing may be asked after that.
   */
  next(untilTold = false): { offset: number; words: string[] } | undefined {
    const words: string[] = [];
    let offset = -1;
    this.#parens = 0;
    this.#inBody = false;
    this.#last = "";
    this.#told = false;
    while (this.#at < this.#end) {
      const c = this.#bytes[this.#at] as number;
      if (this.#skipBlank(c)) continue;
      if (c === SEMICOLON) {
        this.#at++;
        this.#last = ";";
        if (offset !== -1 && this.#parens === 0 && !this.#inBody) return { offset, words };
        continue;
      }
      if (offset === -1) offset = this.#at;
      if (isNameStart(c)) {
        this.#nextWord(words);
        if (untilTold && (words.length === WORDS_MAX || this.#told)) break;
      } else {
        this.#last = "";
        this.#token(c, words);
      }
    }
    return offset === -1 ? undefined : { offset, words };
  }

  #nextWord(words: string[]): void {
    const before = this.#last;
    const word = this.#word(words);
    if (this.#told) return;
    this.#last = word;
    if (this.#inBody) {
      // Neither CASE, BEGIN nor END is counted: they can be names. But the body's own END, and no other, is where a
      // statement would begin.
      if (word === "END" && before === ";") this.#inBody = false;
    } else if (word === "ATOMIC" && before === "BEGIN" && this.#parens === 0 && createsRoutine(words)) {
      this.#inBody = true;
      // Here, too, a statement would begin; behind an ATOMIC further on, which is a name, it would not.
      this.#last = ";";
    }
    if (words.length < WORDS_MAX) words.push(word);
    // Only what CREATE begins has a body.
    this.#told = words.length === 1 && !TELLING_WORDS.has(word);
  }

  /** Skips one piece of white space or one comment. */
  #skipBlank(c: number): boolean {
    if (isSpace(c)) {
      this.#at++;
      return true;
    }
    const next = this.#at + 1 < this.#end ? this.#bytes[this.#at + 1] : 0;
    if (c === DASH && next === DASH) {
      this.#skipLine();
      return true;
    }
    if (c === SLASH && next === STAR) {
      this.#skipComment();
      return true;
    }
    return false;
  }

  #skipLine(): void {
    this.#at = lineEnd(this.#bytes, this.#at, this.#end);
  }

  #skipComment(): void {
    const stop = commentEnd(this.#bytes, this.#at, this.#end);
    this.#at = stop === -1 ? this.#end : stop;
  }

  /** A name or key word, and the string that it introduces (E'…', B'…', X'…'). */
  #word(words: string[]): string {
    const start = this.#at;
    while (this.#at < this.#end && isNamePart(this.#bytes[this.#at] as number)) this.#at++;
    this.#wordIsCut = this.#at >= this.#end;
    const length = this.#at - start;
    if (length === 1 && this.#bytes[this.#at] === QUOTE) {
      const letter = (this.#bytes[start] as number) | 0x20;
      if (letter === 0x65) {
        this.#string(true, words);
        return "";
      }
      if (letter === 0x62 || letter === 0x78) {
        this.#bits();
        return "";
      }
      // N'…' and the like are a word and a string of their own.
    }
    if (this.#told) return "";
    // Key words are at most 17 letters long, names of settings 30; a longer name need not be told from another.
    return length <= 40 ? this.#text(start, this.#at) : "";
  }

  #text(start: number, end: number): string {
    return this.#bytes.toString("latin1", start, Math.min(end, start + 40)).toUpperCase();
  }

  /** Anything that is neither blank nor a name. A quoted name counts as a word without text, save that of a setting. */
  #token(c: number, words: string[]): void {
    if (c === QUOTE) this.#string(!this.#options.standardStrings, words);
    else if (c === DOUBLE_QUOTE) {
      const start = this.#at;
      this.#quoted(DOUBLE_QUOTE, false);
      if (words.length < WORDS_MAX) words.push(isSetting(words) ? this.#text(start + 1, this.#at - 1) : "");
    } else if (c === DOLLAR) this.#dollar(words);
    else if (isDigit(c)) {
      const start = this.#at;
      this.#number();
      this.#value(words, start, this.#at);
    } else {
      if (c === OPEN) this.#parens++;
      else if (c === CLOSE && this.#parens > 0) this.#parens--;
      this.#at++;
    }
  }

  /** The value that a SET gives counts as a word. */
  #value(words: string[], start: number, end: number): void {
    if (isSetting(words) && words.length < WORDS_MAX) words.push(this.#text(start, end));
  }

  /** Its digits. Letters behind them are a word to PostgreSQL 14, dollars in it included, and to others an error or no matter. */
  #number(): void {
    while (this.#at < this.#end) {
      const c = this.#bytes[this.#at] as number;
      if (!isDigit(c) && c !== 0x2e) return;
      this.#at++;
    }
  }

  /** A string constant, and its continuations on later lines, which are read by the same rule. */
  #string(backslashes: boolean, words: string[]): void {
    do {
      const start = this.#at;
      this.#quoted(QUOTE, backslashes);
      this.#value(words, start + 1, this.#at - 1);
    } while (this.#goesOn());
  }

  /** B'…' or X'…', and its continuations: neither a backslash nor a second quote is part of it. */
  #bits(): void {
    do {
      const close = this.#bytes.indexOf(QUOTE, this.#at + 1);
      this.#at = close === -1 || close >= this.#end ? this.#end : close + 1;
    } while (this.#goesOn());
  }

  /** Whether the constant before goes on behind a new line: then at the quote there. */
  #goesOn(): boolean {
    const after = this.#at;
    let newline = false;
    while (this.#at < this.#end) {
      const c = this.#bytes[this.#at] as number;
      if (c === NEWLINE || c === RETURN) newline = true;
      if (isSpace(c)) this.#at++;
      else if (c === DASH && this.#bytes[this.#at + 1] === DASH) this.#skipLine();
      else break;
    }
    if (newline && this.#at < this.#end && this.#bytes[this.#at] === QUOTE) return true;
    this.#at = after;
    return false;
  }

  #quoted(quote: number, backslashes: boolean): void {
    this.#at++;
    while (this.#at < this.#end) {
      const c = this.#bytes[this.#at] as number;
      if (c === quote) {
        this.#at++;
        if (this.#at >= this.#end || this.#bytes[this.#at] !== quote) return;
        this.#at++;
      } else this.#at += c === BACKSLASH && backslashes ? 2 : 1;
    }
    this.#at = this.#end;
  }

  /** `$tag$ … $tag$`, or a parameter `$1`, or a lone dollar. */
  #dollar(words: string[]): void {
    let at = this.#at + 1;
    if (at < this.#end && isNameStart(this.#bytes[at] as number)) {
      while (at < this.#end && (isNameStart(this.#bytes[at] as number) || isDigit(this.#bytes[at] as number))) at++;
    }
    if (at >= this.#end || this.#bytes[at] !== DOLLAR) {
      this.#at++;
      return;
    }
    const tag = this.#bytes.subarray(this.#at, at + 1);
    const close = this.#bytes.indexOf(tag, at + 1);
    this.#value(words, at + 1, close === -1 ? this.#end : close);
    this.#at = close === -1 || close + tag.length > this.#end ? this.#end : close + tag.length;
  }
}

const isSetting = ([first]: readonly string[]): boolean => first === "SET" || first === "RESET" || first === "SHOW";

/** BEGIN ATOMIC, next to each other and outside of parentheses, are the beginning of a body there and nothing else. */
function createsRoutine([first, second, third, fourth]: readonly string[]): boolean {
  const noun = second === "OR" && third === "REPLACE" ? fourth : second;
  return first === "CREATE" && (noun === "FUNCTION" || noun === "PROCEDURE");
}
