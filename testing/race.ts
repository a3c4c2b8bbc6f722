/**
 * The race that INV-3 must survive: many writers, of which most are often stale, against three raisers that are killed
 * at random; judged by the order of commits (testing/commitorder.ts).
 *
 * Most writers are NOT admitted sessions: a raise ends those, so that only the gate stands against the others.
 */
import type { Client } from "pg";
import { closeFence } from "../fence/close.ts";
import { enterLockSql, enterSelectSql } from "../fence/enter.ts";
import { protect } from "../fence/protect.ts";
import { systemClock as clock } from "../platform/clock.ts";
import type { Random } from "../platform/random.ts";
import { type CommitOrder, judgeCommitOrder } from "./commitorder.ts";
import { type Failure, FENCE_NAME, type Fenced } from "./fenced.ts";
import { seededRandom } from "./seeded.ts";

export interface RaceOptions {
  readonly seed: number;
  readonly ms: number;
  /** It goes on until so many raises have succeeded: a race of few is none, and a slow machine needs longer. */
  readonly raisesMin?: number;
  readonly writers?: number;
  readonly raisers?: number;
  /** The table is protected, and writers only claim their generation, or call fence.enter, instead of locking. */
  readonly protectedTable?: boolean;
  /** How many of the raised generations are closed by their own. */
  readonly closeShare?: number;
}

const CLOSE_SHARE = 0.3;
/** Of its time, for the raises that it needs. */
const LONGER_MAX = 5;
/** For each raise that succeeds: by a rate in time alone, a machine that raises slowly would never do it. */
const KILLS_PER_RAISE_MAX = 3;

export interface RaceOutcome extends CommitOrder {
  /** Transactions refused at the gate. */
  readonly refused: number;
  /** Raises that lost to a higher one, and raisers that were killed or cut off. */
  readonly raisesLost: number;
  readonly raisersKilled: number;
  /** Raises and closes that were not done in their time, of which a busy machine has some: each is for the next to do. */
  readonly late: number;
  /** Slowest raise that succeeded. */
  readonly raiseMsMax: number;
  /** What went wrong otherwise; must be empty. */
  readonly unexpected: readonly string[];
}

/** Settings the server must be started with. */
export const RACE_SETTINGS = { wal_level: "logical", max_connections: "100" };

const LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

export async function race(fenced: Fenced, options: RaceOptions): Promise<RaceOutcome> {
  const run = new Race(fenced, options);
  await run.prepare();
  return await run.run();
}

class Race {
  readonly #fenced: Fenced;
  readonly #options: Required<RaceOptions>;
  readonly #random: Random;
  readonly #untilMs: number;
  #jobId = 0;
  #raises = 0;
  /** Highest generation given to a raiser, and highest one raised. */
  #issued = 1;
  #raised = 1;
  readonly #seen = { refused: 0, raisesLost: 0, raisersKilled: 0, late: 0, raiseMsMax: 0, unexpected: [] as string[] };

  constructor(fenced: Fenced, options: RaceOptions) {
    this.#fenced = fenced;
    this.#options = {
      writers: 14,
      raisers: 3,
      raisesMin: 0,
      protectedTable: false,
      closeShare: CLOSE_SHARE,
      ...options,
    };
    this.#random = seededRandom(options.seed);
    this.#untilMs = clock.monoMs() + options.ms;
  }

  async prepare(): Promise<void> {
    const admin = await this.#fenced.connectAdmin();
    await admin.query("CREATE TABLE ledger (id bigserial PRIMARY KEY, generation bigint NOT NULL)");
    await admin.query("GRANT ALL ON ledger, ledger_id_seq TO invoice_app");
    await admin.query("SELECT pg_create_logical_replication_slot('judge', 'test_decoding')");
    this.#jobId = (await this.#fenced.raise(1)).jobId;
    if (this.#options.protectedTable) await protect(this.#fenced.admin, FENCE_NAME, ["ledger"]);
  }

  async run(): Promise<RaceOutcome> {
    const { writers, raisers } = this.#options;
    const actors = [
      ...Array.from({ length: writers }, () => this.#writer()),
      this.#admittedWriter(),
      ...Array.from({ length: raisers }, () => this.#raiser()),
      this.#killer(),
    ];
    await Promise.all(actors);
    const admin = await this.#fenced.connectAdmin();
    const { rows } = await admin.query(
      "SELECT data FROM pg_logical_slot_get_changes('judge', NULL, NULL, 'include-xids', '0', 'skip-empty-xacts', '1')",
    );
    await admin.query("SELECT pg_drop_replication_slot('judge')");
    return {
      ...judgeCommitOrder(
        rows.map(({ data }) => data),
        "public.ledger",
      ),
      ...this.#seen,
    };
  }

  /** Believes in a generation for a while, also after it is over. */
  async #writer(): Promise<void> {
    const client = await this.#fenced.connect();
    if (this.#chance(0.5)) await client.query("SET plan_cache_mode = force_generic_plan");
    let generation = 1;
    while (this.#goesOn()) {
      if (this.#chance(0.3)) generation = this.#raised;
      await this.#write(client, generation);
    }
  }

  /** As the wire's sessions: admitted, ended by the raise, admitted again. */
  async #admittedWriter(): Promise<void> {
    while (this.#goesOn()) {
      const generation = this.#raised;
      try {
        const client = await this.#fenced.admit(this.#jobId, generation, { holder: `uid-${generation}` });
        while (this.#goesOn() && (await this.#write(client, generation)));
        await client.end();
      } catch (error) {
        if (!isRefusal(error) && !isLoss(error)) this.#unexpected("admission", error);
      }
    }
  }

  /** One transaction: at any level, with either way to enter, with pauses between its statements. False: refused. */
  async #write(client: Client, generation: number): Promise<boolean> {
    const level = LEVELS[this.#below(LEVELS.length)];
    try {
      await client.query(`BEGIN ISOLATION LEVEL ${level} READ WRITE`);
      await this.#pause(3, 0.3);
      await this.#enter(client, generation);
      for (let statement = this.#below(3); statement >= 0; statement--) {
        await this.#pause(3, 0.5);
        await client.query("INSERT INTO ledger (generation) VALUES ($1)", [generation]);
      }
      await this.#pause(5, 0.3);
      await client.query("COMMIT");
      return true;
    } catch (error) {
      if (isRefusal(error)) this.#seen.refused++;
      else if (!isLoss(error)) this.#unexpected("write", error);
      await client.query("ROLLBACK").catch(() => {});
      // A stale writer that spins would take the processor from the race.
      await clock.sleep(2);
      return false;
    }
  }

  async #enter(client: Client, generation: number): Promise<void> {
    const one = this.#chance(0.5);
    if (this.#options.protectedTable) {
      if (one) await client.query("SELECT fence.enter($1, $2)", [FENCE_NAME, generation]);
      else await client.query(`SET LOCAL fence.generation_${this.#jobId} = ${generation}`);
    } else if (one) await client.query(enterLockSql(this.#jobId, generation));
    else await client.query({ name: `enter_${generation}`, text: enterSelectSql(this.#jobId, generation) });
  }

  async #raiser(): Promise<void> {
    while (this.#goesOn()) {
      await this.#pause(60, 1);
      const generation = ++this.#issued;
      const abort = new AbortController();
      const cancel = this.#chance(0.25)
        ? clock.after(this.#below(25), () => abort.abort(new Error("cut off")))
        : undefined;
      try {
        const raised = await this.#fenced.raise(generation, { drainMs: this.#below(80), signal: abort.signal });
        this.#raises++;
        this.#raised = Math.max(this.#raised, generation);
        this.#seen.raiseMsMax = Math.max(this.#seen.raiseMsMax, Math.round(raised.tookMs));
        if (this.#chance(this.#options.closeShare)) await this.#close(generation);
      } catch (error) {
        if (abort.signal.aborted) this.#seen.raisersKilled++;
        else if (isLost(error)) this.#seen.raisesLost++;
        else if (isLate(error)) this.#seen.late++;
        else this.#unexpected(`raise ${generation}`, error);
      } finally {
        cancel?.();
      }
    }
  }

  /** Gives the generation up, perhaps while another raiser is at it. */
  async #close(generation: number): Promise<void> {
    await this.#pause(30, 1);
    try {
      await closeFence(this.#fenced.address, this.#fenced.identity(generation), { drainMs: this.#below(80), clock });
    } catch (error) {
      if (isLate(error)) this.#seen.late++;
      else if (!isLost(error)) this.#unexpected(`close ${generation}`, error);
    }
  }

  /** Ends server sessions of raisers: they go on under the same nonce, or have lost. */
  async #killer(): Promise<void> {
    const admin = await this.#fenced.connectAdmin();
    let kills = 0;
    while (this.#goesOn()) {
      await this.#pause(100, 1);
      if (kills > KILLS_PER_RAISE_MAX * this.#raises) continue;
      const { rowCount } = await admin.query(
        `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE application_name IN ('fencedjob raise', 'fencedjob close', 'fencedjob drain') ORDER BY (pid * $1::bigint) % 97 LIMIT 1`,
        [1 + this.#below(96)],
      );
      kills += rowCount ?? 0;
      this.#seen.raisersKilled += rowCount ?? 0;
    }
  }

  #unexpected(doing: string, error: unknown): void {
    const { code, message, detail } = error as Failure;
    this.#seen.unexpected.push(`${doing}: ${code} ${message} ${detail ?? ""}`);
  }

  #goesOn(): boolean {
    const { ms, raisesMin } = this.#options;
    const overMs = clock.monoMs() - this.#untilMs;
    return overMs < 0 || (this.#raises < raisesMin && overMs < (LONGER_MAX - 1) * ms);
  }

  #chance(probability: number): boolean {
    return this.#random.unit() < probability;
  }

  #below(bound: number): number {
    return Math.floor(this.#random.unit() * bound);
  }

  async #pause(msMax: number, probability: number): Promise<void> {
    if (this.#chance(probability)) await clock.sleep(this.#below(msMax));
  }
}

function isRefusal(error: unknown): boolean {
  return ["42501", "42P01", "LF001"].includes((error as Failure).code);
}

/** A higher one was raised; or the killer met a connection that was just being made, which the caller tries again. */
function isLost(error: unknown): boolean {
  const { code, detail } = error as Failure;
  return code === "LF001" || (code === "LF015" && /57P01|Connection terminated|not queryable|ECONNRESET/.test(detail));
}

/** Its bound has ended a wait for a lock (LF004), or a statement that the machine was too slow for. */
function isLate(error: unknown): boolean {
  const { code, detail } = error as Failure;
  return code === "LF004" || (code === "LF015" && /57014|did not answer in time/.test(detail));
}

/** The raise ended this session. */
function isLoss(error: unknown): boolean {
  const { code, message } = error as Failure;
  return code === "57P01" || /Connection terminated|not queryable|ECONNRESET|EPIPE/.test(`${message} ${code}`);
}
