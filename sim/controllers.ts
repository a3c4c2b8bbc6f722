/** The controllers of a world: started, killed, frozen; the loops in them are real. */
import { type Loops, startLoops } from "../controller/loops.ts";
import { DEFAULT_ELECTION_TIMING } from "../lease/timing.ts";
import type { ApiServer } from "./apiserver.ts";
import { kubeClient } from "./kubeclient.ts";
import type { Network } from "./network.ts";
import { newProcess, type Process } from "./process.ts";
import type { World } from "./world.ts";

const CONTROLLERS = 2;
export const CONTROLLERS_LEASE = "controllers";
const RESTART_MS = 3_000;
const RUNS_PER_SECOND_MAX = 8;
/** Of one job, by all of them: what two of them that are not of one opinion take back from each other. */
const WRITES_MAX = 40;
const WRITES_MS = 10_000;

export interface ControllersPlace
  extends Pick<World, "scheduler" | "seed" | "nextLife" | "tell" | "disturb" | "loggerOf"> {
  readonly apiServer: ApiServer;
  readonly network: Network;
}

interface Controller {
  readonly process: Process;
  readonly loops: Loops;
  readonly lease: string;
  readonly sinceMs: number;
}

export class Controllers {
  /** A machine was suspended with its clock: time that passed does not show there. */
  clocksLie = false;
  readonly #place: ControllersPlace;
  readonly #all: Controller[] = [];
  /** Those that are to freeze behind their next write of a status. */
  readonly #freezes = new Map<string, number>();
  /** Of the last seconds. */
  readonly #writesMs: number[] = [];
  #storm: string | undefined;

  constructor(place: ControllersPlace) {
    this.#place = place;
  }

  get #isTwice(): boolean {
    return this.#place.seed % 4 === 0;
  }

  start(): void {
    for (let i = 0; i < CONTROLLERS; i++) this.#start(i);
  }

  /** `which`: 0 … 1. */
  one(which: number): Process | undefined {
    return this.#all[Math.floor(which * CONTROLLERS)]?.process;
  }

  /** Alive, and in possession of a valid permit. */
  leaders(lease: string): string[] {
    const mine = this.#all.filter((one) => one.lease === lease && one.process.alive && one.loops.leads());
    return mine.map(({ process }) => process.name);
  }

  /** With its machine, in some: it wakes up and still believes in its permit, beside another that was elected. */
  freeze(which: number, ms: number): void {
    const clockToo = this.#place.seed % 4 === 1;
    this.clocksLie ||= clockToo;
    this.one(which)?.pause(ms, clockToo);
  }

  freezeMidway(which: number, ms: number): void {
    const process = this.one(which);
    if (process) this.#freezes.set(process.name, ms);
  }

  hasWrittenStatus(author: string): void {
    const { nowMs } = this.#place.scheduler;
    this.#writesMs.push(nowMs);
    while (nowMs - (this.#writesMs[0] ?? nowMs) > WRITES_MS) this.#writesMs.shift();
    if (this.#writesMs.length > WRITES_MAX)
      this.#storm ??= `more than ${WRITES_MAX} writes of the status in ${WRITES_MS / 1000} s`;
    this.#freezeBehindWrite(author);
  }

  /** One that is made anew is told all that its predecessor was. */
  meetAnotherJob(): void {
    this.#writesMs.length = 0;
  }

  /** Between what it has reserved and what it is about to write. */
  #freezeBehindWrite(author: string): void {
    const ms = this.#freezes.get(author);
    const controller = this.#all.find(({ process }) => process.name === author);
    if (ms === undefined || !controller) return;
    this.#freezes.delete(author);
    this.#place.tell(`${author} freezes behind its write`);
    controller.process.pause(ms);
    this.#place.disturb(author, ms);
  }

  restart(which: number): void {
    const index = Math.floor(which * CONTROLLERS);
    const { scheduler } = this.#place;
    this.#all[index]?.process.kill();
    scheduler.at(scheduler.nowMs + RESTART_MS, () => {
      // Killed a second time while it was being started: it is started once.
      if (!this.#all[index]?.process.alive) this.#start(index);
    });
  }

  /** Why not: a controller that drives itself in circles would look healthy otherwise. */
  restless(): string | undefined {
    if (this.#storm) return this.#storm;
    for (const { process, loops, sinceMs } of this.#all) {
      const { runs } = loops.counters;
      const seconds = (this.#place.scheduler.nowMs - sinceMs) / 1000;
      if (runs > RUNS_PER_SECOND_MAX * (seconds + 1)) return `${process.name}: ${runs} reconciles in ${seconds} s`;
    }
    return undefined;
  }

  #start(index: number): void {
    const { scheduler, apiServer, network } = this.#place;
    const name = `controller-${index}.${this.#place.nextLife()}`;
    const process = newProcess(name, this.#place);
    // Some are installed twice, and know nothing of each other: two of them are active all the time (INV-9).
    const lease = { namespace: "n", name: this.#isTwice ? `${CONTROLLERS_LEASE}-${index}` : CONTROLLERS_LEASE };
    const loops = startLoops(kubeClient(process, apiServer, network), {
      sidecar: { image: "x", imagePullPolicy: "Always", resources: {} },
      workers: 2,
      election: {
        lease,
        timing: DEFAULT_ELECTION_TIMING,
        pod: { name: `controller-${index}`, uid: `controller-${index}` },
      },
      clock: process.clock,
      random: process.random,
      log: this.#place.loggerOf(process),
    });
    this.#all[index] = { process, loops, lease: lease.name, sinceMs: scheduler.nowMs };
  }
}
