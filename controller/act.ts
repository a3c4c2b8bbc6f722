/** What was decided for one FencedJob, done: each action conditional on what it was decided on (INV-8, INV-9). */
import { fingerprintOf } from "../lease/observe.ts";
import { grantedLease, isOurs, type RawLease, readLease, releasedLease } from "../lease/record.ts";
import type { Clock } from "../platform/clock.ts";
import type { Logger } from "../platform/log.ts";
import { ensureAccount } from "./account.ts";
import { type FencedJobSpec, type JobMeta, timingOf } from "./api/spec.ts";
import { type FencedJob, readStatus } from "./api/status.ts";
import { madeLately } from "./backoff.ts";
import type { Action, Plan } from "./draft.ts";
import { withFinalizer, withoutFinalizer } from "./finalizer.ts";
import { type KubeApi, RESOURCES } from "./kube/api.ts";
import { ifThere, isAlreadyExists, isConflict, isNamespaceEnding, unlessMoved } from "./kube/errors.ts";
import type { KubeObject } from "./kube/objects.ts";
import { type Memory, supersede } from "./memory.ts";
import { buildCloser, buildPod, controllerReference, isAttemptOf, podName, type SidecarImage } from "./pods.ts";
import { JOB_LABEL, type RawPod, type Snapshot } from "./snapshot.ts";

export interface ActorParts {
  readonly api: KubeApi;
  readonly clock: Clock;
  readonly log: Logger;
  readonly sidecar: SidecarImage;
  readonly issuer: string;
}

/** What an action is about. */
interface Scene {
  readonly job: FencedJob;
  readonly snapshot: Snapshot;
  readonly plan: Plan;
  readonly memory: Memory;
}

export class Actor {
  readonly #parts: ActorParts;

  constructor(parts: ActorParts) {
    this.#parts = parts;
  }

  /** Returns when it is done or has become needless; throws what the API server refuses. */
  async act(action: Action, { job, snapshot, plan, memory }: Scene): Promise<void> {
    const { api } = this.#parts;
    const { metadata: meta } = job;
    const present = memory.written?.job ?? job;
    switch (action.kind) {
      case "addFinalizer":
        return this.#update(withFinalizer(present), memory);
      case "removeFinalizer":
        return this.#update(withoutFinalizer(present), memory);
      case "createPod":
        return this.#createPod(action, meta, snapshot, memory);
      case "grant":
        return this.#grant(meta, snapshot, plan, memory);
      case "clearLease":
        return this.#clearLease(action, meta);
      case "deletePod": {
        const at = { namespace: meta.namespace, name: action.pod };
        await unlessMoved(api.delete(RESOURCES.pods, at, { preconditions: { uid: action.uid } }));
        return;
      }
      case "deleteJob": {
        // A time to live may have been made longer meanwhile.
        const { uid, resourceVersion } = present.metadata;
        const preconditions = { uid, ...(resourceVersion && { resourceVersion }) };
        await unlessMoved(
          api.delete(RESOURCES.fencedJobs, nameOf(meta), { preconditions, propagationPolicy: "Background" }),
        );
        return;
      }
    }
  }

  /** Conditional on the version that the decision was made on; a FencedJob that is gone needs nothing. */
  async #update(job: FencedJob, memory: Memory): Promise<void> {
    const written = await unlessMoved(this.#parts.api.update(RESOURCES.fencedJobs, job));
    if (written) supersede(memory, job, written, this.#parts.clock.monoMs());
  }

  async #createPod(
    { attempt, closer, closes }: Extract<Action, { kind: "createPod" }>,
    meta: JobMeta,
    snapshot: Snapshot,
    memory: Memory,
  ): Promise<void> {
    const { api, clock, sidecar, issuer } = this.#parts;
    if (!snapshot.spec.ok) return;
    const parts = { meta, spec: snapshot.spec.spec, sidecar, issuer, closes };
    const pod = closer ? buildCloser(parts, attempt) : buildPod(parts, attempt);
    try {
      // Where a template was accepted before our time: a pod needs the rights that this version gives to its own. A deletion
      // in the foreground has taken the account away.
      if (!memory.accountMade || snapshot.job.deleting) await ensureAccount(api, meta, snapshot.spec.spec);
      else if (snapshot.status.history[0]?.reason === "LeaseExpired") await this.#mendAccount(meta, snapshot.spec.spec);
      memory.accountMade = true;
      await api.create(RESOURCES.pods, pod as unknown as KubeObject);
      const nowMs = clock.monoMs();
      memory.madeAtMs = [...madeLately(memory.madeAtMs ?? [], nowMs), nowMs];
      delete memory.creationProblem;
      delete memory.namespaceEnding;
    } catch (error) {
      if (!isAlreadyExists(error)) {
        // The account may have gone since the template was tried, or a policy have come: it is tried again.
        memory.template = null;
        memory.creationProblem = (error as Error).message;
        memory.namespaceEnding = isNamespaceEnding(error);
        throw error;
      }
      delete memory.creationProblem;
      // Ours, made by an earlier reconcile that the watch has not shown yet: success. Anybody else's: the next attempt.
      const at = { namespace: meta.namespace, name: podName(meta.name, attempt) };
      const present = await ifThere(api.get<RawPod & KubeObject>(RESOURCES.pods, at));
      const granted = snapshot.status.history.some(({ uid }) => uid === present?.metadata.uid);
      if (present && !granted && isAttemptOf(present, meta, attempt)) return;
      if (present) memory.burned.add(attempt);
      throw error;
    }
  }

  /** An owner that could not renew may have lost its rights. Mostly it has not, and its successor does not wait for them. */
  async #mendAccount(meta: JobMeta, spec: FencedJobSpec): Promise<void> {
    const { api, log } = this.#parts;
    await ensureAccount(api, meta, spec).catch((error) => {
      log.warn("the rights of a job's pods could not be given again", { job: `${meta.namespace}/${meta.name}`, error });
    });
  }

  /** Writes the Lease for the reserved owner, if the record still is the one that the decision was made on. */
  async #grant(meta: JobMeta, snapshot: Snapshot, plan: Plan, memory: Memory): Promise<void> {
    const { api, clock, log } = this.#parts;
    const { owner } = plan.status;
    if (!owner || !snapshot.spec.ok) return;
    const live = await ifThere(api.get<RawLease & KubeObject>(RESOURCES.leases, nameOf(meta)));
    const grant = { holder: owner.uid, generation: owner.generation };
    if (live && isOurs(readLease(live), grant)) return;
    const seen = snapshot.lease ? fingerprintOf(snapshot.lease) : null;
    if ((live ? fingerprintOf(readLease(live)) : null) !== seen) {
      throw new Error(`Lease ${meta.namespace}/${meta.name} changed since it was observed; it is observed again`);
    }
    // INV-9: read after the Lease. Whoever granted a later generation wrote it here before he wrote the Lease, so either
    // it is seen now, or our write of the Lease conflicts.
    const job = await ifThere(api.get<FencedJob & KubeObject>(RESOURCES.fencedJobs, nameOf(meta)));
    const reserved = readStatus(job?.status).owner;
    if (job?.metadata.uid !== meta.uid || reserved?.uid !== grant.holder || reserved.generation !== grant.generation) {
      throw new Error(
        `generation ${grant.generation} of ${meta.namespace}/${meta.name} is over; the status is read again`,
      );
    }
    const lease = grantedLease(
      live,
      {
        ...grant,
        name: meta.name,
        namespace: meta.namespace,
        holderPod: owner.pod,
        durationMs: timingOf(snapshot.spec.spec).durationMs,
        labels: { [JOB_LABEL]: meta.name },
        ownerReferences: [{ ...controllerReference(meta) }],
      },
      clock.wall(),
    );
    await (live ? api.update(RESOURCES.leases, lease) : api.create(RESOURCES.leases, lease)).catch((error) => {
      if (!isConflict(error) && !isAlreadyExists(error))
        memory.grantProblem = { generation: grant.generation, message: error.message };
      throw error;
    });
    log.info("granted", { job: `${meta.namespace}/${meta.name}`, pod: owner.pod, generation: owner.generation });
  }

  async #clearLease(grant: { holder: string; generation: number }, meta: JobMeta): Promise<void> {
    const { api, clock } = this.#parts;
    const live = await ifThere(api.get<RawLease & KubeObject>(RESOURCES.leases, nameOf(meta)));
    if (!live || !isOurs(readLease(live), grant)) return;
    const report = readLease(live).report ?? "";
    await api.update(RESOURCES.leases, releasedLease(live, grant, clock.wall(), report));
  }
}

const nameOf = ({ namespace, name }: JobMeta): { namespace: string; name: string } => ({ namespace, name });
