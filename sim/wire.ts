/**
 * The sidecar's proxy and the application behind it, as the database and the permit see them: sessions that are admitted,
 * transactions that enter, and at each message a look at the permit (INV-5). The wire itself is in sidecar/wire/.
 */
import type { Witness } from "../fence/witness.ts";
import type { Wire, WireOptions } from "../sidecar/wire/thread.ts";
import type { Database } from "./database.ts";
import type { Network } from "./network.ts";
import type { Process } from "./process.ts";
import { Session } from "./sqlclient.ts";

const CONNECTIONS = 2;
const THINK_MS_MAX = 2_000;
/** A transaction stays open for so long, now and then. */
const IDLE_MS_MAX = 8_000;
const IDLE_SHARE = 0.1;
/** Without an answer a connection is given up. */
const ANSWER_MS_MAX = 20_000;
const RECONNECT_MS = 500;

export interface WirePlace {
  readonly process: Process;
  readonly place: string;
  readonly network: Network;
  readonly database: Database;
  /** Something of this generation is sent that may take effect. */
  readonly onMessage: (generation: number) => void;
}

/** Commits that clients were told of. */
export class ModelledWire implements Wire {
  readonly port = 5432;
  committed = 0;
  witness: Witness | undefined;
  #rejected = 0;
  #stopped = false;
  readonly #options: WireOptions;
  readonly #at: WirePlace;
  readonly #sessions = new Set<Session>();

  constructor(options: WireOptions, at: WirePlace) {
    this.#options = options;
    this.witness = options.witness;
    this.#at = at;
  }

  /** The application connects. */
  open(): void {
    for (let i = 0; i < CONNECTIONS; i++) void this.#client();
  }

  counts(): ReturnType<Wire["counts"]> {
    return { sessionsOpen: 0, sessionsTotal: 0, messages: 0, refusedLost: this.#rejected, refusedUnconfirmed: 0 };
  }

  rejectedWrites(): number {
    return this.#rejected;
  }

  confirmed(witness: Witness): void {
    this.witness = witness;
  }

  /** The database lacks what was confirmed of this generation. */
  isSetBack(generation: number): boolean {
    const { identity } = this.#options;
    if (identity.generation !== generation || !this.witness) return false;
    return !this.#at.database.stands(generation, this.witness);
  }

  stop(): Promise<void> {
    this.#stopped = true;
    for (const session of this.#sessions) session.close();
    return Promise.resolve();
  }

  async #client(): Promise<void> {
    const { process } = this.#at;
    while (!this.#stopped && process.alive && !this.#isLost()) {
      try {
        await this.#session();
      } catch {
        await process.clock.sleep(RECONNECT_MS);
      }
    }
  }

  #isLost(): boolean {
    const { permit } = this.#options;
    return permit.state(this.#at.process.clock.monoMs()) === "lost";
  }

  async #session(): Promise<void> {
    const { process, place, network, database } = this.#at;
    const { identity } = this.#options;
    if (!this.#permitted()) throw new Error("not permitted");
    const { witness } = this;
    const session = await this.#answered(Session.open(process, place, network, database));
    this.#sessions.add(session);
    try {
      await this.#answered(
        session.run(async (backend) => {
          await backend.run(() => backend.enter(identity.generation));
          await backend.run(() => backend.admit(identity, witness));
          backend.commit();
        }),
      );
      while (!this.#stopped) {
        await process.clock.sleep(process.random.unit() * THINK_MS_MAX);
        await this.#transaction(session);
      }
    } catch (error) {
      await this.#judge(error);
      throw error;
    } finally {
      this.#sessions.delete(session);
      session.close();
    }
  }

  async #transaction(session: Session): Promise<void> {
    const { clock, random } = this.#at.process;
    const { generation } = this.#options.identity;
    if (!this.#permitted()) return;
    await this.#answered(
      session.run(async (backend) => {
        await backend.run(() => backend.enter(generation));
        await backend.run(() => backend.write(generation));
      }),
    );
    if (random.unit() < IDLE_SHARE) await clock.sleep(random.unit() * IDLE_MS_MAX);
    if (!this.#permitted()) {
      await this.#answered(session.run((backend) => backend.rollback()));
      return;
    }
    await this.#answered(session.run((backend) => backend.commit()));
    this.committed++;
  }

  /** INV-5: asked at each message that begins or commits protected work. */
  #permitted(): boolean {
    const { permit, identity } = this.#options;
    const valid = permit.state(this.#at.process.clock.monoMs()) === "valid";
    if (valid) this.#at.onMessage(identity.generation);
    else this.#rejected++;
    return valid;
  }

  /** As the wire does: the fence row says whether ownership is over. */
  async #judge(error: unknown): Promise<void> {
    const code = (error as { code?: unknown }).code;
    if (code !== "42501" && code !== "42P01" && code !== "LF001" && code !== "LF003" && code !== "57P01") return;
    const { process, place, network, database } = this.#at;
    const { generation, holder } = this.#options.identity;
    const row = await this.#answered(
      network.call(process, place, () => {
        const { row, state, incarnation } = database;
        const isSetBack = this.witness && !database.stands(row.generation, this.witness);
        return { ...row, present: incarnation, over: isSetBack || state.closed.has(row.generation) };
      }),
    ).catch(() => null);
    if (!row) return;
    if (row.generation !== generation || row.holder !== holder || row.incarnation !== row.present || row.over) {
      this.#options.lost(`the fence is at generation ${row.generation}`);
    }
  }

  #answered<T>(promise: Promise<T>): Promise<T> {
    const { clock } = this.#at.process;
    const { promise: late, reject } = Promise.withResolvers<never>();
    const cancel = clock.after(ANSWER_MS_MAX, () => reject(new Error("no answer")));
    late.catch(() => {});
    return Promise.race([promise, late]).finally(cancel);
  }
}
