/**
 * Decides, from the transaction's state and the statements of a message, whether the message goes as it is, gets the
 * fence in front of it (and after each COMMIT inside it), or is refused. Pure.
 *
 * Does NOT decide whether the pod still owns the job: the permit does that, before this is asked.
 */
import type { Lexed } from "./lexer.ts";
import { FAILED, IDLE } from "./messages.ts";
import type { Statement } from "./statements.ts";

export interface TransactionState {
  /** Status of the last ReadyForQuery, as far as the messages sent since can have changed it. */
  readonly status: number;
  /** The open transaction has entered the gate. */
  readonly entered: boolean;
  /** The open block is READ ONLY by the client's own words. */
  readonly readOnly: boolean;
  /** The client's own default for new transactions. */
  readonly readOnlyDefault: boolean;
  /** What a ROLLBACK brings the default back to. */
  readonly readOnlyDefaultCommitted: boolean;
  /** What RESET brings it back to. */
  readonly readOnlyDefaultAtStart: boolean;
}

/** A place in the text where the fence goes in. */
export interface Injection {
  /** Byte offset in the client's text. */
  readonly offset: number;
  /** Statements of the client before it. */
  readonly ordinal: number;
  /** The transaction is to be READ WRITE; else it stays read-only and is only locked in. */
  readonly writable: boolean;
}

export type QueryPlan =
  /** Two-phase commit: cannot be fenced. */
  | { readonly kind: "refuse"; readonly words: string }
  /** Runs outside of any transaction that could hold the gate: to be sent bare inside a bracket. */
  | { readonly kind: "bracket" }
  | {
      readonly kind: "send";
      readonly injections: readonly Injection[];
      /** What the open block is when the message has succeeded. */
      readonly readOnly: boolean;
      readonly readOnlyDefault: boolean;
      readonly readOnlyDefaultCommitted: boolean;
      /** What each COMMIT in it keeps of that. */
      readonly readOnlyDefaults: readonly boolean[];
      /** The message ends a transaction or may write outside a block: without its answer its outcome is unknown. */
      readonly commits: boolean;
    };

export function planQuery(state: TransactionState, text: Lexed): QueryPlan {
  const refused = text.statements.find((statement) => statement.kind === "twoPhase");
  if (refused) return { kind: "refuse", words: refused.words };
  const [first] = text.statements;
  if (first && text.count === 1 && state.status === IDLE && needsBracket(first)) return { kind: "bracket" };
  const walk = new Walk(state);
  const single = text.count === 1;
  for (const statement of text.statements) walk.take(statement, single);
  return {
    kind: "send",
    injections: walk.injections,
    readOnly: walk.readOnly,
    readOnlyDefault: walk.readOnlyDefault,
    readOnlyDefaultCommitted: walk.readOnlyDefaultCommitted,
    readOnlyDefaults: walk.readOnlyDefaults,
    commits: walk.commits,
  };
}

/** Alone and outside of a block only; else PostgreSQL runs it inside the transaction, or refuses it itself. */
export function needsBracket(statement: Statement): boolean {
  return statement.kind === "noBlock" || statement.kind === "procedure";
}

/** Counts as a query: the fence must be in front of it, as no transaction can be made writable after one. */
export function takesSnapshot({ kind, words }: Statement): boolean {
  return kind === "unknown" || kind === "copy" || /^(DEALLOCATE|DECLARE|DISCARD)/.test(words);
}

/** Follows the transactions of one text, statement by statement. */
class Walk {
  readonly injections: Injection[] = [];
  readOnly: boolean;
  readOnlyDefault: boolean;
  readOnlyDefaultCommitted: boolean;
  readonly readOnlyDefaults: boolean[] = [];
  commits = false;
  readonly #readOnlyDefaultAtStart: boolean;
  #entered: boolean;
  /** In a failed block nothing is put in: it would be refused, and swallow the client's ROLLBACK. */
  #failed: boolean;
  #open: boolean;

  constructor(state: TransactionState) {
    this.#failed = state.status === FAILED;
    this.#open = state.status !== IDLE;
    this.#entered = state.entered;
    this.readOnly = this.#open ? state.readOnly : state.readOnlyDefault;
    this.readOnlyDefault = state.readOnlyDefault;
    this.readOnlyDefaultCommitted = state.readOnlyDefaultCommitted;
    this.#readOnlyDefaultAtStart = state.readOnlyDefaultAtStart;
  }

  take(statement: Statement, single: boolean): void {
    if (this.#needsEntering(statement, single)) {
      // At the very beginning the fence goes before leading comments too: offset 0 needs no counting of characters.
      const offset = statement.ordinal === 0 ? 0 : statement.offset;
      this.injections.push({ offset, ordinal: statement.ordinal, writable: !this.readOnly });
      this.#entered = true;
      // The end of the message commits it; behind a ROLLBACK that ends the block, too (INV-10).
      if (!this.#open) this.commits = true;
    }
    this.#follow(statement);
  }

  #needsEntering(statement: Statement, single: boolean): boolean {
    if (this.#entered || this.#failed) return false;
    switch (statement.kind) {
      case "plain":
      case "copy":
      case "unknown":
      case "noBlock":
      case "procedure":
        return true;
      case "inBlock":
        return this.#open || !single;
      case "begin":
        // A lone BEGIN goes bare and the next message enters; in a longer text the fence cannot wait.
        return !single;
      case "setTransaction":
        // In a block it may still set the isolation level, which a LOCK before it does not disturb.
        return !single;
      case "session":
        return !single || (this.#open && takesSnapshot(statement));
      case "setDefault":
        return !single;
      default:
        return false;
    }
  }

  #follow(statement: Statement): void {
    switch (statement.kind) {
      case "begin":
        this.#open = true;
        if (statement.readOnly !== undefined) this.readOnly = statement.readOnly;
        return;
      case "setTransaction":
        if (this.#open && statement.readOnly !== undefined) this.readOnly = statement.readOnly;
        return;
      case "setDefault":
        this.readOnlyDefault = statement.readOnly ?? this.#readOnlyDefaultAtStart;
        return;
      case "session":
        if (statement.words === "DISCARD ALL") this.readOnlyDefault = this.#readOnlyDefaultAtStart;
        return;
      case "unknown":
        // EXECUTE of a COMMIT: what follows enters again.
        this.commits = true;
        this.#entered = false;
        return;
      case "commit":
      case "rollback":
        this.#ends(statement);
        return;
      case "rollbackTo":
        this.#entered = false;
        this.#failed = false;
        return;
      default:
        return;
    }
  }

  #ends(statement: Statement): void {
    const commits = statement.kind === "commit";
    if (commits) this.commits = true;
    if (commits && !this.#failed) {
      this.readOnlyDefaultCommitted = this.readOnlyDefault;
      this.readOnlyDefaults.push(this.readOnlyDefault);
    } else this.readOnlyDefault = this.readOnlyDefaultCommitted;
    if (!statement.chain) {
      this.readOnly = this.readOnlyDefault;
      this.#open = false;
    }
    this.#entered = false;
    this.#failed = false;
  }
}
