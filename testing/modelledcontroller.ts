/** The real `Reconciler` in a modelled cluster: one process of two, with caches that lag and watches that stall. */
import { expect } from "vitest";
import { ApiError } from "../controller/kube/errors.ts";
import type { EventText } from "../controller/kube/events.ts";
import { Store } from "../controller/kube/store.ts";
import { Memories } from "../controller/memory.ts";
import { Reconciler } from "../controller/reconciler.ts";
import { JOB_LABEL, type RawPod } from "../controller/snapshot.ts";
import type { RawLease } from "../lease/record.ts";
import { silentLogger } from "../platform/log.ts";
import { KEY, PLURALS, type Plural, type Stored, type World } from "./modelledcluster.ts";

export function startController(world: World): ModelledController {
  const controller = new ModelledController(world);
  world.controllers.push(controller);
  return controller;
}

/** A controller process: its caches lag behind the world, each by its own. */
export class ModelledController {
  readonly world: World;
  stores = { fencedjobs: new Store<Stored>(), pods: new Store<Stored>(), leases: new Store<Stored>() };
  cursors: Record<Plural, number> = { fencedjobs: 0, pods: 0, leases: 0 };
  stalledUntilMs: Record<Plural, number> = { fencedjobs: 0, pods: 0, leases: 0 };
  memories!: Memories;
  reconciler!: Reconciler;
  queued = true;
  dueMs = Number.POSITIVE_INFINITY;
  notBeforeMs = 0;
  /** The notes of its events. */
  readonly told = new Set<string>();
  runs = 0;
  failures = 0;

  constructor(world: World) {
    this.world = world;
    this.restart();
  }

  restart(): void {
    const { world } = this;
    const indexers = { job: (pod: Stored) => (pod.metadata.ownerReferences ?? []).map(({ uid }) => uid) };
    this.stores = { fencedjobs: new Store<Stored>(), pods: new Store<Stored>(indexers), leases: new Store<Stored>() };
    this.memories = new Memories(world.clock);
    this.reconciler = new Reconciler({
      memories: this.memories,
      api: world.api as never,
      jobs: this.stores.fencedjobs as never,
      pods: this.stores.pods as never,
      leases: this.stores.leases as never,
      events: { record: (_job: unknown, { note }: EventText) => this.told.add(note) } as never,
      clock: world.clock,
      log: silentLogger,
      sidecar: { image: "x", imagePullPolicy: "Never", resources: {} },
      issuer: "cluster",
    });
    for (const plural of PLURALS) {
      this.cursors[plural] = world.log.length;
      for (const object of world.objects[plural].values()) this.#deliver(plural, object, false);
    }
    this.queued = true;
  }

  #deliver(plural: Plural, object: Stored, gone: boolean): void {
    const labelled = plural === "fencedjobs" || object.metadata.labels?.[JOB_LABEL] !== undefined;
    if (gone || !labelled) {
      const changes = this.stores[plural].remove(`n/${object.metadata.name}`);
      for (const { before } of changes) if (before && plural === "pods") this.memories.sawPodGo(KEY, before as RawPod);
    } else {
      this.stores[plural].put(structuredClone(object));
      if (plural === "leases") this.memories.sawLease(KEY, object as RawLease);
    }
    this.queued = true;
  }

  /** Brings the watches forward; each may be stalled. */
  watch(share: number): void {
    const { world } = this;
    for (const plural of PLURALS) {
      if (world.nowMs < this.stalledUntilMs[plural]) continue;
      while (this.cursors[plural] < world.log.length && world.chance(share)) {
        const { plural: of, object, gone } = world.log[this.cursors[plural]++] as World["log"][number];
        if (of === plural) this.#deliver(plural, object, gone);
      }
    }
  }

  async reconcile(): Promise<void> {
    const { nowMs } = this.world;
    if (nowMs < this.notBeforeMs || !(this.queued || nowMs >= this.dueMs)) return;
    this.queued = false;
    this.dueMs = Number.POSITIVE_INFINITY;
    this.runs++;
    try {
      const outcome = await this.reconciler.reconcile(KEY);
      if (outcome.kind === "requeueAfter") {
        expect(outcome.ms, "a reconcile that asks for the next one at once drives itself in circles").toBeGreaterThan(
          0,
        );
        this.dueMs = nowMs + outcome.ms;
      }
      if (outcome.kind === "failed") this.#failed(outcome.error, outcome.ms);
      else this.failures = 0;
    } catch (error) {
      this.#failed(error, Number.POSITIVE_INFINITY);
    }
  }

  #failed(error: unknown, msMax: number): void {
    const { nowMs } = this.world;
    if (
      !(error instanceof ApiError) &&
      !/changed since it was observed|is over; the status is read again/.test(String(error))
    )
      throw error;
    this.dueMs = nowMs + Math.min(60_000, 50 * 2 ** this.failures++, msMax);
    this.notBeforeMs = nowMs + Math.min(1_000, 50 * 2 ** this.failures, msMax);
  }
}
