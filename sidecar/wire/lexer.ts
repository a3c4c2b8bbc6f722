/**
 * Splits SQL text into statements and says of each what it does to transactions, from its first words only.
 *
 * Does NOT parse SQL: what it cannot tell is `plain`, and plain statements are fenced, so a misjudged one is refused by
 * the server (read-only transaction) rather than run unfenced. Works on bytes, without decoding them.
 */

export type StatementKind =
  /** Fenced: anything that may write, and anything unknown. */
  | "plain"
  | "begin"
  | "commit"
  | "rollback"
  /** ROLLBACK TO SAVEPOINT: may give back the lock on the gate. */
  | "rollbackTo"
  /** SET TRANSACTION: must come before any snapshot of its block. */
  | "setTransaction"
  /** SET, SHOW (but of transaction_read_only), RESET, LISTEN, DISCARD, DEALLOCATE …: needs no fence, or cannot be in a block. */
  | "session"
  /** SET SESSION CHARACTERISTICS / default_transaction_read_only: the client's own default. */
  | "setDefault"
  /** Fenced in a block; outside of one the server refuses it: SAVEPOINT, LOCK, DECLARE without hold. */
  | "inBlock"
  /** Runs outside of any block only: VACUUM, CREATE INDEX CONCURRENTLY, CREATE DATABASE … */
  | "noBlock"
  /** CALL and DO: outside of a block they may end transactions and begin new ones. */
  | "procedure"
  /** EXECUTE, which also runs what the protocol prepared, a COMMIT too; and a name that cannot be compared (names.ts). */
  | "unknown"
  /** Only the beginning of the text was looked at, and it does not tell. */
  | "unseen"
  /** PREPARE TRANSACTION, COMMIT PREPARED, ROLLBACK PREPARED. */
  | "twoPhase";

export interface Statement {
  readonly kind: StatementKind;
  /** Byte offset of its first token in the text. */
  readonly offset: number;
  /** Its place among the statements of the text, from 0. */
  readonly ordinal: number;
  /** READ ONLY (true) or READ WRITE (false) where it says so. */
  readonly readOnly?: boolean;
  /** AND CHAIN. */
  readonly chain?: boolean;
  /** A name stands for it, which SQL inside a DO or a function may have given to a plain statement since. */
  readonly doubtful?: boolean;
  /** First words, upper case, for messages: "CREATE INDEX CONCURRENTLY". */
  readonly words: string;
}

export interface LexOptions {
  /** standard_conforming_strings of the session. */
  readonly standardStrings: boolean;
}

export interface Lexed {
  /** Number of statements that are not empty. */
  readonly count: number;
  /** Those that are not plain, and the one after each of them: the places where a transaction may begin. */
  readonly statements: readonly Statement[];
}

/** Statements of one text that are kept; a text with more of them is refused. */
export const STATEMENTS_KEPT_MAX = 100_000;
/** Words of one statement that are looked at. */
const WORDS_MAX = 24;

export class TooManyStatements extends Error {}

/** Statements of `bytes[start..end)`. */
export function lex(bytes: Buffer, start: number, end: number, options: LexOptions): Lexed {
  const scanner = new Scanner(bytes, start, end, options);
  const statements: Statement[] = [];
  let count = 0;
  let keepNext = true;
  for (;;) {
    const found = scanner.next();
    if (!found) return { count, statements };
    const statement = classify(found.words, found.offset - start, count);
    count++;
    if (keepNext || statement.kind !== "plain") {
      if (statements.length === STATEMENTS_KEPT_MAX) throw new TooManyStatements();
      statements.push(statement);
    }
    keepNext = statement.kind !== "plain";
  }
}

/**
 * The first statement of the text (one is all that Parse takes); undefined when there is none. `more`: the text goes on
 * behind `end`.
 */
export function lexFirst(
  bytes: Buffer,
  start: number,
  end: number,
  options: LexOptions,
  more = false,
): Statement | undefined {
  const scanner = new Scanner(bytes, start, end, options);
  const found = scanner.next(true);
  const words = found?.words ?? [];
  if (more && scanner.atEnd && !isSettled(scanner.wordIsCut ? words.slice(0, -1) : words)) {
    return { kind: "unseen", offset: 0, ordinal: 0, words: "" };
  }
  return found && classify(words, found.offset - start, 0);
}

/** As PostgreSQL reads a boolean setting. */
export function saysTrue(value: string): boolean {
  const text = value.toLowerCase();
  return text === "on" || text === "1" || (text !== "" && ("true".startsWith(text) || "yes".startsWith(text)));
}

/** A statement beginning with another word is plain, whatever follows. */
const TELLING_WORDS = new Set(
  "BEGIN START COMMIT END PREPARE ABORT ROLLBACK SET RESET SHOW LISTEN UNLISTEN DISCARD DEALLOCATE CHECKPOINT SAVEPOINT RELEASE LOCK DECLARE EXECUTE CALL DO VACUUM CLUSTER REINDEX CREATE DROP ALTER".split(
    " ",
  ),
);

/** Telling words after which nothing changes the kind. */
const DECIDING_WORDS = new Set("LISTEN UNLISTEN CHECKPOINT SAVEPOINT RELEASE LOCK EXECUTE CALL DO VACUUM".split(" "));

/** Whether the kind is clear from these words, whatever follows. */
function isSettled([first, second]: readonly string[]): boolean {
  if (first === undefined) return false;
  if (!TELLING_WORDS.has(first) || DECIDING_WORDS.has(first)) return true;
  if (second === undefined) return false;
  if (first === "SHOW") return true;
  if (first === "CREATE" || first === "DROP") return second !== "INDEX" && second !== "UNIQUE";
  return first === "ALTER" && second !== "TABLE" && second !== "DATABASE";
}

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

const isSpace = (c: number): boolean => c === 0x20 || (c >= 0x09 && c <= 0x0d);
const isDigit = (c: number): boolean => c >= 0x30 && c <= 0x39;
const isNameStart = (c: number): boolean =>
  (c >= 0x61 && c <= 0x7a) || (c >= 0x41 && c <= 0x5a) || c === 0x5f || c >= 0x80;
const isNamePart = (c: number): boolean => isNameStart(c) || isDigit(c) || c === DOLLAR;

class Scanner {
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
        if (untilTold && (words.length === WORDS_MAX || !TELLING_WORDS.has(words[0] as string))) break;
      } else {
        this.#last = "";
        this.#token(c, words);
      }
    }
    return offset === -1 ? undefined : { offset, words };
  }

  #nextWord(words: string[]): void {
    const word = this.#word(words);
    if (this.#inBody) {
      // Neither CASE, BEGIN nor END is counted: they can be names. But the body's own END, and no other, is where a
      // statement would begin.
      if (word === "END" && (this.#last === ";" || this.#last === "ATOMIC")) this.#inBody = false;
    } else if (word === "ATOMIC" && this.#last === "BEGIN" && this.#parens === 0) this.#inBody = createsRoutine(words);
    this.#last = word;
    if (words.length < WORDS_MAX) words.push(word);
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
    while (this.#at < this.#end && this.#bytes[this.#at] !== NEWLINE && this.#bytes[this.#at] !== RETURN) this.#at++;
  }

  #skipComment(): void {
    let depth = 0;
    while (this.#at < this.#end) {
      const c = this.#bytes[this.#at];
      const next = this.#at + 1 < this.#end ? this.#bytes[this.#at + 1] : 0;
      if (c === SLASH && next === STAR) {
        depth++;
        this.#at += 2;
      } else if (c === STAR && next === SLASH) {
        depth--;
        this.#at += 2;
        if (depth === 0) return;
      } else this.#at++;
    }
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

  #number(): void {
    while (this.#at < this.#end) {
      const c = this.#bytes[this.#at] as number;
      if (!isDigit(c) && !isNameStart(c) && c !== 0x2e) return;
      this.#at++;
    }
  }

  /** A string constant, and its continuations on later lines, which are read by the same rule. */
  #string(backslashes: boolean, words: string[]): void {
    for (;;) {
      const start = this.#at;
      this.#quoted(QUOTE, backslashes);
      this.#value(words, start + 1, this.#at - 1);
      const after = this.#at;
      let newline = false;
      while (this.#at < this.#end) {
        const c = this.#bytes[this.#at] as number;
        if (c === NEWLINE || c === RETURN) newline = true;
        if (isSpace(c)) this.#at++;
        else if (c === DASH && this.#bytes[this.#at + 1] === DASH) this.#skipLine();
        else break;
      }
      if (!newline || this.#at >= this.#end || this.#bytes[this.#at] !== QUOTE) {
        this.#at = after;
        return;
      }
    }
  }

  /** B'…' or X'…': neither a backslash nor a second quote is part of it. */
  #bits(): void {
    const close = this.#bytes.indexOf(QUOTE, this.#at + 1);
    this.#at = close === -1 || close >= this.#end ? this.#end : close + 1;
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

const RESETS_DEFAULT = new Set(["ALL", "DEFAULT_TRANSACTION_READ_ONLY"]);

function classify(words: readonly string[], offset: number, ordinal: number): Statement {
  const kind = kindOfStatement(words);
  const shown = words.slice(0, 3).join(" ").trim();
  const readOnly = kind === "plain" ? undefined : saysReadOnly(words);
  const chain = (kind === "commit" || kind === "rollback") && saysChain(words);
  return { kind, offset, ordinal, words: shown, ...(readOnly === undefined ? {} : { readOnly }), chain };
}

/** Kinds that the first word alone decides. */
const KIND_OF_WORD: ReadonlyMap<string, StatementKind> = new Map<string, StatementKind>([
  ["BEGIN", "begin"],
  ["END", "commit"],
  ["ABORT", "rollback"],
  ["SAVEPOINT", "inBlock"],
  ["RELEASE", "inBlock"],
  ["LOCK", "inBlock"],
  ["EXECUTE", "unknown"],
  ["CALL", "procedure"],
  ["DO", "procedure"],
  ["LISTEN", "session"],
  ["UNLISTEN", "session"],
  ["DISCARD", "session"],
  ["DEALLOCATE", "session"],
  ["CHECKPOINT", "session"],
]);

function kindOfStatement(words: readonly string[]): StatementKind {
  const [first = "", second = "", third = ""] = words;
  switch (first) {
    case "START":
      return second === "TRANSACTION" ? "begin" : "plain";
    case "COMMIT":
      return second === "PREPARED" ? "twoPhase" : "commit";
    case "PREPARE":
      return second === "TRANSACTION" ? "twoPhase" : "plain";
    case "ROLLBACK":
      return second === "PREPARED" ? "twoPhase" : kindOfRollback(words);
    case "SET":
      return kindOfSet(second, third, words);
    case "SHOW":
      // How drivers tell a primary. Without the fence it would show the seat belt.
      return second === "TRANSACTION_READ_ONLY" ? "plain" : "session";
    case "DECLARE":
      return words.includes("HOLD") && !words.includes("WITHOUT") ? "plain" : "inBlock";
    case "RESET":
      return RESETS_DEFAULT.has(second) ? "setDefault" : "session";
    default:
      return KIND_OF_WORD.get(first) ?? (outsideBlocksOnly(first, second, words) ? "noBlock" : "plain");
  }
}

const kindOfRollback = (words: readonly string[]): StatementKind => (words.includes("TO") ? "rollbackTo" : "rollback");

function kindOfSet(second: string, third: string, words: readonly string[]): StatementKind {
  const name = second === "SESSION" || second === "LOCAL" ? third : second;
  // An imported snapshot counts as a query: the fence must be in front of it.
  if (name === "TRANSACTION" && words.includes("SNAPSHOT")) return "plain";
  if (name === "TRANSACTION" || name === "TRANSACTION_READ_ONLY" || name === "TRANSACTION_ISOLATION") {
    return "setTransaction";
  }
  if (name === "CHARACTERISTICS") return saysReadOnly(words) === undefined ? "session" : "setDefault";
  if (name === "DEFAULT_TRANSACTION_READ_ONLY" && second !== "LOCAL") return "setDefault";
  return "session";
}

function outsideBlocksOnly(first: string, second: string, words: readonly string[]): boolean {
  switch (first) {
    case "VACUUM":
      return true;
    case "CLUSTER":
      return words.length === 1 || (words.length === 2 && second === "VERBOSE");
    case "REINDEX":
      return ["CONCURRENTLY", "DATABASE", "SYSTEM", "SCHEMA"].some((word) => words.includes(word));
    case "CREATE":
      if (["DATABASE", "TABLESPACE", "SUBSCRIPTION"].includes(second)) return true;
      return (second === "INDEX" || second === "UNIQUE") && words.includes("CONCURRENTLY");
    case "DROP":
      if (["DATABASE", "TABLESPACE", "SUBSCRIPTION"].includes(second)) return true;
      return second === "INDEX" && words.includes("CONCURRENTLY");
    case "ALTER":
      if (second === "SYSTEM" || second === "SUBSCRIPTION") return true;
      if (second === "DATABASE") return words.includes("TABLESPACE");
      return second === "TABLE" && words.includes("DETACH") && words.includes("CONCURRENTLY");
    default:
      return false;
  }
}

/** The last READ ONLY or READ WRITE of the statement, or the value given to a read-only setting. */
function saysReadOnly(words: readonly string[]): boolean | undefined {
  let answer: boolean | undefined;
  for (let i = 0; i < words.length; i++) {
    const word = words[i];
    const next = words[i + 1];
    if (word === "READ" && (next === "ONLY" || next === "WRITE")) answer = next === "ONLY";
    if (word === "TRANSACTION_READ_ONLY" || word === "DEFAULT_TRANSACTION_READ_ONLY") {
      const value = next === "TO" ? words[i + 2] : next;
      // DEFAULT, and RESET, mean the value that the session began with.
      answer = value === undefined || value === "DEFAULT" ? undefined : saysTrue(value);
    }
  }
  return answer;
}

function saysChain(words: readonly string[]): boolean {
  return words.includes("CHAIN") && !words.includes("NO");
}
