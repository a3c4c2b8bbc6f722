/**
 * Reconciles one FencedJob: gather by I/O, decide (pure), act.
 *
 * Invariants: the status, with its reserved generation, is written before any action and conditional on its version, so
 * that two active controllers cannot issue one number twice (INV-8, INV-9); a Lease is claimed only as it was observed.
 */
import { isDeepStrictEqual } from "node:util";
import { fingerprintOf, type Observation, observe, remainingMs, sight, unchangedMs } from "../lease/observe.ts";
import { grantedLease, isOurs, type LeaseRecord, type RawLease, readLease, releasedLease } from "../lease/record.ts";
import { type LeaseTiming, overdueMs } from "../lease/timing.ts";
import type { Clock } from "../platform/clock.ts";
import type { Logger } from "../platform/log.ts";
import { type JobMeta, readSpec, timingOf } from "./api/spec.ts";
import { type FencedJob, type FencedJobStatus, type Owner, readStatus } from "./api/status.ts";
import { decide } from "./decide.ts";
import type { Action, Plan } from "./draft.ts";
import { type KubeApi, RESOURCES } from "./kube/api.ts";
import { isAlreadyExists, isConflict, isNamespaceEnding, isNotFound } from "./kube/errors.ts";
import type { EventRecorder } from "./kube/events.ts";
import type { KubeObject } from "./kube/objects.ts";
import type { Outcome } from "./kube/queue.ts";
import type { Store } from "./kube/store.ts";
import {
  buildCloser,
  buildPod,
  controllerReference,
  isAttemptOf,
  isOwnedBy,
  podName,
  type SidecarImage,
  templateProblem,
} from "./pods.ts";
import { JOB_LABEL, type RawPod, type Snapshot, type TemplateVerdict, viewPod } from "./snapshot.ts";
import { tryPod } from "./trial.ts";

export interface ReconcilerParts {
  readonly api: KubeApi;
  readonly jobs: Store<FencedJob & KubeObject>;
  /** Indexed by `job`: the UID of the FencedJob that controls the pod. */
  readonly pods: Store<RawPod & KubeObject>;
  readonly leases: Store<RawLease & KubeObject>;
  readonly events: EventRecorder;
  readonly clock: Clock;
  readonly log: Logger;
  readonly sidecar: SidecarImage;
  readonly issuer: string;
}

/** Keeps a FencedJob until its fences are closed. */
export const FINALIZER = "fencedjob.dev/fence";

/** A template that the API server refused may be accepted later (quota, a policy): it is asked again. */
const REFUSED_TEMPLATE_RETRY_MS = 30_000;

/** A watch that does not show our own write for so long is not merely behind. */
const WATCH_BEHIND_MS_MAX = 10_000;

/** A reconcile that is to look at a Lease waits its turn; only more than that is an API server that did not answer. */
const SIGHT_DELAY_MS = 500;

/** What is known about one job beyond what the API server stores; lost without harm. */
interface Memory {
  /** Of the FencedJob that the rest is about: one that is created anew under the same name is another one. */
  uid?: string;
  observation?: Observation;
  /** What we wrote last, while the watch still shows one of the versions that it supersedes. */
  written?: { supersedes: Set<string>; job: FencedJob; atMs: number };
  template?: { generation: number; verdict: TemplateVerdict; atMs: number };
  /** Why the last pod could not be created, until one can. */
  creationProblem?: string;
  /** That pod was refused because its namespace is being deleted. */
  namespaceEnding?: boolean;
  /** Monotonic ms since when it is being deleted and no owner works. */
  closingSinceMs?: number;
  readonly burned: Set<number>;
}

export class Reconciler {
  readonly #parts: ReconcilerParts;
  readonly #memory = new Map<string, Memory>();

  constructor(parts: ReconcilerParts) {
    this.#parts = parts;
  }

  /** A Lease as the watch brought it: the observation starts when it was seen, not when it is next looked at. */
  sawLease(key: string, lease: RawLease): void {
    const memory = this.#of(key);
    memory.observation = observe(memory.observation, readLease(lease), this.#parts.clock.monoMs());
  }

  readonly reconcile = async (key: string): Promise<Outcome> => {
    const stored = this.#parts.jobs.get(key);
    if (!stored) {
      this.#memory.delete(key);
      return { kind: "done" };
    }
    const memory = this.#about(key, stored.metadata.uid);
    const job = await this.#present(stored, memory);
    const snapshot = await this.#gather(key, job, memory);
    const plan = decide(snapshot);
    await this.#apply(job, snapshot, plan, memory);
    const retryMs = snapshot.spec.ok && !snapshot.template.ok ? REFUSED_TEMPLATE_RETRY_MS : Number.POSITIVE_INFINITY;
    const ms = Math.min(plan.requeueAfterMs ?? Number.POSITIVE_INFINITY, retryMs);
    return Number.isFinite(ms) ? { kind: "requeueAfter", ms } : { kind: "done" };
  };

  /**
   * What to decide on: our own last write, as long as the watch shows what it supersedes. Not for ever: a restored etcd gives versions
   * out a second time, and what was written may be gone there.
   */
  async #present(stored: FencedJob, memory: Memory): Promise<FencedJob> {
    const { written } = memory;
    const { namespace, name, uid, resourceVersion = "" } = stored.metadata;
    if (!written?.supersedes.has(resourceVersion)) {
      delete memory.written;
      return stored;
    }
    if (this.#parts.clock.monoMs() - written.atMs < WATCH_BEHIND_MS_MAX) return written.job;
    const live = await this.#get<FencedJob>("fencedJobs", namespace, name);
    if (live?.metadata.uid === uid) this.#wrote(memory, stored, live);
    else delete memory.written;
    return memory.written?.job ?? stored;
  }

  #of(key: string): Memory {
    const memory = this.#memory.get(key) ?? { burned: new Set<number>() };
    this.#memory.set(key, memory);
    return memory;
  }

  #about(key: string, uid: string): Memory {
    const { uid: before, observation } = this.#of(key);
    if (before === uid) return this.#of(key);
    // What was observed of the Lease is about the Lease, not about the job.
    const memory: Memory = { uid, burned: new Set(), ...(observation && { observation }) };
    this.#memory.set(key, memory);
    return memory;
  }

  async #gather(key: string, job: FencedJob, memory: Memory): Promise<Snapshot> {
    const { clock } = this.#parts;
    const { name, namespace, generation = 0, deletionTimestamp, finalizers = [] } = job.metadata;
    const spec = readSpec(job.spec);
    const status = readStatus(job.status);
    const template = spec.ok ? await this.#template(job, spec.spec, memory) : { ok: true as const };
    const timing = spec.ok ? timingOf(spec.spec) : null;
    const lease = await this.#lease(key, status, memory, timing);
    const nowMs = clock.monoMs();
    const observation = lease && observe(memory.observation, lease, nowMs);
    const { pods, holderElsewhere } = await this.#pods(job.metadata, status, lease);
    if (deletionTimestamp !== undefined && (!status.owner || status.owner.closes)) memory.closingSinceMs ??= nowMs;
    return {
      job: {
        name,
        namespace,
        generation,
        deleting: deletionTimestamp !== undefined,
        finalized: finalizers.includes(FINALIZER),
        closingMs: memory.closingSinceMs === undefined ? 0 : nowMs - memory.closingSinceMs,
      },
      spec,
      template,
      status,
      pods: pods.map((pod) => viewPod(pod, generation)),
      burnedAttempts: [...memory.burned],
      creationProblem: memory.creationProblem ?? null,
      namespaceEnding: memory.namespaceEnding ?? false,
      lease,
      holderElsewhere,
      leaseUnchangedMs: observation ? unchangedMs(observation, nowMs) : 0,
      leaseRemainingMs: observation ? remainingMs(observation, lease, timing?.durationMs ?? 0, nowMs) : 0,
      wallMs: clock.wall().getTime(),
    };
  }

  async #lease(
    key: string,
    { owner, candidates }: FencedJobStatus,
    memory: Memory,
    timing: LeaseTiming | null,
  ): Promise<LeaseRecord | null> {
    const cached = this.#parts.leases.get(key);
    const record = cached ? readLease(cached) : null;
    if (record) memory.observation = observe(memory.observation, record, this.#parts.clock.monoMs());
    // Without an owner a Lease that the watch does not show may still be there: somebody else's, without our label.
    if (owner ? this.#isHeld(record, owner, memory, timing) : record || !candidates.length) return record;
    const [namespace = "", name = ""] = key.split("/");
    const raw = await this.#get<RawLease>("leases", namespace, name);
    const live = raw && readLease(raw);
    if (!live) return null;
    const held = owner && timing && isOurs(live, { holder: owner.uid, generation: owner.generation });
    const gapMs = held ? overdueMs(timing, live.durationMs) + SIGHT_DELAY_MS : Number.POSITIVE_INFINITY;
    memory.observation = sight(memory.observation, live, this.#parts.clock.monoMs(), gapMs);
    return live;
  }

  /**
   * The job's pods. Absence is acted on at once (PodGone, a claim), so it is asked of the API server and not of a cache
   * that may lag. The Lease's holder may also be a pod of an earlier FencedJob of this name, and alive.
   */
  async #pods(
    { namespace, uid }: JobMeta,
    { owner }: FencedJobStatus,
    lease: LeaseRecord | null,
  ): Promise<{ pods: RawPod[]; holderElsewhere: boolean }> {
    const pods: RawPod[] = [...this.#parts.pods.by("job", uid)];
    let holderElsewhere = false;
    for (const one of [owner, lease && { uid: lease.holder, pod: lease.holderPod }]) {
      if (!one?.uid || !one.pod || pods.some((pod) => pod.metadata.uid === one.uid)) continue;
      const pod = await this.#get<RawPod>("pods", namespace, one.pod);
      if (pod?.metadata.uid !== one.uid) continue;
      if (one.uid === owner?.uid || isOwnedBy(pod, uid)) pods.push(pod);
      else holderElsewhere = pod.status?.phase !== "Succeeded" && pod.status?.phase !== "Failed";
    }
    return { pods, holderElsewhere };
  }

  /**
   * Whether the cached Lease shows a live owner. Everything else can cost an owner its job, and a watch that has fallen
   * silent shows exactly that: it is asked of the API server.
   */
  #isHeld(lease: LeaseRecord | null, owner: Owner, memory: Memory, timing: LeaseTiming | null): boolean {
    if (!lease || !timing || !isOurs(lease, { holder: owner.uid, generation: owner.generation })) return false;
    const { observation } = memory;
    return observation
      ? unchangedMs(observation, this.#parts.clock.monoMs()) < overdueMs(timing, lease.durationMs)
      : false;
  }

  async #get<T extends object>(
    resource: "pods" | "leases" | "fencedJobs",
    namespace: string,
    name: string,
  ): Promise<T | null> {
    try {
      return (await this.#parts.api.get(RESOURCES[resource], { namespace, name })) as unknown as T;
    } catch (error) {
      if (isNotFound(error)) return null;
      throw error;
    }
  }

  /** Tried once per spec; a refusal again after a while. */
  async #template(job: FencedJob, spec: SpecOf, memory: Memory): Promise<TemplateVerdict> {
    const { clock } = this.#parts;
    const generation = job.metadata.generation ?? 0;
    const known = memory.template;
    if (known?.generation === generation) {
      if (known.verdict.ok || clock.monoMs() - known.atMs < REFUSED_TEMPLATE_RETRY_MS) return known.verdict;
    }
    const problem = templateProblem(spec);
    const verdict: TemplateVerdict = problem
      ? { ok: false, ...problem }
      : await tryPod(this.#parts, job.metadata, spec);
    memory.template = { generation, verdict, atMs: clock.monoMs() };
    return verdict;
  }

  async #apply(job: FencedJob, snapshot: Snapshot, plan: Plan, memory: Memory): Promise<void> {
    const { api, events } = this.#parts;
    const status = JSON.parse(JSON.stringify(plan.status));
    if (!isDeepStrictEqual(status, job.status)) {
      try {
        this.#wrote(memory, job, await api.update(RESOURCES.fencedJobs, { ...job, status }, { subresource: "status" }));
      } catch (error) {
        // Whatever was decided on is not what is there: it is read anew.
        if (isConflict(error) && memory.written) memory.written.atMs = Number.NEGATIVE_INFINITY;
        throw error;
      }
    }
    for (const { type, reason, message } of plan.events) {
      events.record(job as unknown as KubeObject, { type, reason, action: "Reconcile", note: message });
    }
    const failed: unknown[] = [];
    for (const action of plan.actions) {
      try {
        await this.#act(action, job, snapshot, plan, memory);
      } catch (error) {
        failed.push(error);
      }
    }
    if (failed.length) throw failed[0];
  }

  async #act(action: Action, job: FencedJob, snapshot: Snapshot, plan: Plan, memory: Memory): Promise<void> {
    const { api } = this.#parts;
    const { metadata: meta } = job;
    const { namespace } = meta;
    switch (action.kind) {
      case "addFinalizer":
        return this.#finalize(withFinalizer(memory.written?.job ?? job), memory);
      case "removeFinalizer":
        return this.#finalize(withoutFinalizer(memory.written?.job ?? job), memory);
      case "createPod":
        return this.#createPod(action, meta, snapshot, memory);
      case "grant":
        return this.#grant(meta, snapshot, plan);
      case "clearLease":
        return this.#clearLease(action, meta);
      case "deletePod":
        return this.#delete(() =>
          api.delete(RESOURCES.pods, { namespace, name: action.pod }, { preconditions: { uid: action.uid } }),
        );
      case "deleteJob":
        return this.#delete(() =>
          api.delete(
            RESOURCES.fencedJobs,
            { namespace, name: meta.name },
            { preconditions: { uid: meta.uid }, propagationPolicy: "Background" },
          ),
        );
    }
  }

  /** Gone already, or replaced by another object of that name: nothing is left to do. */
  async #delete(call: () => Promise<void>): Promise<void> {
    try {
      await call();
    } catch (error) {
      if (!isNotFound(error) && !isConflict(error)) throw error;
    }
  }

  /** Conditional on the version that the decision was made on; a FencedJob that is gone needs none. */
  async #finalize(job: FencedJob, memory: Memory): Promise<void> {
    await this.#delete(async () => {
      this.#wrote(memory, job, await this.#parts.api.update(RESOURCES.fencedJobs, job));
    });
  }

  /** The watch shows our own write a moment later; until then the versions before it must not be decided on again. */
  #wrote(memory: Memory, { metadata }: FencedJob, job: FencedJob): void {
    const supersedes = memory.written?.supersedes ?? new Set();
    const atMs = this.#parts.clock.monoMs();
    memory.written = { supersedes: supersedes.add(metadata.resourceVersion ?? ""), job, atMs };
  }

  async #createPod(
    { attempt, closer, closes }: Extract<Action, { kind: "createPod" }>,
    meta: JobMeta,
    snapshot: Snapshot,
    memory: Memory,
  ): Promise<void> {
    const { api, sidecar, issuer } = this.#parts;
    if (!snapshot.spec.ok) return;
    const parts = { meta, spec: snapshot.spec.spec, sidecar, issuer, closes };
    const pod = closer ? buildCloser(parts, attempt) : buildPod(parts, attempt);
    try {
      await api.create(RESOURCES.pods, pod as unknown as KubeObject);
      delete memory.creationProblem;
      delete memory.namespaceEnding;
    } catch (error) {
      if (!isAlreadyExists(error)) {
        // The account or a quota may have gone since the template was tried: it is tried again.
        delete memory.template;
        memory.creationProblem = (error as Error).message;
        memory.namespaceEnding = isNamespaceEnding(error);
        throw error;
      }
      delete memory.creationProblem;
      // Ours, made by an earlier reconcile that the watch has not shown yet: success. Anybody else's: the next attempt.
      const present = await this.#get<RawPod>("pods", meta.namespace, podName(meta.name, attempt));
      const granted = snapshot.status.history.some(({ uid }) => uid === present?.metadata.uid);
      if (present && !granted && isAttemptOf(present, meta, attempt)) return;
      if (present) memory.burned.add(attempt);
      throw error;
    }
  }

  /** Writes the Lease for the reserved owner, if the record still is the one that the decision was made on. */
  async #grant(meta: JobMeta, snapshot: Snapshot, plan: Plan): Promise<void> {
    const { api, clock, log } = this.#parts;
    const { owner } = plan.status;
    if (!owner || !snapshot.spec.ok) return;
    const live = await this.#get<RawLease>("leases", meta.namespace, meta.name);
    const grant = { holder: owner.uid, generation: owner.generation };
    if (live && isOurs(readLease(live), grant)) return;
    const seen = snapshot.lease ? fingerprintOf(snapshot.lease) : null;
    if ((live ? fingerprintOf(readLease(live)) : null) !== seen) {
      throw new Error(`Lease ${meta.namespace}/${meta.name} changed since it was observed; it is observed again`);
    }
    // INV-9: read after the Lease. Whoever granted a later generation wrote it here before he wrote the Lease, so either
    // it is seen now, or our write of the Lease conflicts.
    const job = await this.#get<FencedJob>("fencedJobs", meta.namespace, meta.name);
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
    await (live ? api.update(RESOURCES.leases, lease) : api.create(RESOURCES.leases, lease));
    log.info("granted", { job: `${meta.namespace}/${meta.name}`, pod: owner.pod, generation: owner.generation });
  }

  async #clearLease(grant: { holder: string; generation: number }, meta: JobMeta): Promise<void> {
    const live = await this.#get<RawLease>("leases", meta.namespace, meta.name);
    if (!live || !isOurs(readLease(live), grant)) return;
    const report = readLease(live).report ?? "";
    await this.#parts.api.update(RESOURCES.leases, releasedLease(live, grant, this.#parts.clock.wall(), report));
  }
}

function withFinalizer(job: FencedJob): FencedJob {
  const finalizers = [...(job.metadata.finalizers ?? []), FINALIZER];
  return { ...job, metadata: { ...job.metadata, finalizers } };
}

export function withoutFinalizer(job: FencedJob): FencedJob {
  const finalizers = (job.metadata.finalizers ?? []).filter((name) => name !== FINALIZER);
  return { ...job, metadata: { ...job.metadata, finalizers } };
}

type SpecOf = Extract<Snapshot["spec"], { ok: true }>["spec"];

/** The key of the job that a pod or Lease belongs to, by its controlling owner. */
export function jobKeyOf(object: KubeObject): string[] {
  const owner = object.metadata.ownerReferences?.find(({ controller, kind }) => controller && kind === "FencedJob");
  return owner && object.metadata.namespace ? [`${object.metadata.namespace}/${owner.name}`] : [];
}
