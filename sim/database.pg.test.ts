/**
 * That the modelled database answers as PostgreSQL does: the same random steps (raise, close, admit, enter, write, commit,
 * roll back, lose the connection) on both, by the real client of the fence, and the same answers. What the simulation shows of the fence
 * is worth as much as this.
 */
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type RaiseOptions, raise, readFence } from "../fence/client.ts";
import { closeFence } from "../fence/close.ts";
import type { DatabaseAddress, FenceIdentity } from "../fence/database.ts";
import { enterLockSql } from "../fence/enter.ts";
import { systemClock } from "../platform/clock.ts";
import type { Random } from "../platform/random.ts";
import { type Fenced, startFenced } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { seededRandom } from "../testing/seeded.ts";
import { type Backend, Database } from "./database.ts";
import { Network } from "./network.ts";
import { newProcess } from "./process.ts";
import { Scheduler } from "./scheduler.ts";
import { connectTo } from "./sqlclient.ts";
import { SqlError } from "./sqlerror.ts";

const STEPS = 50;
const GENERATIONS = 10;
const SESSIONS = 4;
/** Beyond what the fence goes up by at once. */
const ABSURD = 5_000_000;
const ISSUERS = ["cluster-1", "cluster-1", "cluster-1", "cluster-2", ""] as const;

type Raise = Omit<RaiseOptions, "clock" | "connect" | "drainMs">;

/** One of the two that are compared. Each answer is a text; an error is its kind. */
interface Side {
  raise(identity: FenceIdentity, options: Raise): Promise<string>;
  close(identity: FenceIdentity): Promise<string>;
  row(fenceName: string): Promise<string>;
  admit(session: number, identity: FenceIdentity): Promise<string>;
  enter(session: number): Promise<string>;
  write(session: number): Promise<string>;
  commit(session: number): Promise<string>;
  rollback(session: number): Promise<string>;
  lose(session: number): Promise<string>;
  /** The generations of what was committed. */
  work(): Promise<string>;
}

/** A closed gate is told in several ways, by where it is met first; all of them are a refusal. */
function kindOf(error: unknown): string {
  const { code, message = "" } = error as { code?: string; message?: string };
  if (["42501", "42P01", "LF001", "LF003"].includes(code ?? "")) return "refused";
  if (code === "LF005") return "foreign";
  if (code === "25P02") return "aborted";
  if (["57P01", "08006", "no session"].includes(code ?? "") || /terminat|not queryable|closed/i.test(message))
    return "ended";
  throw error;
}

const told = async (step: Promise<unknown>): Promise<string> => {
  try {
    return String((await step) ?? "done");
  } catch (error) {
    return kindOf(error);
  }
};

const sorted = (generations: readonly number[]): string => generations.toSorted((a, b) => a - b).join(" ");

const noSession = (): SqlError => new SqlError("no session", "the session has ended");

/** The simulation's database, behind its network and on its clock. */
class Modelled implements Side {
  readonly #scheduler = new Scheduler();
  readonly #database = new Database(this.#scheduler, "ledger");
  readonly #process = newProcess("pod", { scheduler: this.#scheduler, seed: 1 });
  readonly #connect = connectTo(this.#process, "ledger", new Network(this.#scheduler, 1), this.#database);
  readonly #sessions = new Map<number, { backend: Backend; identity: FenceIdentity }>();
  readonly #address = {
    host: "ledger",
    port: 1,
    database: "ledger",
    user: "app",
    sslmode: "disable",
  } as DatabaseAddress;

  async #inTime<T>(step: Promise<T>): Promise<T> {
    let ended = false;
    const settled = step.finally(() => {
      ended = true;
    });
    settled.catch(() => {});
    while (!ended) await this.#scheduler.run(this.#scheduler.nowMs + 100, () => {});
    return settled;
  }

  raise(identity: FenceIdentity, options: Raise): Promise<string> {
    const { clock } = this.#process;
    const raising = raise(this.#address, identity, { ...options, clock, drainMs: 0, connect: this.#connect });
    return told(this.#inTime(raising).then(({ previousGeneration }) => `after ${previousGeneration}`));
  }

  close(identity: FenceIdentity): Promise<string> {
    const { clock } = this.#process;
    return told(
      this.#inTime(closeFence(this.#address, identity, { clock, drainMs: 0, connect: this.#connect })).then(
        () => "closed",
      ),
    );
  }

  async row(fenceName: string): Promise<string> {
    const { clock } = this.#process;
    const row = await this.#inTime(readFence(this.#address, fenceName, { clock, connect: this.#connect }));
    return row === null ? "0" : `${row.generation} ${row.holder}`;
  }

  admit(session: number, identity: FenceIdentity): Promise<string> {
    const backend = this.#database.connect();
    const admitted = async (): Promise<void> => {
      try {
        await backend.run(() => backend.enter(identity.generation));
        await backend.run(() => backend.admit(identity));
        backend.commit();
        this.#sessions.set(session, { backend, identity });
      } catch (error) {
        backend.end(new SqlError("08006", "gone", "FATAL"));
        throw error;
      }
    };
    return told(admitted());
  }

  async #on(session: number, use: (backend: Backend, generation: number) => unknown): Promise<string> {
    const known = this.#sessions.get(session);
    return told(
      (async () => {
        if (!known) throw noSession();
        await use(known.backend, known.identity.generation);
      })(),
    );
  }

  enter = (session: number): Promise<string> =>
    this.#on(session, (backend, generation) => backend.run(() => backend.enter(generation)));
  write = (session: number): Promise<string> =>
    this.#on(session, (backend, generation) => backend.run(() => backend.write(generation)));
  commit = (session: number): Promise<string> => this.#on(session, (backend) => backend.commit());
  rollback = (session: number): Promise<string> => this.#on(session, (backend) => backend.rollback());
  lose(session: number): Promise<string> {
    this.#sessions.get(session)?.backend.end(new SqlError("08006", "gone", "FATAL"));
    this.#sessions.delete(session);
    return Promise.resolve("done");
  }
  work = (): Promise<string> => Promise.resolve(sorted(this.#database.state.work));
}

/** A server of PostgreSQL, with sessions as the wire opens them. */
class Real implements Side {
  readonly #fenced: Fenced;
  readonly #fenceName: string;
  readonly #table: string;
  readonly #admin: pg.Client;
  readonly #sessions = new Map<number, { client: pg.Client; jobId: number; generation: number }>();

  constructor(fenced: Fenced, admin: pg.Client, fenceName: string, table: string) {
    this.#fenced = fenced;
    this.#admin = admin;
    this.#fenceName = fenceName;
    this.#table = table;
  }

  raise(identity: FenceIdentity, options: Raise): Promise<string> {
    const raising = raise(this.#fenced.address, identity, { ...options, clock: systemClock, drainMs: 0 });
    return told(raising.then(({ previousGeneration }) => `after ${previousGeneration}`));
  }

  close(identity: FenceIdentity): Promise<string> {
    return told(closeFence(this.#fenced.address, identity, { clock: systemClock, drainMs: 0 }).then(() => "closed"));
  }

  async row(fenceName: string): Promise<string> {
    const row = await readFence(this.#fenced.address, fenceName, { clock: systemClock });
    return row === null || row.generation === 0 ? "0" : `${row.generation} ${row.holder}`;
  }

  admit(session: number, { generation, holder }: FenceIdentity): Promise<string> {
    return told(
      (async () => {
        const { rows } = await this.#admin.query("SELECT id FROM fence.job WHERE name = $1", [this.#fenceName]);
        const jobId: number = rows[0]?.id ?? 1_000_000;
        const client = await this.#fenced.job(this.#fenceName).admit(jobId, generation, { holder });
        this.#sessions.set(session, { client, jobId, generation });
      })(),
    );
  }

  #on(session: number, sqlOf: (jobId: number, generation: number) => string): Promise<string> {
    const known = this.#sessions.get(session);
    return told(
      (async () => {
        if (!known) throw noSession();
        const { command } = await known.client.query(sqlOf(known.jobId, known.generation));
        return command === "ROLLBACK" ? command : undefined;
      })(),
    );
  }

  enter = (session: number): Promise<string> =>
    this.#on(session, (jobId, generation) => `BEGIN READ WRITE; ${enterLockSql(jobId, generation)}`);
  write = (session: number): Promise<string> =>
    this.#on(session, (_jobId, generation) => `INSERT INTO ${this.#table} (generation) VALUES (${generation})`);
  async commit(session: number): Promise<string> {
    const answer = await this.#on(session, () => "COMMIT");
    // PostgreSQL says so without an error; the wire makes one of it (INV-10).
    return answer === "ROLLBACK" ? "aborted" : answer;
  }
  rollback = (session: number): Promise<string> =>
    this.#on(session, () => "ROLLBACK").then((answer) => (answer === "ROLLBACK" ? "done" : answer));
  async lose(session: number): Promise<string> {
    await this.#sessions
      .get(session)
      ?.client.end()
      .catch(() => {});
    this.#sessions.delete(session);
    return "done";
  }
  async work(): Promise<string> {
    const { rows } = await this.#admin.query(`SELECT generation::int FROM ${this.#table}`);
    return sorted(rows.map(({ generation }) => generation));
  }
}

/** What each side is asked, and in words. `inside`: sessions that are in a transaction. */
function draw(
  random: Random,
  fenceName: string,
  inside: Map<number, boolean>,
): { text: string; ask: (side: Side) => Promise<string> } {
  const among = (count: number): number => Math.floor(random.unit() * count);
  const session = among(SESSIONS);
  const generation = 1 + among(GENERATIONS);
  const holder = `uid-${random.unit() < 0.8 ? generation : 1 + among(GENERATIONS)}`;
  const identity: FenceIdentity = { fenceName, generation, holder, holderName: `pod of ${holder}` };
  const act = random.unit();
  if (act < 0.2) {
    const raised = { ...identity, generation: random.unit() < 0.05 ? ABSURD : generation };
    const issuer = ISSUERS[among(ISSUERS.length)] ?? "";
    const nonce = `nonce-${random.unit() < 0.9 ? holder : "other"}`;
    const text = `raise ${raised.generation} by ${holder}, ${nonce}, of ${issuer || "nobody"}`;
    return { text, ask: (side) => side.raise(raised, { issuer, nonce }) };
  }
  if (act < 0.25) return { text: `close ${generation} of ${holder}`, ask: (side) => side.close(identity) };
  if (act < 0.47) {
    inside.set(session, false);
    const ask = async (side: Side): Promise<string> => {
      await side.lose(session);
      return side.admit(session, identity);
    };
    return { text: `session ${session} is admitted for ${generation}, ${holder}`, ask };
  }
  if (act < 0.5) {
    inside.set(session, false);
    return { text: `session ${session} is lost`, ask: (side) => side.lose(session) };
  }
  if (!inside.get(session)) {
    inside.set(session, true);
    return { text: `session ${session} enters`, ask: (side) => side.enter(session) };
  }
  if (act < 0.75) return { text: `session ${session} writes`, ask: (side) => side.write(session) };
  inside.set(session, false);
  return act < 0.95
    ? { text: `session ${session} commits`, ask: (side) => side.commit(session) }
    : { text: `session ${session} rolls back`, ask: (side) => side.rollback(session) };
}

describe.each(postgresVersions().found)("the modelled database and PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
  });
  afterAll(() => fenced?.stop());

  test.each([1, 2, 3, 4])("INV-1, INV-2, INV-3, INV-7: they answer alike, walk %i", async (seed) => {
    const table = `work_${seed}`;
    await admin.query(`CREATE TABLE ${table} (generation bigint);
      GRANT INSERT ON ${table} TO PUBLIC`);
    const fenceName = `test/alike-${seed}`;
    const [modelled, real] = [new Modelled(), new Real(fenced, admin, fenceName, table)];
    const random = seededRandom(seed * 7_919);
    const inside = new Map<number, boolean>();
    const story: string[] = [];
    for (let step = 0; step < STEPS; step++) {
      const { text, ask } = draw(random, fenceName, inside);
      const [expected, answered] = [await ask(real), await ask(modelled)];
      story.push(`${text}: ${expected}`);
      expect(answered, story.join("\n")).toBe(expected);
      expect(await modelled.row(fenceName), story.join("\n")).toBe(await real.row(fenceName));
    }
    expect(await modelled.work(), story.join("\n")).toBe(await real.work());
  });
});
