/**
 * The sidecar's proxy and the application behind it, as the database and the permit see them: sessions that are admitted,
 * transactions that enter, and at each message a look at the permit (INV-5). The wire itself is in sidecar/wire/.
 */
import type { FenceIdentity } from "../fence/database.ts";
import type { Witness } from "../fence/witness.ts";
import type { RaisedGeneration } from "../sidecar/wire/admission.ts";
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
  /** Clients are given sessions of this generation from now on. */
  readonly onServe: (generation: number) => void;
  /** Something of this generation is sent that may take effect. */
  readonly onMessage: (generation: number) => void;
}

export class ModelledWire implements Wire {
  readonly port: number;
  /** That a client was told of. */
  commits = 0;
  witness: Witness | undefined;
  #rejected = 0;
  #sessions = 0;
  #raised: RaisedGeneration | undefined;
  #open = false;
  #stopped = false;
  readonly #options: WireOptions;
  readonly #at: WirePlace;
  readonly #living = new Set<Session>();

  constructor(options: WireOptions, at: WirePlace) {
    this.port = options.listen.port;
    this.#options = options;
    this.#at = at;
  }

  get place(): string {
    return this.#at.place;
  }

  /** The application connects. */
  open(): void {
    this.#open = true;
    this.#begin();
  }

  serve(raised: RaisedGeneration): void {
    if (this.#raised) return;
    this.#raised = raised;
    this.witness = raised.witness;
    this.#at.onServe(raised.identity.generation);
    this.#begin();
  }

  /** Whoever is held gives up; the application goes on trying, in vain. */
  refuse(): void {}

  counts(): ReturnType<Wire["counts"]> {
    return {
      sessionsOpen: this.#living.size,
      sessionsTotal: this.#sessions,
      messages: 0,
      refusedLost: this.#rejected,
      refusedUnconfirmed: 0,
      held: 0,
    };
  }

  rejectedWrites(): number {
    return this.#rejected;
  }

  confirmed(witness: Witness): void {
    this.witness = witness;
  }

  /** The database lacks what was confirmed of this generation. */
  isSetBack(generation: number): boolean {
    if (this.#raised?.identity.generation !== generation || !this.witness) return false;
    return !this.#at.database.stands(generation, this.witness);
  }

  stop(): Promise<void> {
    this.#stopped = true;
    for (const session of this.#living) session.close();
    return Promise.resolve();
  }

  /** It was held until both are there. */
  #begin(): void {
    const { identity } = this.#raised ?? {};
    if (!this.#open || !identity) return;
    for (let i = 0; i < CONNECTIONS; i++) void this.#client(identity);
  }

  async #client(identity: FenceIdentity): Promise<void> {
    const { process } = this.#at;
    while (!this.#stopped && process.alive && !this.#isLost()) {
      try {
        await this.#session(identity);
      } catch {
        await process.clock.sleep(RECONNECT_MS);
      }
    }
  }

  #isLost(): boolean {
    const { permit } = this.#options;
    return permit.state(this.#at.process.clock.monoMs()) === "lost";
  }

  async #session(identity: FenceIdentity): Promise<void> {
    const { process, place, network, database } = this.#at;
    if (!this.#permitted(identity)) throw new Error("not permitted");
    const { witness } = this;
    const session = await this.#answered(Session.open(process, place, network, database));
    this.#living.add(session);
    try {
      await this.#answered(
        session.run(async (backend) => {
          await backend.run(() => backend.enter(identity.generation));
          await backend.run(() => backend.admit(identity, witness));
          backend.commit();
        }),
      );
      if (++this.#sessions === 1) this.#options.joined?.();
      while (!this.#stopped) {
        await process.clock.sleep(process.random.unit() * THINK_MS_MAX);
        await this.#transaction(session, identity);
      }
    } catch (error) {
      await this.#judge(error, identity);
      throw error;
    } finally {
      this.#living.delete(session);
      session.close();
    }
  }

  async #transaction(session: Session, identity: FenceIdentity): Promise<void> {
    const { clock, random } = this.#at.process;
    const { generation } = identity;
    if (!this.#permitted(identity)) return;
    await this.#answered(
      session.run(async (backend) => {
        await backend.run(() => backend.enter(generation));
        await backend.run(() => backend.write(generation));
      }),
    );
    if (random.unit() < IDLE_SHARE) await clock.sleep(random.unit() * IDLE_MS_MAX);
    if (!this.#permitted(identity)) {
      await this.#answered(session.run((backend) => backend.rollback()));
      return;
    }
    await this.#answered(session.run((backend) => backend.commit()));
    this.commits++;
  }

  /** INV-5: asked at each message that begins or commits protected work. */
  #permitted({ generation }: FenceIdentity): boolean {
    const { permit } = this.#options;
    const valid = permit.state(this.#at.process.clock.monoMs()) === "valid";
    if (valid) this.#at.onMessage(generation);
    else this.#rejected++;
    return valid;
  }

  /** As the wire does: the fence row says whether ownership is over. */
  async #judge(error: unknown, { generation, holder }: FenceIdentity): Promise<void> {
    const code = (error as { code?: unknown }).code;
    if (code !== "42501" && code !== "42P01" && code !== "LF001" && code !== "LF003" && code !== "57P01") return;
    const { process, place, network, database } = this.#at;
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
