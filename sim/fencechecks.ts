/** What must hold at each commit of one database, in the order of its commits, per history of it. */
import { CLUSTER_UID } from "./apiserver.ts";
import type { Commit } from "./databasestate.ts";
import { violated } from "./violation.ts";

/** Whether people have said that this cluster's fence, up to there, is taken over. */
export type AcceptsIssuer = (issuer: string, generation: number) => boolean;

export class FenceChecks {
  /** Work that was committed, in all histories. */
  committed = 0;
  raises = 0;
  readonly #name: string;
  readonly #isAccepted: AcceptsIssuer;
  /** The generation that may commit, in the present history; none before its first raise. */
  #latest = 0;
  #closed = 0;
  #issuer = "";
  /** What it had promised may be another history's. */
  wasRestored = false;
  readonly #raisedBy = new Map<string, number>();
  readonly #raised = new Map<number, string>();

  constructor(name: string, isAccepted: AcceptsIssuer) {
    this.#name = name;
    this.#isAccepted = isAccepted;
  }

  commit(commit: Commit): void {
    switch (commit.kind) {
      case "work":
        return this.#work(commit.generation);
      case "close":
        return this.#close(commit.generation);
      case "raise":
        return this.#raise(commit);
    }
  }

  /** The database has another history, in which at most `latest` may commit: what it says of others is the old one's. */
  restored(latest: number, issuer: string): void {
    this.wasRestored = true;
    this.#latest = latest;
    this.#closed = 0;
    this.#issuer = issuer;
    this.#raised.clear();
    this.#raisedBy.clear();
  }

  /** INV-4; of a database that was restored nobody knows. */
  mayServe(holder: string, generation: number): boolean {
    return this.wasRestored || this.#raisedBy.get(holder) === generation;
  }

  #work(generation: number): void {
    this.committed++;
    if (generation === this.#closed)
      this.#violated(`INV-3: work of generation ${generation} committed behind its close`);
    if (generation !== this.#latest) {
      this.#violated(`INV-3: work of generation ${generation} committed behind the raise of ${this.#latest}`);
    }
  }

  #close(generation: number): void {
    // Of a database that was set back under its witness nobody may commit (0); to close there lets nobody in either.
    if (this.#latest && generation !== this.#latest) {
      this.#violated(`INV-3: ${generation} was closed under the raise of ${this.#latest}`);
    }
    this.#closed = generation;
  }

  #raise({ generation, holder, issuer }: Extract<Commit, { kind: "raise" }>): void {
    this.raises++;
    if (generation <= this.#latest) this.#violated(`INV-1: the fence went from ${this.#latest} to ${generation}`);
    if ((this.#raised.get(generation) ?? holder) !== holder) {
      this.#violated(`INV-8: generation ${generation} was accepted for two holders`);
    }
    if (this.#raisedBy.has(holder)) {
      this.#violated(`INV-7: ${holder} raised ${this.#raisedBy.get(holder)} before ${generation}`);
    }
    // What the other cluster's people have accepted is theirs.
    if (
      this.#issuer &&
      this.#issuer !== issuer &&
      issuer === CLUSTER_UID &&
      !this.#isAccepted(this.#issuer, this.#latest)
    ) {
      this.#violated(`INV-8: ${holder} raised ${generation} over ${this.#issuer}, and nobody has accepted that`);
    }
    this.#raisedBy.set(holder, generation);
    this.#raised.set(generation, holder);
    this.#latest = generation;
    this.#issuer = issuer;
  }

  #violated(what: string): never {
    violated(`${what} (${this.#name})`);
  }
}
