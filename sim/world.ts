/**
 * One simulated world: an API server, databases, two controllers, kubelets and the pods of one job, a network between
 * them, and the faults of one history. Real: everything of controller/, the sidecar but for its wire, and the fence's client.
 */
import { readStatus } from "../controller/api/status.ts";
import type { Fields, Logger } from "../platform/log.ts";
import { ApiServer, KUBERNETES, type Write } from "./apiserver.ts";
import { Befall } from "./befall.ts";
import { Checks } from "./checks.ts";
import { Controllers } from "./controllers.ts";
import { Database } from "./database.ts";
import type { Fault } from "./faults.ts";
import { API } from "./kubeclient.ts";
import { PodRuntime } from "./kubelet.ts";
import { Network } from "./network.ts";
import { databaseOf, People, templateOf } from "./people.ts";
import type { Process } from "./process.ts";
import { Scheduler } from "./scheduler.ts";
import { Violation, violated } from "./violation.ts";

/** By the seed. */
const STANDBYS = [1, 0, 0, 2, 0, 0];
const DATABASES = [["ledger"], ["ledger", "audit"], ["ledger"], ["ledger"], ["ledger", "audit"]];
const NOTICED_MS = 50;
/** Whether the job has ended. */
const LOOK_MS = 1_000;
/** Behind the end of the job: what comes late. */
const AFTERMATH_MS = 15_000;
const STORY_MAX = 400;
/** Nothing goes wrong any more: the job must end within this, and until then somebody write within that. */
const CALM_MS_MAX = 300_000;
/** A watch that a fault has left half dead is given up after 150 s, and what it hid may take a takeover or two. */
const IDLE_MS_MAX = 210_000;

export class World {
  readonly seed: number;
  readonly scheduler = new Scheduler();
  readonly apiServer = new ApiServer(this.scheduler);
  readonly network: Network;
  readonly databases: ReadonlyMap<string, Database>;
  readonly checks = new Checks(this);
  readonly controllers: Controllers;
  readonly people: People;
  readonly pods = new Map<string, PodRuntime>();
  readonly job = "run";
  /** When the candidates' applications are started. */
  readonly application: "Started" | "NotStarted";
  /** Its first applications fail. */
  readonly frail: boolean;
  /** Of some jobs: it may come while all goes well, or in the midst of a takeover. */
  readonly activeDeadlineSeconds: number | undefined;
  /** A machine was suspended with its clock: time that passed does not show there. */
  clocksLie = false;
  /** The etcd was restored without raising its versions. */
  versionsReused = false;
  /** Somebody has edited, deleted or restored what is the controllers'. */
  edited = false;
  /** Pods that somebody has deleted. */
  readonly deletes = new Set<string>();
  readonly story: string[] = [];
  failure: unknown;
  readonly #befall: Befall;
  readonly #traced: boolean;
  readonly #disturbedMs = new Map<string, number>();
  #lives = 0;

  constructor(seed: number, { traced = false } = {}) {
    this.seed = seed;
    this.application = seed % 5 < 2 ? "Started" : "NotStarted";
    this.frail = seed % 7 === 3;
    this.activeDeadlineSeconds = seed % 11 === 4 ? 5 + (seed % 60) : undefined;
    this.#traced = traced;
    this.network = new Network(this.scheduler, seed);
    const names = DATABASES[seed % DATABASES.length] ?? [];
    this.databases = new Map(names.map((name) => [name, this.#newDatabase(name)]));
    this.controllers = new Controllers(this);
    const { apiServer, scheduler, job } = this;
    this.people = new People({ apiServer, scheduler, job, databases: names, onForgotten: () => this.#forget() });
    this.#befall = new Befall(this);
    this.apiServer.onWrite = (write) => this.#written(write);
  }

  database(name: string): Database {
    const database = this.databases.get(name);
    if (!database) throw new Error(`there is no database ${name}`);
    return database;
  }

  /** Of processes: no two have one name, or they would draw the same. */
  nextLife(): number {
    return this.#lives++;
  }

  tell(text: string): void {
    this.story.push(`${(this.scheduler.nowMs / 1000).toFixed(3)} ${text}`);
    if (this.story.length > STORY_MAX) this.story.shift();
  }

  broke(what: string, error: unknown): void {
    this.failure ??= new Violation(`${what}: ${error instanceof Error ? error.stack : error}`);
  }

  disturb(place: string, ms: number): void {
    this.#disturbedMs.set(place, Math.max(this.#disturbedMs.get(place) ?? 0, this.scheduler.nowMs + ms));
  }

  /** Whether nothing has disturbed these places and processes for so long. */
  isUndisturbed(names: readonly string[], ms: number): boolean {
    return names.every((name) => this.scheduler.nowMs - (this.#disturbedMs.get(name) ?? Number.NEGATIVE_INFINITY) > ms);
  }

  loggerOf(process: Process): Logger {
    const say = (level: string) => (message: string, fields?: Fields) => {
      if (this.#traced) this.tell(`${process.name} ${level}: ${message} ${JSON.stringify(fields ?? {})}`);
    };
    const log: Logger = { info: say("info"), warn: say("warn"), error: say("error"), with: () => log };
    return log;
  }

  /** Plays the history. Rejects with the first invariant that breaks. */
  async play(faults: readonly Fault[], untilMs: number): Promise<void> {
    this.apiServer.put("fencedjobs", {
      apiVersion: "fencedjob.dev/v1alpha1",
      kind: "FencedJob",
      metadata: { name: this.job, generation: 1 },
      spec: {
        databases: [...this.databases.keys()].map(databaseOf),
        backoffLimit: 1_000,
        ...(this.activeDeadlineSeconds && { activeDeadlineSeconds: this.activeDeadlineSeconds }),
        standbys: { count: STANDBYS[this.seed % STANDBYS.length], application: this.application },
        template: templateOf("image"),
      },
    });
    this.controllers.start();
    this.#befall.start(faults);
    for (let endMs = 0; endMs < untilMs && !this.#completed(); endMs += LOOK_MS) await this.#run(endMs + LOOK_MS);
    this.network.heal();
    for (const database of this.databases.values()) database.refusal = undefined;
    this.tell("calm");
    for (let endMs = untilMs; !this.#completed(); endMs += LOOK_MS) {
      this.#mustGoOn(untilMs);
      this.people.resume();
      await this.#run(endMs + LOOK_MS);
    }
    await this.#run(this.scheduler.nowMs + AFTERMATH_MS);
    // Where versions were given out again a stale controller conflicts with itself, over and over: nothing of it takes effect.
    const restless = this.versionsReused ? undefined : this.controllers.restless();
    if (restless) violated(restless);
  }

  /** What breaks an invariant ends the history, whoever might swallow the error. */
  guarded(check: () => void): void {
    try {
      check();
    } catch (error) {
      this.failure ??= error;
    }
  }

  /** Of the pod whose process has this name. */
  uidOf(process: string): string | undefined {
    const uid = process.slice(0, process.lastIndexOf("."));
    return this.pods.has(uid) ? uid : undefined;
  }

  /** People have changed what is the controllers'. */
  edits(ms: number): void {
    this.edited = true;
    this.disturb(API, ms);
  }

  etcdForgets(): void {
    this.edited = true;
    this.#forget();
  }

  runKubelets(): void {
    for (const pod of this.apiServer.list("pods")) {
      // Also one that was ended already, and that a restored etcd has brought back.
      const { phase } = pod.status;
      const known = this.pods.get(pod.metadata.uid);
      if (phase === "Succeeded" || phase === "Failed") continue;
      if (known?.silent) this.#befall.evictLater(known);
      if (known && !(known.over && !known.silent)) continue;
      this.pods.set(pod.metadata.uid, new PodRuntime(this, pod));
    }
  }

  #newDatabase(name: string): Database {
    const database = new Database(this.scheduler, name);
    database.onCommit = (commit) => this.guarded(() => this.checks.commit(name, commit));
    return database;
  }

  #written(write: Write): void {
    this.guarded(() => this.checks.write(write));
    const { plural, after, before, author } = write;
    if (plural === "pods" && after) this.scheduler.at(this.scheduler.nowMs + NOTICED_MS, () => this.runKubelets());
    if (plural === "fencedjobs" && before && after) this.controllers.hasWrittenStatus(author);
    else if (plural === "fencedjobs") this.controllers.meetAnotherJob();
    if (plural !== "leases" || after?.metadata.name !== this.job) return;
    const { holderIdentity } = after.spec;
    if (author !== KUBERNETES && holderIdentity && holderIdentity !== before?.spec.holderIdentity)
      this.#befall.granted();
  }

  /** Numbers, pods and the Lease of before mean nothing to the objects that are there now. */
  #forget(): void {
    this.disturb(API, 0);
    this.checks.forgotten();
  }

  /** INV-11: somebody writes, and not for ever. */
  #mustGoOn(calmSinceMs: number): void {
    const { nowMs } = this.scheduler;
    const idle = nowMs > Math.max(calmSinceMs, this.checks.committedAtMs) + IDLE_MS_MAX;
    if (!idle && nowMs <= calmSinceMs + CALM_MS_MAX) return;
    const { summary, conditions } = readStatus(this.apiServer.get("fencedjobs", this.job)?.status);
    const what = idle ? `nobody has written for ${IDLE_MS_MAX / 1000} s` : "the job does not end";
    violated(`INV-11: ${what}: ${summary} ${JSON.stringify(conditions)}`);
  }

  #completed(): boolean {
    return this.apiServer.get("fencedjobs", this.job)?.status?.completionTime !== undefined;
  }

  #run(untilMs: number): Promise<void> {
    this.people.accept();
    return this.scheduler.run(untilMs, () => {
      if (this.failure) throw this.failure;
    });
  }
}
