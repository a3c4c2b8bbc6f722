/** What befalls a world: each kind of fault, done to a pod, a controller, a server or the way between them. */
import type { Database } from "./database.ts";
import { Elsewhere } from "./elsewhere.ts";
import { digits, type Fault, type FaultKind } from "./faults.ts";
import { API } from "./kubeclient.ts";
import type { PodRuntime } from "./kubelet.ts";
import type { Process } from "./process.ts";
import { Restores } from "./restores.ts";
import { SqlError } from "./sqlerror.ts";
import type { World } from "./world.ts";

/** So long a way gets slower before it is cut: the last renewal is sent long before its answer comes. */
const FADES_MS = 6_000;
const SLOW_MS_MAX = 2_000;
/** Of a lost node: its pods are taken away. */
const EVICTED_MS = 30_000;
const FOR_EVER_MS = 1e9;
const WALL_JUMP_MS = 120_000;
/** Of what a fault lasts, at most: a watch that is behind, an owner who is named while another raises. */
const LAG_SHARE = 0.3;
const LAG_MS_MIN = 500;
/** So much longer is it behind. */
const LAGS_MS = 20_000;
const MIDWAY_SHARE = 0.005;
/** Of a server that is there and lets nobody in. */
const REFUSALS = [
  new SqlError("53300", "sorry, too many clients already", "FATAL"),
  new SqlError("28P01", "password authentication failed", "FATAL"),
  new SqlError("57P03", "the database system is not accepting connections", "FATAL"),
];

/** One fault, with whom it meets of those that there are. */
interface Met extends Fault {
  readonly pod: PodRuntime | undefined;
  readonly controller: Process | undefined;
  readonly database: Database;
}

export class Befall {
  readonly #world: World;
  readonly #restores: Restores;
  readonly #elsewhere: Elsewhere;
  /** What is done to it behind the next grant. */
  readonly #atGrant: (() => void)[] = [];

  constructor(world: World) {
    this.#world = world;
    this.#restores = new Restores(world);
    this.#elsewhere = new Elsewhere(world.databases, world.scheduler);
  }

  start(faults: readonly Fault[]): void {
    this.#restores.start();
    for (const fault of faults) this.#world.scheduler.at(fault.atMs, () => this.#befall(fault));
  }

  /** A controller has named an owner. */
  granted(): void {
    for (const act of this.#atGrant.splice(0)) act();
  }

  #befall(fault: Fault): void {
    const { pods, controllers, people, databases } = this.#world;
    const { kind, which, lastsMs } = fault;
    const living = [...pods.values()].filter(({ over, silent }) => !over && !silent);
    const pod = living[Math.floor(which * living.length)];
    this.#world.tell(`${kind} ${pod?.name ?? ""} ${(lastsMs / 1000).toFixed(1)} s`);
    if (people.act(fault, pod?.uid)) return this.#world.edits(lastsMs);
    const all = [...databases.values()];
    const database = all[Math.floor(digits(which) * all.length)] as Database;
    this.#acts[kind]?.({ ...fault, pod, controller: controllers.one(which), database });
  }

  readonly #acts: Partial<Record<FaultKind, (met: Met) => void>> = {
    freezePod: ({ pod, lastsMs }) => {
      // A raise that stands still with its pod ends nobody's sessions.
      this.#disturbDatabases(lastsMs);
      pod?.process.pause(lastsMs);
    },
    suspendMachine: ({ pod, lastsMs }) => {
      this.#world.clocksLie = true;
      this.#disturbDatabases(lastsMs);
      pod?.process.pause(lastsMs, true);
    },
    crashSidecar: ({ pod }) => pod?.crashSidecar(),
    failApplication: ({ pod }) => pod?.failApplication(),
    deletePod: ({ pod }) => this.#deletePod(pod),
    loseNode: ({ pod }) => this.#loseNode(pod),
    cutPodFromApi: ({ pod, lastsMs }) => pod && this.#world.network.cut(pod.process.name, API, lastsMs),
    fadePodFromApi: ({ pod, lastsMs }) => pod && this.#world.network.fade(pod.process.name, API, FADES_MS, lastsMs),
    cutPodFromDatabase: ({ pod, database, lastsMs }) => {
      this.#world.disturb(database.name, lastsMs);
      if (pod) this.#world.network.cut(pod.process.name, database.name, lastsMs);
    },
    cutController: ({ controller, lastsMs }) => {
      if (!controller) return;
      this.#world.disturb(controller.name, lastsMs);
      this.#world.network.cut(controller.name, API, lastsMs);
    },
    lagWatch: ({ controller, which, lastsMs }) => {
      if (!controller) return;
      const plural = PLURALS[Math.floor(digits(which) * PLURALS.length)] as string;
      this.#world.disturb(controller.name, LAGS_MS + lastsMs);
      this.#world.network.lag(controller.name, plural, LAGS_MS + lastsMs, LAG_MS_MIN + lastsMs * LAG_SHARE);
    },
    cutApi: ({ lastsMs }) => {
      this.#world.disturb(API, lastsMs);
      this.#world.network.cut("*", API, lastsMs);
    },
    slowNetwork: ({ lastsMs }) => {
      this.#disturbDatabases(lastsMs);
      this.#world.disturb(API, lastsMs);
      this.#world.network.slow(lastsMs, SLOW_MS_MAX);
    },
    crashController: ({ which }) => this.#world.controllers.restart(which),
    freezeController: ({ controller, which, lastsMs }) => {
      if (controller) this.#world.disturb(controller.name, lastsMs);
      this.#world.controllers.freeze(which, lastsMs);
    },
    freezeControllerMidway: ({ which, lastsMs }) => this.#world.controllers.freezeMidway(which, lastsMs),
    nameAnotherMidway: (met) => this.#midway(met, () => this.#nameAnother(met)),
    leavePodFrozen: ({ pod }) => pod?.process.pause(FOR_EVER_MS),
    leavePodCutOff: ({ pod }) => pod && this.#world.network.cutForGood(pod.process.name, API),
    crashDatabase: ({ database, lastsMs }) => {
      database.crash();
      this.#refuse(database, new SqlError("57P03", "the database system is starting up", "FATAL"), lastsMs / 4);
    },
    refuseDatabase: ({ database, which, lastsMs }) =>
      this.#refuse(database, REFUSALS[Math.floor(digits(which) * REFUSALS.length)] as SqlError, lastsMs),
    restoreDatabase: ({ which, database }) => this.#restores.restoreDatabase(which, database.name),
    promoteReplica: ({ which, database }) => this.#restores.promoteReplica(which, database.name),
    copyBackVolume: ({ which, database }) => this.#restores.copyBackVolume(which, database.name),
    raiseElsewhere: (met) => {
      if (digits(met.which) < 0.5) this.#midway(met, () => this.#elsewhere.raise());
      else this.#elsewhere.raise();
    },
    restoreEtcd: ({ which }) => this.#restores.restoreEtcd(which),
    compactEtcd: () => this.#world.apiServer.compact(),
    setWall: ({ pod, controller, which }) => {
      if (pod) pod.process.wallOffsetMs += (which - 0.5) * WALL_JUMP_MS;
      if (controller) controller.wallOffsetMs += (0.5 - which) * WALL_JUMP_MS;
    },
  };

  #disturbDatabases(ms: number): void {
    for (const name of this.#world.databases.keys()) this.#world.disturb(name, ms);
  }

  #refuse(database: Database, why: SqlError, ms: number): void {
    const { scheduler } = this.#world;
    this.#world.disturb(database.name, ms);
    database.refusal = why;
    scheduler.at(scheduler.nowMs + ms, () => {
      if (database.refusal === why) database.refusal = undefined;
    });
  }

  /** While the owner that the Lease has just been given to raises: two raise at once. */
  #midway({ lastsMs }: Fault, act: () => void): void {
    const { scheduler } = this.#world;
    this.#atGrant.push(() => void scheduler.at(scheduler.nowMs + lastsMs * MIDWAY_SHARE, act));
  }

  #nameAnother(fault: Fault): void {
    const { apiServer, job, people, pods } = this.#world;
    const holder = apiServer.get("leases", job)?.spec.holderIdentity;
    const others = [...pods.values()].filter(({ uid, over, silent }) => uid !== holder && !over && !silent);
    const other = others.find(({ waits }) => waits) ?? others[Math.floor(fault.which * others.length)];
    this.#world.tell(`${fault.kind}: ${other?.name}`);
    this.#world.edits(fault.lastsMs);
    people.act({ ...fault, kind: "nameAnotherPod" }, other?.uid);
  }

  #deletePod(pod: PodRuntime | undefined): void {
    const { apiServer, deletes } = this.#world;
    const stored = pod && apiServer.get("pods", pod.name);
    if (!stored || stored.metadata.uid !== pod.uid || stored.metadata.deletionTimestamp) return;
    deletes.add(pod.uid);
    apiServer.askToEnd("pods", pod.name);
  }

  /** Its pod goes on and is heard of by nobody, or has ended with it; after a while it is taken away by force. */
  #loseNode(pod: PodRuntime | undefined): void {
    if (!pod) return;
    pod.silent = true;
    if (this.#world.seed % 2) pod.die();
    this.evictLater(pod);
  }

  evictLater(pod: PodRuntime): void {
    const { scheduler, apiServer } = this.#world;
    scheduler.at(scheduler.nowMs + EVICTED_MS, () => {
      if (apiServer.get("pods", pod.name)?.metadata.uid === pod.uid) apiServer.remove("pods", pod.name);
    });
  }
}

const PLURALS = ["fencedjobs", "pods", "leases"];
