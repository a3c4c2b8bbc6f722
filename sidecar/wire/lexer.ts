/** The statements of a text, each with what it does to transactions. */
import { type LexOptions, Scanner } from "./scanner.ts";
import { classify, isSettled, type Statement } from "./statements.ts";

export interface Lexed {
  /** Number of statements that are not empty. */
  readonly count: number;
  /** Those that are not plain, and the one after each of them: the places where a transaction may begin. */
  readonly statements: readonly Statement[];
}

/** Statements of one text that are kept; a text with more of them is refused. */
export const STATEMENTS_KEPT_MAX = 100_000;
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
