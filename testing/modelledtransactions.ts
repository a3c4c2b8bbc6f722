/**
 * The transactions of a modelled session of PostgreSQL: what each statement does to them, to the settings, to the gate's
 * lock and the bracket. It notes whatever is run where it could be a stale write.
 *
 * Does NOT store data. Where versions differ it is PostgreSQL 15.
 */
import { FAILED, IDLE, IN_BLOCK } from "../sidecar/wire/messages.ts";
import type { ModelledStatement } from "./modelledsql.ts";

interface Settings {
  readonly defaultReadOnly: boolean;
  readonly standardStrings: boolean;
}

interface Savepoint {
  readonly name: string;
  readonly entered: boolean;
  readonly readOnly: boolean;
  readonly settings: Settings;
}

interface Transaction {
  /** Begun by BEGIN, not by a single statement or group. */
  block: boolean;
  failed: boolean;
  readOnly: boolean;
  /** Holds the lock on the gate. */
  entered: boolean;
  /** Has run a query: it cannot be made writable any more. */
  snapshot: boolean;
  readonly before: Settings;
  readonly savepoints: Savepoint[];
}

export class SqlError extends Error {
  readonly code: string;
  constructor(code: string) {
    super(code);
    this.code = code;
  }
}

/** Preparing, binding or running one of these takes a snapshot. */
const QUERIES = new Set([
  "read",
  "write",
  "copyIn",
  "copyInFails",
  "enterSelect",
  "fails",
  "bracketLock",
  "bracketUnlock",
  "checkOwner",
]);
/** These take one when they run. */
const LIKE_QUERIES = new Set([...QUERIES, "deallocate", "prepare", "execute", "procedure"]);
const PASSES_FAILED = new Set(["commit", "rollback", "rollbackTo"]);

export class ModelledTransactions {
  /** What was run where no gate, no bracket and no read-only transaction stood against it. Must stay empty. */
  readonly unfenced: string[] = [];
  /** Writes that were let in. */
  written = 0;
  gateOpen = true;
  settings: Settings;
  readonly statements = new Map<string, ModelledStatement | undefined>();
  readonly portals = new Map<string, ModelledStatement | undefined>();
  readonly #atStart: Settings;
  #tx: Transaction | undefined;
  #bracket = 0;

  /** `defaultReadOnly`: what the session was started with. */
  constructor(defaultReadOnly: boolean) {
    this.#atStart = { defaultReadOnly, standardStrings: true };
    this.settings = this.#atStart;
  }

  /** As ReadyForQuery says it. */
  get status(): number {
    return this.#tx ? (this.#tx.failed ? FAILED : IN_BLOCK) : IDLE;
  }

  /** A raise would have to wait for it. */
  get inside(): boolean {
    return this.#tx?.entered === true || this.#bracket > 0;
  }

  begin(): Transaction {
    this.#tx ??= {
      block: false,
      failed: false,
      readOnly: this.settings.defaultReadOnly,
      entered: false,
      snapshot: false,
      before: this.settings,
      savepoints: [],
    };
    return this.#tx;
  }

  /** A simple query or a group ends, and with it a transaction that is no block. */
  endOfMessage(): void {
    if (this.#tx && !this.#tx.block) this.#finish(!this.#tx.failed);
  }

  fail(): void {
    if (!this.#tx?.block) return this.#finish(false);
    this.#tx.failed = true;
    this.portals.clear();
  }

  /** Parse and Bind of it, in the transaction that is open. */
  prepare(statement: ModelledStatement | undefined): void {
    this.#refuseInFailed(statement);
    if (statement && QUERIES.has(statement.kind)) this.begin().snapshot = true;
  }

  /** Runs it in the transaction that is open. `several`: in a text of several statements. Returns its tag. */
  run(statement: ModelledStatement, several: boolean): string {
    const tx = this.begin();
    this.#refuseInFailed(statement);
    if (LIKE_QUERIES.has(statement.kind)) tx.snapshot = true;
    switch (statement.kind) {
      case "begin":
        tx.block = true;
        if (statement.readOnly !== undefined) switchTo(tx, statement.readOnly);
        return "BEGIN";
      case "commit":
      case "rollback":
        return this.#ends(tx, statement.kind === "commit", statement.chain);
      case "savepoint":
        if (!tx.block) throw new SqlError("25P01");
        tx.savepoints.push({ ...tx, name: statement.name, settings: this.settings });
        return "SAVEPOINT";
      case "release":
        tx.savepoints.length = placeOf(tx, statement.name);
        return "RELEASE";
      case "rollbackTo":
        return this.#rollbackTo(tx, statement.name);
      case "setTransaction":
        if (statement.inQuery) tx.snapshot = true;
        if (statement.readOnly !== undefined) switchTo(tx, statement.readOnly);
        return statement.inQuery ? "SELECT 1" : "SET";
      default:
        return this.#setting(tx, statement, several);
    }
  }

  #setting(tx: Transaction, statement: ModelledStatement, several: boolean): string {
    switch (statement.kind) {
      case "setDefault":
        if (!statement.local)
          this.settings = { ...this.settings, defaultReadOnly: statement.readOnly ?? this.#atStart.defaultReadOnly };
        return "SET";
      case "setStandardStrings":
        this.settings = { ...this.settings, standardStrings: statement.on };
        return "SET";
      case "resetAll":
        this.settings = this.#atStart;
        return "RESET";
      case "discardAll":
        refuseInBlock(tx, several);
        this.#deallocate(undefined);
        this.#bracket = 0;
        this.settings = this.#atStart;
        return "DISCARD ALL";
      case "deallocate":
        return this.#deallocate(statement.name);
      case "prepare":
        return this.#prepare(statement.name.toLowerCase(), statement.statement);
      case "execute":
        return this.#execute(statement.name);
      default:
        return this.#work(tx, statement, several);
    }
  }

  /** What it runs is not at the top level: as in a block, a procedure cannot end the transaction there. */
  #execute(name: string): string {
    const prepared = this.statements.get(name.toLowerCase());
    if (!prepared) throw new SqlError("26000");
    if (prepared.kind === "execute") throw new SqlError("54001"); // of itself, perhaps
    return this.run(prepared, true);
  }

  #work(tx: Transaction, statement: ModelledStatement, several: boolean): string {
    switch (statement.kind) {
      case "lock":
        if (!tx.block && !several) throw new SqlError("25P01");
        return "LOCK TABLE";
      case "procedure":
        if (tx.block || several) this.#write(tx, "a procedure in a block");
        else this.#procedure();
        return "CALL";
      case "outsideBlocks":
        refuseInBlock(tx, several);
        if (this.#bracket === 0) this.unfenced.push("a statement outside of blocks, without a bracket");
        return "VACUUM";
      case "twoPhase":
        this.unfenced.push("two-phase commit");
        return "PREPARE TRANSACTION";
      case "write":
      case "copyIn":
        this.#write(tx, statement.kind);
        return "INSERT 0 1";
      case "copyInFails":
        if (tx.readOnly) throw new SqlError("25006");
        return "";
      case "writingRead":
        this.#write(tx, statement.kind);
        return "SELECT 1";
      case "refuse":
        throw new SqlError(statement.code);
      case "fails":
        throw new SqlError("22012");
      default:
        return this.#fence(tx, statement, several);
    }
  }

  #fence(tx: Transaction, statement: ModelledStatement, several: boolean): string {
    switch (statement.kind) {
      case "enterLock":
        if (!tx.block && !several) throw new SqlError("25P01");
        return this.#enter(tx, "LOCK TABLE");
      case "enterSelect":
        if (tx.readOnly) throw new SqlError("25006");
        return this.#enter(tx, "SELECT 0");
      case "bracketLock":
        this.#bracket++;
        return "SELECT 1";
      case "bracketUnlock":
        this.#bracket = Math.max(0, this.#bracket - 1);
        return "SELECT 1";
      case "checkOwner":
        if (!this.gateOpen) throw new SqlError("LF001");
        return "SELECT 1";
      default:
        return statement.kind === "read" ? "SELECT 1" : "SET";
    }
  }

  #enter(tx: Transaction, tag: string): string {
    if (!this.gateOpen) throw new SqlError("42501");
    tx.entered = true;
    return tag;
  }

  #write(tx: Transaction, what: string): void {
    if (tx.readOnly) throw new SqlError("25006");
    if (!tx.entered && this.#bracket === 0) this.unfenced.push(what);
    this.written++;
  }

  /** The worst that one can do: ends the transaction, and writes in the next one. */
  #procedure(): void {
    this.#finish(true);
    const tx = this.begin();
    tx.readOnly = false;
    tx.snapshot = true;
    this.#write(tx, "a procedure that commits");
  }

  #prepare(name: string, statement: ModelledStatement): string {
    if (this.statements.has(name)) throw new SqlError("42P05");
    this.statements.set(name, statement);
    return "PREPARE";
  }

  #deallocate(name: string | undefined): string {
    if (name !== undefined) {
      if (!this.statements.delete(name.toLowerCase())) throw new SqlError("26000");
      return "DEALLOCATE";
    }
    // The unnamed statement stays.
    for (const other of [...this.statements.keys()]) if (other !== "") this.statements.delete(other);
    return "DEALLOCATE ALL";
  }

  #ends(tx: Transaction, commits: boolean, chain: boolean): string {
    if (chain && !tx.block) throw new SqlError("25P01");
    const committed = commits && !tx.failed;
    this.#finish(committed);
    if (chain) Object.assign(this.begin(), { block: true, readOnly: tx.readOnly });
    return committed ? "COMMIT" : "ROLLBACK";
  }

  #rollbackTo(tx: Transaction, name: string): string {
    const at = placeOf(tx, name);
    const { entered, readOnly, settings } = tx.savepoints[at] as Savepoint;
    tx.savepoints.length = at + 1;
    this.settings = settings;
    // The gate's lock stays only if it is older than the savepoint.
    Object.assign(tx, { failed: false, entered, readOnly });
    return "ROLLBACK";
  }

  #finish(commits: boolean): void {
    if (this.#tx && !commits) this.settings = this.#tx.before;
    this.#tx = undefined;
    this.portals.clear();
  }

  #refuseInFailed(statement: ModelledStatement | undefined): void {
    if (this.#tx?.failed && statement && !PASSES_FAILED.has(statement.kind)) throw new SqlError("25P02");
  }
}

function refuseInBlock(tx: Transaction, several: boolean): void {
  if (tx.block || several) throw new SqlError("25001");
}

function switchTo(tx: Transaction, readOnly: boolean): void {
  if (!readOnly && tx.readOnly && (tx.snapshot || tx.savepoints.length > 0)) throw new SqlError("25001");
  tx.readOnly = readOnly;
}

function placeOf(tx: Transaction, name: string): number {
  if (!tx.block) throw new SqlError("25P01");
  const at = tx.savepoints.findLastIndex((savepoint) => savepoint.name === name);
  if (at === -1) throw new SqlError("3B001");
  return at;
}
