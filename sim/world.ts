/**
 * One simulated world: an API server, a database, two controllers, kubelets and the pods of one job, a network between
 * them, and the faults of one history. Real: everything of controller/, the sidecar but for its wire, and the fence's client.
 */
import { readStatus } from "../controller/api/status.ts";
import { type Loops, startLoops } from "../controller/loops.ts";
import { DEFAULT_ELECTION_TIMING } from "../lease/timing.ts";
import type { Fields, Logger } from "../platform/log.ts";
import type { Random } from "../platform/random.ts";
import { ApiServer, type Snapshot } from "./apiserver.ts";
import { Checks, Violation } from "./checks.ts";
import { Database } from "./database.ts";
import type { Fault } from "./faults.ts";
import { API, kubeClient } from "./kubeclient.ts";
import { PodRuntime } from "./kubelet.ts";
import { Network } from "./network.ts";
import { People, templateOf } from "./people.ts";
import { newProcess, type Process } from "./process.ts";
import { Scheduler } from "./scheduler.ts";

export const DATABASE = "ledger";
const CONTROLLERS = 2;
export const CONTROLLERS_LEASE = "controllers";
/** By the seed. */
const STANDBYS = [1, 0, 0, 2, 0, 0];
const RESTART_MS = 3_000;
const NOTICED_MS = 50;
/** Whether the job has ended. */
const LOOK_MS = 1_000;
/** So long a way gets slower before it is cut: the last renewal is sent long before its answer comes. */
const FADES_MS = 6_000;
const SNAPSHOT_MS = 5_000;
const WORK_MS_MIN = 5_000;
const WORK_MS_MAX = 80_000;
/** Behind the end of the job: what comes late. */
const AFTERMATH_MS = 15_000;
/** Of a lost node: its pods are taken away. */
const EVICTED_MS = 30_000;
const FOR_EVER_MS = 1e9;
const STORY_MAX = 400;
const RUNS_PER_SECOND_MAX = 8;
/** Nothing goes wrong any more; the job must end within this. */
const CALM_MS_MAX = 600_000;

interface Controller {
  readonly process: Process;
  readonly loops: Loops;
  readonly lease: string;
  readonly sinceMs: number;
}

export class World {
  readonly seed: number;
  readonly scheduler = new Scheduler();
  readonly apiServer = new ApiServer(this.scheduler);
  readonly network: Network;
  readonly database = new Database(this.scheduler);
  readonly checks = new Checks(this);
  readonly pods = new Map<string, PodRuntime>();
  readonly job = "run";
  /** A machine was suspended with its clock: time that passed does not show there. */
  clocksLie = false;
  controllersClocksLie = false;
  wasRestored = false;
  /** The etcd was restored without raising its versions. */
  versionsReused = false;
  /** Somebody has edited, deleted or restored what is the controllers'. */
  edited = false;
  /** Pods that somebody has deleted. */
  readonly deletes = new Set<string>();
  readonly story: string[] = [];
  failure: unknown;
  readonly #people: People;
  readonly #traced: boolean;
  readonly #controllers: Controller[] = [];
  readonly #snapshots: { etcd: Snapshot; database: ReturnType<Database["snapshot"]> }[] = [];
  readonly #disturbedMs = new Map<string, number>();
  /** Controllers that are to freeze behind their next write of a status. */
  readonly #freezes = new Map<string, number>();
  #lives = 0;
  #histories = 1;

  constructor(seed: number, { traced = false } = {}) {
    this.seed = seed;
    this.#traced = traced;
    this.network = new Network(this.scheduler, seed);
    this.#people = new People({
      apiServer: this.apiServer,
      scheduler: this.scheduler,
      job: this.job,
      onForgotten: () => {
        this.#disturb(API, 0);
        this.checks.forgotten();
      },
    });
    this.apiServer.onWrite = (write) => {
      this.guarded(() => this.checks.write(write));
      const { plural, after, author } = write;
      if (plural === "pods" && after) this.scheduler.at(this.scheduler.nowMs + NOTICED_MS, () => this.#kubelets());
      if (plural === "fencedjobs") this.#frozenBehindStatus(author);
    };
    this.database.onCommit = (commit) => this.guarded(() => this.checks.commit(commit));
  }

  /** Of processes: no two have one name, or they would draw the same. */
  nextLife(): number {
    return this.#lives++;
  }

  tell(text: string): void {
    this.story.push(`${(this.scheduler.nowMs / 1000).toFixed(3)} ${text}`);
    if (this.story.length > STORY_MAX) this.story.shift();
  }

  /** How long a pod's application works. */
  workMs(random: Random): number {
    return WORK_MS_MIN + random.unit() * (WORK_MS_MAX - WORK_MS_MIN);
  }

  broke(what: string, error: unknown): void {
    this.failure ??= new Violation(`${what}: ${error instanceof Error ? error.stack : error}`);
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
        databases: [{ name: DATABASE, secretName: "s" }],
        backoffLimit: 1_000,
        standbys: { count: STANDBYS[this.seed % STANDBYS.length] },
        template: templateOf("image"),
      },
    });
    for (let i = 0; i < CONTROLLERS; i++) this.#startController(i);
    this.#takeSnapshots();
    for (const fault of faults) this.scheduler.at(fault.atMs, () => this.#befall(fault));
    for (let endMs = 0; endMs < untilMs && !this.#completed(); endMs += LOOK_MS) await this.#run(endMs + LOOK_MS);
    this.network.heal();
    this.tell("calm");
    for (let endMs = untilMs; !this.#completed(); endMs += LOOK_MS) {
      if (endMs > untilMs + CALM_MS_MAX) {
        const { summary, conditions } = readStatus(this.apiServer.get("fencedjobs", this.job)?.status);
        throw new Violation(`INV-11: the job does not end: ${summary} ${JSON.stringify(conditions)}`);
      }
      this.#people.resume();
      await this.#run(endMs + LOOK_MS);
    }
    await this.#run(this.scheduler.nowMs + AFTERMATH_MS);
    // Where versions were given out again a stale controller conflicts with itself, over and over: nothing of it takes effect.
    if (!this.versionsReused) for (const controller of this.#controllers) this.#mustRest(controller);
  }

  /** A controller that drives itself in circles would look healthy otherwise. */
  #mustRest({ process, loops, sinceMs }: Controller): void {
    const runs = loops.counters.runs;
    const seconds = (this.scheduler.nowMs - sinceMs) / 1000;
    if (runs > RUNS_PER_SECOND_MAX * (seconds + 1)) {
      throw new Violation(`${process.name}: ${runs} reconciles in ${seconds} s`);
    }
  }

  #completed(): boolean {
    return this.apiServer.get("fencedjobs", this.job)?.status?.completionTime !== undefined;
  }

  #run(untilMs: number): Promise<void> {
    return this.scheduler.run(untilMs, () => {
      if (this.failure) throw this.failure;
    });
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

  /** Between what it has reserved and what it is about to write. */
  #frozenBehindStatus(author: string): void {
    const ms = this.#freezes.get(author);
    const controller = this.#controllers.find(({ process }) => process.name === author);
    if (ms === undefined || !controller) return;
    this.#freezes.delete(author);
    this.tell(`${author} freezes behind its write`);
    controller.process.pause(ms);
    this.#disturb(author, ms);
  }

  #startController(index: number): void {
    const name = `controller-${index}.${this.nextLife()}`;
    const process = newProcess(name, this);
    // Some are installed twice, and know nothing of each other: two of them are active all the time (INV-9).
    const lease = { namespace: "n", name: this.seed % 4 === 0 ? `${CONTROLLERS_LEASE}-${index}` : CONTROLLERS_LEASE };
    const loops = startLoops(kubeClient(process, this.apiServer, this.network), {
      sidecar: { image: "x", imagePullPolicy: "Always", resources: {} },
      workers: 2,
      election: {
        lease,
        timing: DEFAULT_ELECTION_TIMING,
        pod: { name: `controller-${index}`, uid: `controller-${index}` },
      },
      clock: process.clock,
      random: process.random,
      log: this.loggerOf(process),
    });
    this.#controllers[index] = { process, loops, lease: lease.name, sinceMs: this.scheduler.nowMs };
  }

  /** Alive, and in possession of a valid permit. */
  leaders(lease: string): string[] {
    const mine = this.#controllers.filter((one) => one.lease === lease && one.process.alive && one.loops.leads());
    return mine.map(({ process }) => process.name);
  }

  /** With its machine, in some: it wakes up and still believes in its permit, beside another that was elected. */
  #freezeController(process: Process, ms: number): void {
    const clockToo = this.seed % 4 === 1;
    this.controllersClocksLie ||= clockToo;
    process.pause(ms, clockToo);
  }

  #restartController(index: number): void {
    this.#controllers[index]?.process.kill();
    this.scheduler.at(this.scheduler.nowMs + RESTART_MS, () => {
      // Killed a second time while it was being started: it is started once.
      if (!this.#controllers[index]?.process.alive) this.#startController(index);
    });
  }

  #kubelets(): void {
    for (const pod of this.apiServer.list("pods")) {
      // Also one that was ended already, and that a restored etcd has brought back.
      const { phase } = pod.status;
      const known = this.pods.get(pod.metadata.uid);
      if (phase === "Succeeded" || phase === "Failed") continue;
      if (known?.silent) this.#evictLater(known);
      if (known && !(known.over && !known.silent)) continue;
      this.pods.set(pod.metadata.uid, new PodRuntime(this, pod));
    }
  }

  #takeSnapshots(): void {
    this.#snapshots.push({ etcd: this.apiServer.snapshot(), database: this.database.snapshot() });
    this.scheduler.at(this.scheduler.nowMs + SNAPSHOT_MS, () => this.#takeSnapshots());
  }

  #befall(fault: Fault): unknown {
    const { kind, which, lastsMs } = fault;
    const living = [...this.pods.values()].filter(({ over, silent }) => !over && !silent);
    const pod = living[Math.floor(which * living.length)];
    const index = Math.floor(which * CONTROLLERS);
    const controller = this.#controllers[index]?.process;
    this.tell(`${kind} ${pod?.name ?? ""} ${(lastsMs / 1000).toFixed(1)} s`);
    if (this.#people.act(fault, pod?.uid)) {
      this.edited = true;
      return this.#disturb(API, lastsMs);
    }
    switch (kind) {
      case "freezePod":
        // A raise that stands still with its pod ends nobody's sessions.
        this.#disturb(DATABASE, lastsMs);
        return pod?.process.pause(lastsMs);
      case "suspendMachine":
        this.clocksLie = true;
        this.#disturb(DATABASE, lastsMs);
        return pod?.process.pause(lastsMs, true);
      case "crashSidecar":
        return pod?.crashSidecar();
      case "failApplication":
        return pod?.failApplication();
      case "deletePod":
        return this.#deletePod(pod);
      case "loseNode":
        return this.#loseNode(pod);
      case "cutPodFromApi":
        return pod && this.network.cut(pod.process.name, API, lastsMs);
      case "fadePodFromApi":
        return pod && this.network.fade(pod.process.name, API, FADES_MS, lastsMs);
      case "cutPodFromDatabase":
        this.#disturb(DATABASE, lastsMs);
        return pod && this.network.cut(pod.process.name, DATABASE, lastsMs);
      case "cutController":
        if (controller) this.#disturb(controller.name, lastsMs);
        return controller && this.network.cut(controller.name, API, lastsMs);
      case "cutApi":
        this.#disturb(API, lastsMs);
        return this.network.cut("*", API, lastsMs);
      case "slowNetwork":
        this.#disturb(DATABASE, lastsMs);
        this.#disturb(API, lastsMs);
        return this.network.slow(lastsMs, 2_000);
      case "crashController":
        return this.#restartController(index);
      case "freezeController":
        if (controller) this.#disturb(controller.name, lastsMs);
        return controller && this.#freezeController(controller, lastsMs);
      case "freezeControllerMidway":
        return controller && this.#freezes.set(controller.name, lastsMs);
      case "leavePodFrozen":
        return pod?.process.pause(FOR_EVER_MS);
      case "leavePodCutOff":
        return pod && this.network.cutForGood(pod.process.name, API);
      case "crashDatabase":
        return this.#crashDatabase(lastsMs / 4);
      case "restoreDatabase":
      case "promoteReplica":
        return this.#restoreDatabase(which);
      case "copyBackVolume":
        return this.#copyBackVolume(which);
      case "restoreEtcd":
        return this.#restoreEtcd(which);
      case "compactEtcd":
        return this.apiServer.compact();
      case "setWall":
        if (pod) pod.process.wallOffsetMs += (which - 0.5) * 120_000;
        if (controller) controller.wallOffsetMs += (0.5 - which) * 120_000;
        return;
      default:
        throw new Error(`nobody does ${kind}`);
    }
  }

  #disturb(place: string, ms: number): void {
    this.#disturbedMs.set(place, Math.max(this.#disturbedMs.get(place) ?? 0, this.scheduler.nowMs + ms));
  }

  #deletePod(pod: PodRuntime | undefined): void {
    const stored = pod && this.apiServer.get("pods", pod.name);
    if (!stored || stored.metadata.uid !== pod.uid || stored.metadata.deletionTimestamp) return;
    this.deletes.add(pod.uid);
    this.apiServer.askToEnd("pods", pod.name);
  }

  /** Its pod goes on and is heard of by nobody, or has ended with it; after a while it is taken away by force. */
  #loseNode(pod: PodRuntime | undefined): void {
    if (!pod) return;
    pod.silent = true;
    if (this.seed % 2) pod.die();
    this.#evictLater(pod);
  }

  #evictLater(pod: PodRuntime): void {
    this.scheduler.at(this.scheduler.nowMs + EVICTED_MS, () => {
      if (this.apiServer.get("pods", pod.name)?.metadata.uid === pod.uid) this.apiServer.remove("pods", pod.name);
    });
  }

  #crashDatabase(downMs: number): void {
    this.#disturb(DATABASE, downMs);
    this.database.crash();
    this.database.down = true;
    this.scheduler.at(this.scheduler.nowMs + downMs, () => {
      this.database.down = false;
    });
  }

  /** To an earlier time, or a replica that had not heard the last: the history branches. */
  #restoreDatabase(which: number): void {
    const back = this.#snapshots[Math.floor(which * this.#snapshots.length)];
    if (!back) return;
    this.#disturb(DATABASE, 0);
    this.wasRestored = true;
    this.database.restore(back.database, `1/${++this.#histories}`);
    this.checks.restored();
  }

  /** Its history keeps its name: only the heartbeats tell. One that was confirmed and is missing ends its generation. */
  #copyBackVolume(which: number): void {
    const back = this.#snapshots[Math.floor(which * this.#snapshots.length)];
    if (!back) return;
    this.#disturb(DATABASE, 0);
    this.wasRestored = true;
    const { generation } = back.database.job;
    this.database.restore(back.database, this.database.incarnation);
    const setBack = [...this.pods.values()].some(({ wires }) => wires.some((wire) => wire.isSetBack(generation)));
    this.checks.restored(setBack ? 0 : generation);
  }

  #restoreEtcd(which: number): void {
    const back = this.#snapshots[Math.floor(which * this.#snapshots.length)];
    // Into the middle of a deletion: nobody would make the job anew then.
    const job = back?.etcd.objects.get(`fencedjobs/${this.job}`);
    if (!back || !job || job.metadata.deletionTimestamp) return;
    // As one should: its versions go on above all that anybody has seen. Without that they are given out a second time, and a
    // conditional write of before can meet another object's version: then the database alone is the authority.
    const bumped = this.seed % 4 < 2;
    this.versionsReused ||= !bumped;
    this.edited = true;
    this.#disturb(API, 0);
    this.checks.forgotten();
    this.apiServer.restore(back.etcd, bumped);
    this.#kubelets();
  }
}
