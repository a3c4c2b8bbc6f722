/**
 * A process's connection to the modelled database, as far as the fence's client and the wire use one: the statements
 * that they send, by their text. One that is not known here is a fault of the simulation.
 */
import type pg from "pg";
import type { Connect } from "../fence/connection.ts";
import type { FenceIdentity } from "../fence/database.ts";
import { FenceError } from "../fence/errors.ts";
import type { Backend, Database, Issuing } from "./database.ts";
import type { Network } from "./network.ts";
import type { Process } from "./process.ts";
import { SqlError } from "./sqlerror.ts";

interface Result {
  readonly rows: Record<string, unknown>[];
}

type Values = readonly unknown[];

/** A server session: each request and each answer is on its way for a while, and may not arrive. */
export class Session {
  readonly #process: Process;
  readonly #place: string;
  readonly #network: Network;
  readonly backend: Backend;
  readonly #forget: () => void;

  private constructor(process: Process, place: string, network: Network, backend: Backend) {
    this.#process = process;
    this.#place = place;
    this.#network = network;
    this.backend = backend;
    this.#forget = process.atExit(() => this.close());
  }

  static async open(process: Process, place: string, network: Network, database: Database): Promise<Session> {
    const backend = await network.call(process, place, () => database.connect());
    return new Session(process, place, network, backend);
  }

  /** Rejects as the server does; stays open when the question or its answer is lost. */
  run<T>(statement: (backend: Backend) => T | Promise<T>): Promise<T> {
    return this.#network.call(this.#process, this.#place, () => statement(this.backend));
  }

  /** What was not committed is gone when the server hears of it. */
  close(): void {
    this.#forget();
    this.#network.send(this.#process, this.#place, () => this.backend.end(gone()));
    this.backend.endLater(NOTICED_MS, gone());
  }
}

/** The server notices at last that a client is gone that could not say so (keepalive). */
const NOTICED_MS = 60_000;
const gone = (): SqlError => new SqlError("08006", "the client has gone", "FATAL");

/** `withConnection` in the simulated world. */
export function connectTo(process: Process, place: string, network: Network, database: Database): Connect {
  return async (address, options, use) => {
    const { timeoutMs, signal, doing } = options;
    signal?.throwIfAborted();
    const { promise: bound, reject } = Promise.withResolvers<never>();
    bound.catch(() => {});
    const onAbort = (): void => reject(signal?.reason);
    signal?.addEventListener("abort", onAbort, { once: true });
    const late = new FenceError("LF015", {
      message: `the database at ${address.host} did not answer in time (${doing})`,
    });
    const cancel = process.clock.after(timeoutMs, () => reject(late));
    let session: Session | undefined;
    try {
      session = await Promise.race([Session.open(process, place, network, database), bound]);
      const open = session;
      const query = (text: string, values: Values = []): Promise<Result | Result[]> =>
        Promise.race([open.run((backend) => answer(backend, database, text, values)), bound]);
      return await Promise.race([use({ query } as unknown as pg.Client), bound]);
    } finally {
      cancel();
      signal?.removeEventListener("abort", onAbort);
      session?.close();
    }
  };
}

async function answer(backend: Backend, database: Database, text: string, values: Values): Promise<Result | Result[]> {
  if (text === "COMMIT") {
    backend.commit();
    return one({});
  }
  return await backend.run(() => statement(backend, database, text, values));
}

async function statement(
  backend: Backend,
  database: Database,
  text: string,
  values: Values,
): Promise<Result | Result[]> {
  if (text.includes("fence.sweep")) return one({});
  if (text.startsWith("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")) {
    return [one({ ...backend.begin(Number(/lock_timeout = (\d+)/.exec(text)?.[1])) })];
  }
  if (text.startsWith("SET default_transaction_read_only")) return one({});
  if (text.startsWith("SELECT fence.raise_bracket")) return one({ got: true });
  if (text.includes("pg_catalog.pg_locks")) {
    return one({ raising: database.locks.heldByOthers("row", backend) });
  }
  const { row, incarnation } = database;
  if (text.startsWith("SELECT id FROM fence.raise_begin")) {
    const [name, generation, holder, nonce] = values as [string, number, string, string];
    await backend.raiseBegin(name, generation, holder, nonce, issuing(values.slice(4)));
    return one({ id: 1 });
  }
  if (text.startsWith("SELECT * FROM fence.raise(")) {
    const [fenceName, generation, holder, holderName, nonce] = values as [string, number, string, string, string];
    const identity: FenceIdentity = { fenceName, generation, holder, holderName };
    return one(await backend.raise(identity, nonce, issuing(values.slice(5))));
  }
  if (text.includes("fence.why_not_raised")) {
    const [, generation, holder] = values as [string, number, string];
    const refused = backend.isForeign(issuing(values.slice(3))) || backend.whyNotRaised(generation, holder) !== null;
    return one({ id: 1, below: generation, may: !refused });
  }
  if (text.startsWith("SELECT id FROM fence.close_begin")) {
    const [, generation, holder] = values as [string, number, string];
    await backend.closeBegin(generation, holder);
    return one({ id: 1 });
  }
  if (text.startsWith("SELECT * FROM fence.close(")) {
    const [, generation, holder] = values as [string, number, string];
    return one({ sessions_ended: await backend.close(generation, holder) });
  }
  if (text.includes("+ 1 AS below")) {
    const [, generation, holder] = values as [string, number, string];
    return one({ id: 1, below: generation + 1, may: row.generation === generation && row.holder === holder });
  }
  if (text.startsWith("SELECT fence.end_sessions")) return one({ ended: backend.endSessions(Number(values[1])) });
  if (text.startsWith("SELECT * FROM fence.blockers")) return { rows: [] };
  if (text.includes("FROM fence.job j LEFT JOIN fence.claim")) {
    if (row.generation === 0) return { rows: [] };
    const { generation, holder, holderName, issuer } = row;
    const raised = { id: 1, generation, holder, holder_name: holderName, issuer, incarnation: row.incarnation };
    const closed_at = database.state.closed.has(generation) ? new Date(0) : null;
    return one({ ...raised, present: incarnation, raised_at: null, closed_at });
  }
  throw new Error(`the modelled database does not know: ${text}`);
}

function issuing([issuer, acceptedIssuer, acceptedGeneration]: Values): Issuing {
  return { issuer, acceptedIssuer, acceptedGeneration } as Issuing;
}

const one = (row: Record<string, unknown>): Result => ({ rows: [row] });
