/**
 * What runs beside a raise or a close that waits: after the drain time a second connection ends the sessions of older
 * generations (INV-13) and notes who else blocks, so that LF004 can name them.
 */
import type { Client } from "pg";
import type { Clock } from "../platform/clock.ts";
import { type Connect, onDatabase } from "./connection.ts";
import type { DatabaseAddress, FenceIdentity } from "./database.ts";
import { quoteLiteral } from "./enter.ts";
import { FenceError } from "./errors.ts";
import type { Statement } from "./move.ts";

export interface DrainOptions {
  readonly clock: Clock;
  readonly signal?: AbortSignal | undefined;
  readonly connect?: Connect | undefined;
  readonly doing: "raise" | "close";
  readonly ending: Statement;
  /** Server process of the transaction that waits. */
  readonly pid: number;
  /** Receives the names of the sessions that were ended. */
  readonly sessionsEnded: Set<string>;
}

interface Blocker {
  readonly pid: number;
  readonly username: string | null;
  readonly application: string | null;
  readonly state: string | null;
  readonly busy_seconds: number | null;
  readonly prepared: string | null;
}

const LOOK_MS = 50;
const LAST_LOOK_MS_MAX = 1000;
const CONNECTION_MS_MAX = 60_000;
const STATEMENT_MS_MAX = 5_000;
const BLOCKERS_MAX = 5;

export class Drain {
  readonly #address: DatabaseAddress;
  readonly #identity: FenceIdentity;
  readonly #options: DrainOptions;
  /** No further look … */
  readonly #stopped = new AbortController();
  /** … and not even the end of the present one. */
  readonly #cut = new AbortController();
  #blockers: readonly Blocker[] = [];
  #trouble: unknown;
  #running: Promise<void> = Promise.resolve();

  constructor(address: DatabaseAddress, identity: FenceIdentity, options: DrainOptions) {
    this.#address = address;
    this.#identity = identity;
    this.#options = options;
  }

  /** The raise begins, and may wait already for the fence row; older sessions may go on for `drainMs`. */
  start(drainMs: number): void {
    this.#running = this.#run(drainMs).catch((error: unknown) => {
      if (!this.#stopped.signal.aborted) this.#trouble = error;
    });
  }

  /** The raise has ended, one way or the other. Lets a look finish that ended sessions, so that they are counted. */
  async stop(): Promise<void> {
    this.#stopped.abort();
    const cancel = this.#options.clock.after(LAST_LOOK_MS_MAX, () => this.#cut.abort());
    await this.#running;
    cancel();
  }

  async #run(drainMs: number): Promise<void> {
    const { clock, connect, signal: outer } = this.#options;
    const alsoOuter = (inner: AbortSignal): AbortSignal => (outer ? AbortSignal.any([outer, inner]) : inner);
    const stopped = alsoOuter(this.#stopped.signal);
    await clock.sleep(drainMs, stopped);
    const signal = alsoOuter(this.#cut.signal);
    const connection = { clock, connect, signal, timeoutMs: CONNECTION_MS_MAX, doing: "drain" };
    await onDatabase(this.#address, connection, async (client) => {
      // Whatever the role has as its defaults: forgetting sessions is a write, and waits for those it ended.
      await client.query(
        `SET default_transaction_read_only = off; SET default_transaction_isolation = 'read committed';
         SET statement_timeout = ${STATEMENT_MS_MAX}; SET lock_timeout = ${STATEMENT_MS_MAX}`,
      );
      while (!stopped.aborted) {
        await this.#look(client);
        await clock.sleep(LOOK_MS, stopped);
      }
    });
  }

  async #look(client: Client): Promise<void> {
    const { text, values } = this.#options.ending;
    const { rows: jobs } = await client.query(text, [...values]);
    const [job] = jobs;
    if (job?.may) {
      // Again and again: while we wait for somebody else, an old client may come back in.
      const ended = await client.query("SELECT fence.end_sessions($1, $2) AS ended", [job.id, job.below]);
      for (const session of ended.rows[0].ended) this.#options.sessionsEnded.add(session);
    }
    const { rows } = await client.query("SELECT * FROM fence.blockers($1, $2)", [this.#options.pid, job?.id ?? 0]);
    // Empty for an instant between two locks: keep the last that was seen.
    if (rows.length > 0) this.#blockers = rows;
  }

  /** The raise waited too long: the error that names who blocks. */
  blocked(cause: unknown): FenceError {
    if (this.#trouble instanceof FenceError) return this.#trouble;
    const { fenceName, generation } = this.#identity;
    const names = this.#blockers.slice(0, BLOCKERS_MAX).map(describe);
    const more = this.#blockers.length - names.length;
    const [first] = this.#blockers;
    const { doing } = this.#options;
    const what = doing === "raise" ? "raised" : "closed";
    return new FenceError("LF004", {
      message: `generation ${generation} of FencedJob "${fenceName}" cannot be ${what}: somebody blocks it`,
      detail:
        names.length > 0
          ? `${names.join("; ")}${more > 0 ? `; and ${more} more` : ""}.`
          : `Who it is could not be seen; pg_locks and pg_stat_activity show it while the ${doing} waits.`,
      hint: `${remedy(first)} The ${doing} is tried again by itself.`,
      cause,
    });
  }
}

function describe(blocker: Blocker): string {
  const since = blocker.busy_seconds === null ? "" : ` for ${blocker.busy_seconds} s`;
  if (blocker.prepared !== null) {
    return `prepared transaction '${blocker.prepared}' of role "${blocker.username}"${since}`;
  }
  const application = blocker.application ? `, application "${blocker.application}"` : "";
  return `server process ${blocker.pid} of role "${blocker.username ?? "unknown"}"${application}, ${blocker.state ?? "state unknown"}${since}`;
}

function remedy(blocker: Blocker | undefined): string {
  if (!blocker) return "Look for locks on tables fence.gate_*.";
  if (blocker.prepared !== null)
    return `Run, as an administrator: ROLLBACK PREPARED ${quoteLiteral(blocker.prepared)}.`;
  return `End it, as an administrator: SELECT pg_terminate_backend(${blocker.pid}).`;
}
