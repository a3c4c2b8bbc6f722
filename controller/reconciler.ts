/**
 * Reconciles one FencedJob: gather by I/O, decide (pure), act.
 *
 * Invariants: the status, with its reserved generation, is written before any action and conditional on its version, so
 * that two active controllers cannot issue one number twice (INV-8, INV-9); a Lease is claimed only as it was observed.
 */
import { isDeepStrictEqual } from "node:util";
import { Actor, type ActorParts } from "./act.ts";
import type { Reason } from "./api/reasons.ts";
import type { FencedJob } from "./api/status.ts";
import { decide } from "./decide.ts";
import type { Plan } from "./draft.ts";
import { Gatherer, type GathererParts, retryMsOf } from "./gather.ts";
import { RESOURCES } from "./kube/api.ts";
import { isConflict, isRefused } from "./kube/errors.ts";
import type { EventRecorder, EventText } from "./kube/events.ts";
import type { KubeObject } from "./kube/objects.ts";
import type { Outcome } from "./kube/queue.ts";
import type { Change } from "./kube/store.ts";
import { type Memory, supersede } from "./memory.ts";
import { restMs, wrote } from "./rivalry.ts";
import { JOB_LABEL, type Snapshot } from "./snapshot.ts";

export interface ReconcilerParts extends GathererParts, ActorParts {
  readonly events: EventRecorder;
}

export class Reconciler {
  readonly #parts: ReconcilerParts;
  readonly #gatherer: Gatherer;
  readonly #actor: Actor;

  constructor(parts: ReconcilerParts) {
    this.#parts = parts;
    this.#gatherer = new Gatherer(parts);
    this.#actor = new Actor(parts);
  }

  readonly reconcile = async (key: string): Promise<Outcome> => {
    const stored = this.#parts.jobs.get(key);
    if (!stored) {
      this.#parts.memories.forget(key);
      return { kind: "done" };
    }
    const memory = this.#parts.memories.about(key, stored.metadata.uid);
    const job = await this.#gatherer.job(stored, memory);
    const snapshot = await this.#gatherer.snapshot(key, job, memory);
    const plan = decide(snapshot);
    // INV-9: another controller is of another opinion; nothing of the plan is done before its status is written.
    const waitMs = restMs(memory.rivalry, snapshot.status, plan.status, this.#parts.clock.monoMs());
    if (waitMs > 0) return { kind: "requeueAfter", ms: waitMs };
    const failed = await this.#apply(job, snapshot, plan, memory);
    const ms = Math.min(plan.requeueAfterMs ?? Number.POSITIVE_INFINITY, retryMsOf(snapshot.template));
    // A pod that cannot be created, as when a quota is full, does not keep an owner's silence from being seen.
    if (failed.length) return { kind: "failed", error: failed[0], ms };
    return Number.isFinite(ms) ? { kind: "requeueAfter", ms } : { kind: "done" };
  };

  /** Returns what failed behind the write of the status; each action is tried, but no second creation behind one that failed. */
  async #apply(job: FencedJob, snapshot: Snapshot, plan: Plan, memory: Memory): Promise<unknown[]> {
    const { api, clock, events } = this.#parts;
    const status = JSON.parse(JSON.stringify(plan.status));
    if (!isDeepStrictEqual(status, job.status)) {
      try {
        const written = await api.update(RESOURCES.fencedJobs, { ...job, status }, { subresource: "status" });
        supersede(memory, job, written, clock.monoMs());
        memory.rivalry = wrote(memory.rivalry, snapshot.status, plan.status, clock.monoMs());
      } catch (error) {
        // Whatever was decided on is not what is there: it is read anew.
        if (isConflict(error)) supersede(memory, job, job, Number.NEGATIVE_INFINITY);
        throw error;
      }
    }
    const record = (type: EventText["type"], reason: Reason, note: string): void =>
      events.record(job as unknown as KubeObject, { type, reason, action: "Reconcile", note });
    for (const { type, reason, message } of plan.events) record(type, reason, message);
    const failed: unknown[] = [];
    let creates = true;
    for (const action of inOrder(plan.actions)) {
      if (action.kind === "createPod" && !creates) continue;
      try {
        await this.#actor.act(action, { job, snapshot, plan, memory });
      } catch (error) {
        failed.push(error);
        const note = isRefused(error) && untold(action);
        if (note) record("Warning", "ActionRefused", `${note}: ${(error as Error).message}; it is tried again`);
        creates &&= action.kind !== "createPod";
      }
    }
    return failed;
  }
}

/** What could not be done, where no condition tells of it: somebody's webhook or policy may refuse it for ever. */
function untold(action: Plan["actions"][number]): string | undefined {
  switch (action.kind) {
    case "deletePod":
      return `pod ${action.pod} cannot be deleted`;
    case "deleteJob":
      return "the FencedJob cannot be deleted though its time to live is over";
    case "addFinalizer":
    case "removeFinalizer":
      return "the FencedJob's finalizer cannot be written";
    case "clearLease":
      return "the name of a holder that has ended cannot be taken off the Lease";
    default:
      return undefined;
  }
}

/** Creations last: a webhook may hang at each of them, and a grant does not wait for standbys. */
function inOrder(actions: Plan["actions"]): Plan["actions"] {
  const creates = ({ kind }: Plan["actions"][number]): number => Number(kind === "createPod");
  return [...actions].sort((a, b) => creates(a) - creates(b));
}

/**
 * The keys of the jobs that a pod belongs to, by its controlling owner, or has belonged to: whoever has lost one needs another. By its
 * label, if it was orphaned: an owner stays the owner, and its end is waited for.
 */
export function jobKeysOf({ before, after }: Change<KubeObject>): string[] {
  const keys = [before, after].flatMap((pod) => {
    const { namespace, labels, ownerReferences } = pod?.metadata ?? {};
    const owner = ownerReferences?.find(({ controller, kind }) => controller && kind === "FencedJob");
    const job = owner?.name ?? labels?.[JOB_LABEL];
    return job && namespace ? [`${namespace}/${job}`] : [];
  });
  return [...new Set(keys)];
}
