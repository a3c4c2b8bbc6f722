/**
 * A modelled PostgreSQL with the fence schema: what `fence.raise`, `fence.admit_session` and the gate do, with locks,
 * commits in an order, crashes, and histories that branch (promotion, restore to a point in time, volume snapshot).
 *
 * The SQL itself is tried on real servers (fence/*.pg.test.ts); here its steps stand, so that they meet everything else.
 */
import type { FenceIdentity } from "../fence/database.ts";
import { SCHEMA_VERSION } from "../fence/migrations.ts";
import type { Witness } from "../fence/witness.ts";
import { type Beat, type Commit, copyOf, type Issuing, type Row, type State } from "./databasestate.ts";
import { type LockOwner, Locks, type Mode } from "./locks.ts";
import type { Scheduler } from "./scheduler.ts";
import { SqlError } from "./sqlerror.ts";

/** Of a raise that waits for nothing and nobody ends. */
const IDLE_MS_SPARE = 1_000;

export class Database {
  /** In the order in which they took effect; of the present history. */
  onCommit: (commit: Commit) => void = () => {};
  incarnation = "1/1";
  /** What whoever connects is told; nothing when it lets in. */
  refusal: SqlError | undefined;
  readonly name: string;
  readonly locks: Locks;
  readonly backends = new Map<number, Backend>();
  /** Admitted, by server process. */
  readonly sessions = new Map<number, number>();
  #state: State = {
    job: { generation: 0, holder: "", holderName: "", nonce: "", issuer: "", incarnation: "" },
    gates: new Map(),
    claims: new Map(),
    closed: new Set(),
    witness: new Map(),
    work: [],
  };
  #pids = 0;

  readonly scheduler: Scheduler;

  constructor(scheduler: Scheduler, name: string) {
    this.scheduler = scheduler;
    this.name = name;
    this.locks = new Locks(scheduler);
  }

  get row(): Readonly<Row> {
    return this.#state.job;
  }

  get state(): State {
    return this.#state;
  }

  /** fence.check_witness */
  stands(generation: number, { counter, nonce }: Witness): boolean {
    const present = this.#state.witness.get(generation);
    if (!present) return false;
    return present.counter > counter || (present.counter === counter && present.nonce === nonce);
  }

  connect(): Backend {
    if (this.refusal) throw this.refusal;
    const backend = new Backend(this, ++this.#pids);
    this.backends.set(backend.pid, backend);
    return backend;
  }

  /** Every session ends; what was committed stays. */
  crash(): void {
    for (const backend of [...this.backends.values()]) backend.end(new SqlError("57P02", "crash", "FATAL"));
    this.sessions.clear();
  }

  snapshot(): State {
    return copyOf(this.#state);
  }

  /** The database is what it was then; `incarnation` differs when its history recovered, and does not for a copied volume. */
  restore(state: State, incarnation: string): void {
    this.crash();
    this.#state = copyOf(state);
    this.incarnation = incarnation;
  }
}

/** A server process: one statement after the other, one transaction at a time. */
export class Backend implements LockOwner {
  readonly pid: number;
  readonly #database: Database;
  readonly #onEnd = new Set<(why: SqlError) => void>();
  #changes: (() => void)[] = [];
  #failed = false;
  #ended: SqlError | undefined;
  #lockTimeoutMs = Number.POSITIVE_INFINITY;

  constructor(database: Database, pid: number) {
    this.#database = database;
    this.pid = pid;
  }

  onEnd(fn: (why: SqlError) => void): () => void {
    this.#onEnd.add(fn);
    return () => this.#onEnd.delete(fn);
  }

  /** The process ends, and what it has not committed is gone. */
  end(why: SqlError): void {
    if (this.#ended) return;
    this.#ended = why;
    this.#database.backends.delete(this.pid);
    this.#database.sessions.delete(this.pid);
    this.#changes = [];
    for (const fn of [...this.#onEnd]) fn(why);
    this.#database.locks.release(this);
  }

  endLater(ms: number, why: SqlError): void {
    const { scheduler } = this.#database;
    scheduler.at(scheduler.nowMs + ms, () => this.end(why));
  }

  /** Runs one statement; an error fails the transaction, and the end of the process every statement. */
  async run<T>(statement: () => T | Promise<T>): Promise<T> {
    if (this.#ended) throw this.#ended;
    if (this.#failed) throw new SqlError("25P02", "current transaction is aborted");
    try {
      const result = await statement();
      if (this.#ended) throw this.#ended;
      return result;
    } catch (error) {
      this.#failed = true;
      throw error;
    }
  }

  /** With a bound the whole transaction is bounded, as that of a raise is. */
  begin(lockTimeoutMs = Number.POSITIVE_INFINITY): { pid: number; version: number } {
    this.#lockTimeoutMs = lockTimeoutMs;
    if (Number.isFinite(lockTimeoutMs)) {
      this.endLater(lockTimeoutMs + IDLE_MS_SPARE, new SqlError("25P03", "idle in transaction", "FATAL"));
    }
    return { pid: this.pid, version: SCHEMA_VERSION };
  }

  /** Throws when the transaction had failed: nothing of it stays. */
  commit(): void {
    if (this.#ended) throw this.#ended;
    if (!this.#failed) for (const change of this.#changes) change();
    const failed = this.#failed;
    this.rollback();
    if (failed) throw new SqlError("25P02", "rolled back");
  }

  /** Whoever waits for its locks goes on behind this moment, and sees what was committed. */
  rollback(): void {
    this.#changes = [];
    this.#failed = false;
    this.#database.locks.release(this);
  }

  /** A process that ends in the same moment in which it is given a lock takes no other: nobody would give it back. */
  async #lock(name: string, mode: Mode): Promise<void> {
    await this.#database.locks.take(name, this, mode, this.#lockTimeoutMs);
    if (this.#ended) throw this.#ended;
  }

  // ---- what the sidecar's proxy sends ----

  /** LOCK TABLE of the gate in ROW SHARE mode: refused before, during and after a wait. */
  async enter(generation: number): Promise<void> {
    this.#requireOpen(generation);
    await this.#lock(gate(generation), "share");
    this.#requireOpen(generation);
  }

  /** fence.admit_session, in a transaction that has entered. */
  admit({ generation, holder }: FenceIdentity, witness?: Witness): void {
    this.#checkOwner(generation, holder);
    if (witness && !this.#database.stands(generation, witness)) throw new SqlError("LF003", "set back");
    const { sessions } = this.#database;
    this.#changes.push(() => sessions.set(this.pid, generation));
  }

  #checkOwner(generation: number, holder: string): void {
    const { row, incarnation, state } = this.#database;
    if (row.generation < generation) throw new SqlError("LF003", "never raised in this history");
    if (row.generation !== generation || row.holder !== holder) throw new SqlError("LF001", "over");
    if (state.closed.has(generation)) throw new SqlError("LF001", "closed");
    if (row.incarnation !== incarnation) throw new SqlError("LF003", "another history");
  }

  /** A write of the application; it takes effect with the commit. */
  write(generation: number): void {
    this.#changes.push(() => {
      this.#database.state.work.push(generation);
      this.#database.onCommit({ kind: "work", generation });
    });
  }

  // ---- the raise ----

  /** fence.raise_begin: locks the row, and refuses before any gate is touched. */
  async raiseBegin(
    name: string,
    generation: number,
    holder: string,
    nonce: string,
    by: Issuing,
  ): Promise<Readonly<Row>> {
    await this.#lock("row", "exclusive");
    const { row } = this.#database;
    if (row.generation === generation && row.holder === holder && row.nonce === nonce) {
      this.#checkOwner(generation, holder);
      return row;
    }
    if (this.isForeign(by)) throw new SqlError("LF005", `${name}: run by ${row.issuer}`);
    const why = this.whyNotRaised(generation, holder);
    if (why) throw new SqlError("LF001", `${name}: ${why}`);
    return row;
  }

  /** Another control plane raised last, and nobody has accepted that. */
  isForeign({ issuer, acceptedIssuer, acceptedGeneration }: Issuing): boolean {
    const { row } = this.#database;
    if (row.issuer === "" || issuer === "" || row.issuer === issuer) return false;
    return row.issuer !== acceptedIssuer || row.generation > (acceptedGeneration ?? 0);
  }

  /** INV-1, INV-2, INV-7. */
  whyNotRaised(generation: number, holder: string): string | null {
    const { row, state } = this.#database;
    if (row.generation >= generation) return `the fence is at generation ${row.generation}`;
    if (state.claims.has(holder)) return "this pod has raised before";
    if (generation - row.generation > 1_000_000) return "absurd";
    return null;
  }

  async raise(identity: FenceIdentity, nonce: string, by: Issuing): Promise<Record<string, unknown>> {
    const { fenceName, generation, holder, holderName } = identity;
    const before = { ...(await this.raiseBegin(fenceName, generation, holder, nonce, by)) };
    const issuer = by.issuer || before.issuer;
    const { state, incarnation } = this.#database;
    const result = {
      previous_generation: before.generation || null,
      previous_issuer: before.issuer,
      incarnation,
      checkpoint: null,
    };
    if (before.generation === generation) {
      // Its own raise, whose answer was lost.
      const older = [...state.claims.values()].filter((claimed) => claimed < generation);
      return { ...result, previous_generation: older.length ? Math.max(...older) : null, sessions_ended: [] };
    }
    const ended = await this.#shut(before.generation, generation);
    this.#changes.push(() => {
      for (const other of state.gates.keys()) state.gates.set(other, false);
      state.gates.set(generation, true);
      Object.assign(state.job, { generation, holder, holderName, nonce, issuer, incarnation });
      state.claims.set(holder, generation);
      state.witness.set(generation, { counter: 0, nonce });
      this.#database.onCommit({ kind: "raise", generation, holder, issuer });
    });
    return { ...result, sessions_ended: ended };
  }

  /** fence.shut: nobody is inside of a gate any more; what it changes is the caller's. */
  async #shut(current: number, below: number): Promise<string[]> {
    for (const [other, open] of [...this.#database.state.gates]) {
      if (open || other === current) await this.#lock(gate(other), "exclusive");
    }
    return this.endSessions(below);
  }

  /** fence.close_begin; true: closed already. */
  async closeBegin(generation: number, holder: string): Promise<boolean> {
    await this.#lock("row", "exclusive");
    const { row, state } = this.#database;
    if (row.generation === generation && row.holder === holder && state.closed.has(generation)) return true;
    this.#checkOwner(generation, holder);
    return false;
  }

  /** fence.close */
  async close(generation: number, holder: string): Promise<string[]> {
    if (await this.closeBegin(generation, holder)) return [];
    const ended = await this.#shut(generation, generation + 1);
    const { state } = this.#database;
    this.#changes.push(() => {
      for (const other of state.gates.keys()) state.gates.set(other, false);
      state.closed.add(generation);
      this.#database.onCommit({ kind: "close", generation });
    });
    return ended;
  }

  /** fence.beat */
  async beat({ generation, holder }: Pick<FenceIdentity, "generation" | "holder">, of: Beat): Promise<void> {
    const { incarnation, state } = this.#database;
    if (incarnation !== of.incarnation) throw new SqlError("LF003", "another history");
    this.#checkOwner(generation, holder);
    await this.#lock(`witness ${generation}`, "exclusive");
    const { counter, nonce } = of.witness;
    const present = state.witness.get(generation);
    const next = { counter: counter + 1, nonce: of.next };
    if (present?.counter === counter && present.nonce === nonce) {
      this.#changes.push(() => state.witness.set(generation, next));
    } else if (present?.counter !== next.counter || present.nonce !== next.nonce) {
      throw new SqlError("LF003", "set back");
    }
  }

  /** fence.end_sessions: of every older generation, idle ones too. */
  endSessions(generation: number): string[] {
    const ended: string[] = [];
    for (const [pid, of] of [...this.#database.sessions]) {
      if (of >= generation) continue;
      this.#database.backends.get(pid)?.end(new SqlError("57P01", "terminating connection", "FATAL"));
      ended.push(String(pid));
    }
    return ended;
  }

  #requireOpen(generation: number): void {
    const open = this.#database.state.gates.get(generation);
    if (open === undefined) throw new SqlError("42P01", "no such gate");
    if (!open) throw new SqlError("42501", "permission denied for the gate");
  }
}

const gate = (generation: number): string => `gate ${generation}`;
