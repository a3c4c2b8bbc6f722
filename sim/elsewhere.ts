/**
 * Another cluster whose job has the same fence name, as the databases see it: it raises above all that it finds there, as a person
 * has told it that the work has moved to it.
 */
import type { FenceIdentity } from "../fence/database.ts";
import type { Database } from "./database.ts";
import type { Scheduler } from "./scheduler.ts";
import { SqlError } from "./sqlerror.ts";

const ISSUER = "cluster-2";
const FENCE_NAME = "n/run";
const LOCK_MS = 2_000;
/** From one statement of its raise to the next. */
const STEP_MS = 20;
const RETRY_MS = 1_000;

export class Elsewhere {
  readonly #databases: ReadonlyMap<string, Database>;
  readonly #scheduler: Scheduler;
  #pods = 0;

  constructor(databases: ReadonlyMap<string, Database>, scheduler: Scheduler) {
    this.#databases = databases;
    this.#scheduler = scheduler;
  }

  raise(): void {
    const generation = 1 + Math.max(...[...this.#databases.values()].map(({ row }) => row.generation));
    const holder = `elsewhere-${++this.#pods}`;
    const identity = { fenceName: FENCE_NAME, generation, holder, holderName: holder };
    for (const database of this.#databases.values()) void this.#raiseIn(database, identity);
  }

  /** Until it has, or somebody else has raised higher. */
  async #raiseIn(database: Database, identity: FenceIdentity): Promise<void> {
    for (let attempt = 0; database.row.generation < identity.generation; attempt++) {
      try {
        return await this.#attempt(database, identity, attempt > 0);
      } catch {
        await this.#passes(RETRY_MS);
      }
    }
  }

  async #attempt(database: Database, identity: FenceIdentity, drains: boolean): Promise<void> {
    const backend = database.connect();
    try {
      if (drains) backend.endSessions(identity.generation);
      backend.begin(LOCK_MS);
      await this.#passes(STEP_MS);
      const by = {
        issuer: ISSUER,
        acceptedIssuer: database.row.issuer,
        acceptedGeneration: identity.generation,
      };
      await backend.run(() => backend.raise(identity, identity.holder, by));
      await this.#passes(STEP_MS);
      backend.commit();
    } finally {
      backend.end(new SqlError("08006", "the client has gone", "FATAL"));
    }
  }

  #passes(ms: number): Promise<void> {
    return new Promise((resolve) => this.#scheduler.at(this.#scheduler.nowMs + ms, resolve));
  }
}
