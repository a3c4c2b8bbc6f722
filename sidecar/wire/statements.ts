/**
 * What a statement does to transactions, from its first words only.
 *
 * Does NOT parse SQL: what it cannot tell is `plain`, and plain statements are fenced, so a misjudged one is refused by
 * the server (read-only transaction) rather than run unfenced.
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
  /** COPY: fenced like a plain one, but a Sync in front of its data is ignored (copying.ts). */
  | "copy"
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

/** A statement beginning with another word is plain, whatever follows. */
export const TELLING_WORDS = new Set(
  "BEGIN START COMMIT END PREPARE ABORT ROLLBACK SET RESET SHOW LISTEN UNLISTEN DISCARD DEALLOCATE CHECKPOINT SAVEPOINT RELEASE LOCK COPY DECLARE EXECUTE CALL DO VACUUM CLUSTER REINDEX CREATE DROP ALTER".split(
    " ",
  ),
);

/** Telling words after which nothing changes the kind. */
const DECIDING_WORDS = new Set(
  "LISTEN UNLISTEN CHECKPOINT SAVEPOINT RELEASE LOCK COPY EXECUTE CALL DO VACUUM CLUSTER REINDEX".split(" "),
);

/** Whether the kind is clear from these words, whatever follows. */
export function isSettled([first, second]: readonly string[]): boolean {
  if (first === undefined) return false;
  if (!TELLING_WORDS.has(first) || DECIDING_WORDS.has(first)) return true;
  if (second === undefined) return false;
  if (first === "SHOW") return true;
  if (first === "CREATE" || first === "DROP") return second !== "INDEX" && second !== "UNIQUE";
  return first === "ALTER" && second !== "TABLE" && second !== "DATABASE";
}

const RESETS_DEFAULT = new Set(["ALL", "DEFAULT_TRANSACTION_READ_ONLY"]);

export function classify(words: readonly string[], offset: number, ordinal: number): Statement {
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
  ["COPY", "copy"],
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
      return words.some((word, i) => word === "HOLD" && words[i - 1] === "WITH") ? "plain" : "inBlock";
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
    // Of a table that is partitioned, which its name does not tell.
    case "CLUSTER":
    case "REINDEX":
      return true;
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

/** As PostgreSQL reads a boolean setting. */
export function saysTrue(value: string): boolean {
  const text = value.toLowerCase();
  return text === "on" || text === "1" || (text !== "" && ("true".startsWith(text) || "yes".startsWith(text)));
}
