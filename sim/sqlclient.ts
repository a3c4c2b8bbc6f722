/**
 * A process's connection to the modelled database, as far as the fence's client and the wire use one: the statements
 * that they send, by their text. One that is not known here is a fault of the simulation.
 */
import type pg from "pg";
import type { Connect } from "../fence/connection.ts";
import type { FenceIdentity } from "../fence/database.ts";
import { FenceError } from "../fence/errors.ts";
import type { Backend, Database } from "./database.ts";
import type { Issuing } from "./databasestate.ts";
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

type Run = (at: Backend, values: Values, text: string, database: Database) => Result | Result[] | Promise<Result>;

/** By a piece of its text that no other has. */
const STATEMENTS: readonly (readonly [piece: string, run: Run])[] = [
  ["fence.sweep", () => one({})],
  [
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
    (at, _values, text) => {
      const bound = /lock_timeout = (\d+)/.exec(text);
      return bound ? [one({ ...at.begin(Number(bound[1])) })] : one({ ...at.begin() });
    },
  ],
  ["SET default_transaction_read_only", () => one({})],
  ["SELECT fence.raise_bracket", () => one({ got: true })],
  ["pg_catalog.pg_locks", (at, _values, _text, { locks }) => one({ raising: locks.heldByOthers("row", at) })],
  [
    "FROM fence.raise_begin",
    async (at, values) => {
      const [name, generation, holder, nonce] = values as [string, number, string, string];
      await at.raiseBegin(name, generation, holder, nonce, issuing(values.slice(4)));
      return one({ id: 1 });
    },
  ],
  [
    "FROM fence.raise(",
    async (at, values) => {
      const [fenceName, generation, holder, holderName, nonce] = values as [string, number, string, string, string];
      const identity: FenceIdentity = { fenceName, generation, holder, holderName };
      return one(await at.raise(identity, nonce, issuing(values.slice(5))));
    },
  ],
  [
    "FROM fence.close_begin",
    async (at, [, generation, holder]) => {
      await at.closeBegin(generation as number, holder as string);
      return one({ id: 1 });
    },
  ],
  [
    "FROM fence.close(",
    async (at, [, generation, holder]) =>
      one({ sessions_ended: await at.close(generation as number, holder as string) }),
  ],
  [
    "SELECT fence.beat",
    async (at, values) => {
      const [, generation, holder, incarnation, counter, nonce, next] = values as [
        ...[number, number, string, string],
        ...[number, string, string],
      ];
      await at.beat({ generation, holder }, { incarnation, witness: { counter, nonce }, next });
      return one({});
    },
  ],
  [
    "fence.why_not_raised",
    (at, values) => {
      const [, generation, holder] = values as [string, number, string];
      const refused = at.isForeign(issuing(values.slice(3))) || at.whyNotRaised(generation, holder) !== null;
      return one({ id: 1, below: generation, may: !refused });
    },
  ],
  [
    "+ 1 AS below",
    (_at, values, _text, { row }) => {
      const [, generation, holder] = values as [string, number, string];
      return one({ id: 1, below: generation + 1, may: row.generation === generation && row.holder === holder });
    },
  ],
  ["SELECT fence.end_sessions", (at, [, below]) => one({ ended: at.endSessions(Number(below)) })],
  ["FROM fence.blockers", () => ({ rows: [] })],
  ["FROM fence.job j LEFT JOIN fence.claim", (_at, _values, _text, database) => ({ rows: rowsOf(database) })],
];

function statement(backend: Backend, database: Database, text: string, values: Values): ReturnType<Run> {
  const run = STATEMENTS.find(([piece]) => text.includes(piece))?.[1];
  if (!run) throw new Error(`the modelled database does not know: ${text}`);
  return run(backend, values, text, database);
}

/** As `readFence` asks for it. */
function rowsOf({ row, state, incarnation }: Database): Record<string, unknown>[] {
  const { generation, holder, holderName, issuer } = row;
  if (generation === 0) return [];
  const raised = { id: 1, generation, holder, holder_name: holderName, issuer, incarnation: row.incarnation };
  const closed_at = state.closed.has(generation) ? new Date(0) : null;
  const witness = state.witness.get(generation) ?? { counter: null, nonce: null };
  return [{ ...raised, present: incarnation, raised_at: null, closed_at, ...witness }];
}

function issuing([issuer, acceptedIssuer, acceptedGeneration]: Values): Issuing {
  return { issuer, acceptedIssuer, acceptedGeneration } as Issuing;
}

const one = (row: Record<string, unknown>): Result => ({ rows: [row] });
