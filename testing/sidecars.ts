/** Real sidecars against a real PostgreSQL, with their proxies in their own threads; the Lease is a modelled one. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { withConnection } from "../fence/connection.ts";
import type { DatabaseAddress, TakeOver } from "../fence/database.ts";
import { type RawLease, readLease } from "../lease/record.ts";
import { parseReport, type Report } from "../lease/report.ts";
import type { SidecarDatabase } from "../lease/sidecarconfig.ts";
import type { LeaseTiming } from "../lease/timing.ts";
import { systemClock } from "../platform/clock.ts";
import { silentLogger } from "../platform/log.ts";
import { systemRandom } from "../platform/random.ts";
import { readCredentials } from "../sidecar/credentials.ts";
import { type SidecarState, startSidecarServer } from "../sidecar/http.ts";
import { Sidecar } from "../sidecar/sidecar.ts";
import { probeSession } from "../sidecar/wire/probe.ts";
import { startWire } from "../sidecar/wire/thread.ts";
import type { Fenced, JobOfTest } from "./fenced.ts";
import { ModelledLease } from "./modelledlease.ts";
import { freePort } from "./postgres.ts";

/** Renewed often, so that what a report says is soon there; long enough for a machine that is slow to start processes. */
const TIMING = { durationMs: 20_000, renewIntervalMs: 300, requestTimeoutMs: 2_000, marginMs: 500 };

export interface SidecarOfTestOptions {
  readonly generation?: number;
  readonly api?: ModelledLease;
  /** Of the first database. */
  readonly port?: number;
  readonly uid?: string;
  readonly socketDir?: string;
  readonly takeOver?: TakeOver;
  readonly purpose?: "close";
  readonly application?: "Started" | "NotStarted";
  readonly timing?: LeaseTiming;
  readonly startWire?: typeof startWire;
  /** Names of databases that have left the spec. */
  readonly closes?: readonly string[];
  /** Names; by default `ledger` alone. */
  readonly databases?: readonly string[];
}

export interface SidecarOfTest {
  readonly api: ModelledLease;
  /** Of the first database. */
  readonly port: number;
  /** Of all databases. */
  readonly ports: readonly number[];
  /** Resolves with the end of the sidecar's life. */
  readonly running: Promise<void>;
  end(): Promise<void>;
  closed(): boolean;
  started(): Promise<boolean>;
  /** As the kubelet asks: answered when it passes, or after a while. */
  probe(): Promise<boolean>;
  status(): Promise<SidecarState>;
  report(): Report | null;
  lastWords(): unknown;
  lease(): ReturnType<typeof readLease>;
}

/** One job's sidecars in one directory of Secrets; `end` ends whatever was begun. */
export class Sidecars {
  readonly dir = mkdtempSync(join(tmpdir(), "fencedjob-sidecar-"));
  readonly fenceName: string;
  readonly #fenced: Fenced;
  readonly #ends: (() => Promise<void>)[] = [];

  constructor(fenced: Fenced, fenceName: string) {
    this.#fenced = fenced;
    this.fenceName = fenceName;
  }

  get job(): JobOfTest {
    return this.#fenced.job(this.fenceName);
  }

  secret(values: Record<string, string>, database = "ledger"): void {
    mkdirSync(join(this.dir, database), { recursive: true });
    for (const [key, value] of Object.entries(values)) writeFileSync(join(this.dir, database, key), value);
  }

  /** Of the application's role. */
  goodSecret(database = "ledger", address: DatabaseAddress = this.#fenced.address): void {
    const { host, port, user, sslmode } = address;
    this.secret({ host, port: String(port), dbname: address.database, user, sslmode }, database);
  }

  #database(name: string, port: number): SidecarDatabase {
    return { name, port, secretName: `${name}-db`, dir: join(this.dir, name) };
  }

  async start(options: SidecarOfTestOptions = {}): Promise<SidecarOfTest> {
    const { uid = "uid-1", generation = 1, takeOver, purpose, databases = ["ledger"] } = options;
    const api = options.api ?? new ModelledLease(systemClock, { holder: uid, generation });
    const ports = await Promise.all(databases.map(() => freePort()));
    const port = options.port ?? (ports[0] as number);
    const httpPort = await freePort();
    const lastWordsPath = join(this.dir, `last-words-${uid}`);
    const sidecar = new Sidecar({
      config: {
        namespace: "n",
        job: "job",
        fenceName: this.fenceName,
        issuer: "test",
        ...(purpose && { purpose }),
        ...(takeOver && { takeOver }),
        ...(options.closes && { closes: options.closes.map((name) => this.#database(name, 5432)) }),
        application: options.application ?? "NotStarted",
        timing: options.timing ?? TIMING,
        drainMs: 200,
        databases: databases.map((name, index) => ({
          ...this.#database(name, index === 0 ? port : (ports[index] as number)),
          ...(options.socketDir && { socketDir: options.socketDir }),
        })),
        tokenDir: this.dir,
        httpPort,
        lastWordsPath,
      },
      pod: { name: `pod-${uid}`, uid },
      api,
      clock: systemClock,
      random: systemRandom,
      log: silentLogger,
      databases: { credentials: readCredentials, connect: withConnection, probe: probeSession },
      startWire: options.startWire ?? startWire,
      startServer: startSidecarServer,
      leaveLastWords: (words) => writeFileSync(lastWordsPath, JSON.stringify(words)),
    });
    const stop = new AbortController();
    const running = sidecar.run(stop.signal);
    const end = async (): Promise<void> => {
      stop.abort(new Error("SIGTERM"));
      await running;
    };
    // Who fails tells it to whom asks.
    this.#ends.push(() => end().catch(() => {}));
    const status = async (): Promise<SidecarState> =>
      (await (await fetch(`http://127.0.0.1:${httpPort}/status`)).json()) as SidecarState;
    return {
      api,
      port,
      ports: [port, ...ports.slice(1)],
      running,
      end,
      closed: () => sidecar.closed,
      started: async () => (await status()).started,
      probe: async () => (await fetch(`http://127.0.0.1:${httpPort}/started`)).ok,
      status,
      report: () => parseReport(readLease(api.lease as RawLease).report),
      lastWords: () => JSON.parse(readFileSync(lastWordsPath, "utf8")),
      lease: () => readLease(api.lease as RawLease),
    };
  }

  /** A client of the application's. */
  async connect(port: number, host = "127.0.0.1"): Promise<pg.Client> {
    const client = new pg.Client({ host, port, user: "app", database: this.#fenced.address.database });
    client.on("error", () => {});
    await client.connect();
    this.#ends.push(() => client.end().catch(() => {}));
    return client;
  }

  /** The code with which a client is not let in; empty if it is. */
  async refused(port: number): Promise<string> {
    try {
      await this.connect(port);
      return "";
    } catch (error) {
      return String((error as { code?: string }).code);
    }
  }

  async end(): Promise<void> {
    for (const end of this.#ends.splice(0)) await end();
    rmSync(this.dir, { recursive: true, force: true });
  }
}
