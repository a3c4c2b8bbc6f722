/** Backups of a world, taken every few seconds, and what comes back from them: databases of an earlier time, an etcd. */
import type { Snapshot } from "./apiserver.ts";
import type { Database } from "./database.ts";
import type { World } from "./world.ts";

const SNAPSHOT_MS = 5_000;

type Copy = ReturnType<Database["snapshot"]>;

interface Backup {
  readonly etcd: Snapshot;
  readonly databases: ReadonlyMap<string, Copy>;
}

export class Restores {
  readonly #world: World;
  readonly #backups: Backup[] = [];
  #histories = 1;

  constructor(world: World) {
    this.#world = world;
  }

  start(): void {
    const { scheduler } = this.#world;
    this.#backups.push(this.#present());
    scheduler.at(scheduler.nowMs + SNAPSHOT_MS, () => this.start());
  }

  /** To an earlier time: the history branches. */
  restoreDatabase(which: number, name: string): void {
    this.#branch(name, this.#chosen(which)?.databases.get(name));
  }

  /** A replica that has heard all, or all but the last seconds. */
  promoteReplica(which: number, name: string): void {
    const backup = which < 0.5 ? this.#present() : this.#backups.at(-1);
    this.#branch(name, backup?.databases.get(name));
  }

  /** Its history keeps its name: only the heartbeats tell. One that was confirmed and is missing ends its generation. */
  copyBackVolume(which: number, name: string): void {
    const { databases, pods, checks } = this.#world;
    const database = databases.get(name);
    const back = this.#chosen(which)?.databases.get(name);
    if (!database || !back) return;
    this.#world.disturb(name, 0);
    const { generation, issuer } = back.job;
    database.restore(back, database.incarnation);
    const wires = [...pods.values()].flatMap((pod) => pod.wires.filter((wire) => wire.place === name));
    checks.of(name).restored(wires.some((wire) => wire.isSetBack(generation)) ? 0 : generation, issuer);
  }

  restoreEtcd(which: number): void {
    const world = this.#world;
    const back = this.#chosen(which);
    // Into the middle of a deletion: nobody would make the job anew then.
    const job = back?.etcd.objects.get(`fencedjobs/${world.job}`);
    if (!back || !job || job.metadata.deletionTimestamp) return;
    // As one should: its versions go on above all that anybody has seen. Without that they are given out a second time, and a
    // conditional write of before can meet another object's version: then the database alone is the authority.
    const bumped = world.seed % 4 < 2;
    world.versionsReused ||= !bumped;
    world.etcdForgets();
    world.apiServer.restore(back.etcd, bumped);
    world.runKubelets();
  }

  #present(): Backup {
    const { apiServer, databases } = this.#world;
    const copies = [...databases].map(([name, database]) => [name, database.snapshot()] as const);
    return { etcd: apiServer.snapshot(), databases: new Map(copies) };
  }

  #chosen(which: number): Backup | undefined {
    return this.#backups[Math.floor(which * this.#backups.length)];
  }

  #branch(name: string, back: Copy | undefined): void {
    const database = this.#world.databases.get(name);
    if (!database || !back) return;
    this.#world.disturb(name, 0);
    database.restore(back, `1/${++this.#histories}`);
    this.#world.checks.of(name).restored(0, back.job.issuer);
  }
}
