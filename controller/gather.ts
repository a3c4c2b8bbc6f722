/**
 * What one FencedJob is decided on: its status, template, pods and Lease at one moment. Reads, and tries the template; writes nothing
 * but the account that the trial needs.
 */
import { observe, remainingMs, unchangedMs } from "../lease/observe.ts";
import type { LeaseRecord } from "../lease/record.ts";
import type { Clock } from "../platform/clock.ts";
import { type JobMeta, readSpec, timingOf } from "./api/spec.ts";
import { type FencedJob, type FencedJobStatus, readStatus } from "./api/status.ts";
import { creationRestMs, tooManyMade } from "./backoff.ts";
import { FINALIZER, FOREGROUND } from "./finalizer.ts";
import { RESOURCES } from "./kube/api.ts";
import { ifThere } from "./kube/errors.ts";
import type { KubeObject } from "./kube/objects.ts";
import type { Store } from "./kube/store.ts";
import { type Memory, supersede } from "./memory.ts";
import { endedUnserved } from "./ownership.ts";
import { isOwnedBy, madeFrom, type SidecarImage } from "./pods.ts";
import { LeaseSight, type SightParts } from "./sight.ts";
import { type RawPod, type Snapshot, type TemplateVerdict, viewPod } from "./snapshot.ts";
import { templateProblem } from "./template.ts";
import { tryPod } from "./trial.ts";

export interface GathererParts extends SightParts {
  /** Indexed by `job`: the UID of the FencedJob that controls the pod. */
  readonly pods: Store<RawPod & KubeObject>;
  readonly sidecar: SidecarImage;
  readonly issuer: string;
}

/** A template that the API server refused may be accepted later (a policy), and one that could not be tried soon: it is asked again. */
export function retryMsOf(verdict: TemplateVerdict): number {
  if (verdict.ok) return Number.POSITIVE_INFINITY;
  return verdict.reason === "AdmissionUnavailable" ? 10_000 : 30_000;
}

/** A watch that does not show our own write for so long is not merely behind. */
const WATCH_BEHIND_MS_MAX = 10_000;

type SpecOf = Extract<Snapshot["spec"], { ok: true }>["spec"];

export class Gatherer {
  readonly #parts: GathererParts;
  readonly #sight: LeaseSight;

  constructor(parts: GathererParts) {
    this.#parts = parts;
    this.#sight = new LeaseSight(parts);
  }

  /**
   * What to decide on: our own last write, as long as the watch shows what it supersedes. Not for ever: a restored etcd gives versions
   * out a second time, and what was written may be gone there.
   */
  async job(stored: FencedJob, memory: Memory): Promise<FencedJob> {
    const { written } = memory;
    const { namespace, name, uid, resourceVersion = "" } = stored.metadata;
    if (!written?.supersedes.has(resourceVersion)) {
      delete memory.written;
      return stored;
    }
    if (this.#parts.clock.monoMs() - written.atMs < WATCH_BEHIND_MS_MAX) return written.job;
    const live = await ifThere(this.#parts.api.get<FencedJob & KubeObject>(RESOURCES.fencedJobs, { namespace, name }));
    if (live?.metadata.uid === uid) supersede(memory, stored, live, this.#parts.clock.monoMs());
    else delete memory.written;
    return memory.written?.job ?? stored;
  }

  /** What `decide` is asked about. */
  async snapshot(key: string, job: FencedJob, memory: Memory): Promise<Snapshot> {
    const { clock } = this.#parts;
    const { name, namespace, generation = 0, deletionTimestamp, finalizers = [] } = job.metadata;
    const spec = readSpec(job.spec);
    const status = readStatus(job.status);
    const template = spec.ok ? await this.#template(job, spec.spec, memory) : { ok: true as const };
    const valid = spec.ok ? spec.spec : null;
    let lease = await this.#sight.lease(key, status, memory, valid);
    let nowMs = clock.monoMs();
    const { pods: raw, holderElsewhere } = await this.#pods(job.metadata, status, lease);
    const present = valid && madeFrom(valid);
    const pods = raw.map((pod) => viewPod(pod, present));
    const { owner } = status;
    // Not of one that an etcd of before has brought back.
    if (owner && memory.left?.uid === owner.uid && !pods.some(({ uid }) => uid === owner.uid))
      owner.leaving ??= memory.left.reason;
    // Its end may have come in front of the Lease that says what it is worth (INV-9).
    if (owner && pods.some((pod) => pod.uid === owner.uid && endedUnserved(owner, pod, lease))) {
      lease = await this.#sight.live(key, owner, memory, valid);
      nowMs = clock.monoMs();
    }
    const specMs = valid ? timingOf(valid).durationMs : 0;
    const observation = lease && observe(memory.observation, lease, nowMs);
    const ends = deletionTimestamp !== undefined || status.failing !== undefined;
    if (!ends) delete memory.closingSinceMs;
    else if (!status.owner || status.owner.closes) memory.closingSinceMs ??= nowMs;
    return {
      job: {
        name,
        namespace,
        generation,
        deleting: deletionTimestamp !== undefined,
        inForeground: finalizers.includes(FOREGROUND),
        finalized: finalizers.includes(FINALIZER),
        closingMs: memory.closingSinceMs === undefined ? 0 : nowMs - memory.closingSinceMs,
      },
      spec,
      template,
      status,
      pods,
      burnedAttempts: [...memory.burned],
      ...creationOf(memory, valid, clock),
      grantProblem: grantProblemOf(status, memory),
      namespaceEnding: memory.namespaceEnding ?? false,
      lease,
      holderElsewhere,
      leaseUnchangedMs: observation ? unchangedMs(observation, nowMs) : 0,
      leaseRemainingMs: observation && lease ? remainingMs(observation, lease, specMs, nowMs) : 0,
      wallMs: clock.wall().getTime(),
    };
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
    const { api } = this.#parts;
    const pods: RawPod[] = [...this.#parts.pods.by("job", uid)];
    let holderElsewhere = false;
    for (const one of [owner, lease && { uid: lease.holder, pod: lease.holderPod }]) {
      if (!one?.uid || !one.pod || pods.some((pod) => pod.metadata.uid === one.uid)) continue;
      const pod = await ifThere(api.get<RawPod & KubeObject>(RESOURCES.pods, { namespace, name: one.pod }));
      if (pod?.metadata.uid !== one.uid) continue;
      if (one.uid === owner?.uid || isOwnedBy(pod, uid)) pods.push(pod);
      else holderElsewhere = pod.status?.phase !== "Succeeded" && pod.status?.phase !== "Failed";
    }
    return { pods, holderElsewhere };
  }

  /** Tried once per spec; a refusal again after a while. */
  async #template(job: FencedJob, spec: SpecOf, memory: Memory): Promise<TemplateVerdict> {
    const { clock } = this.#parts;
    const generation = job.metadata.generation ?? 0;
    const known = memory.template === undefined ? acceptedBefore(job, clock.monoMs()) : memory.template;
    if (known?.generation === generation) {
      if (clock.monoMs() - known.atMs < retryMsOf(known.verdict)) return known.verdict;
    }
    const problem = templateProblem(spec);
    const verdict: TemplateVerdict = problem
      ? { ok: false, ...problem }
      : await tryPod(this.#parts, job.metadata, spec);
    memory.template = { generation, verdict, atMs: clock.monoMs() };
    memory.accountMade ||= verdict.ok;
    return verdict;
  }
}

/** Why no pod can be made now, and for how long none is asked for. */
function creationOf(
  { madeAtMs = [], creationProblem }: Memory,
  spec: SpecOf | null,
  clock: Clock,
): Pick<Snapshot, "creationProblem" | "creationRestMs"> {
  const restMs = creationRestMs(madeAtMs, spec?.standbys.count ?? 0, clock.monoMs());
  const problem = restMs > 0 ? tooManyMade(restMs, clock.wall()) : creationProblem;
  return { creationRestMs: restMs, creationProblem: problem ?? null };
}

/** Of the grant in force, not of one before. */
function grantProblemOf({ owner }: FencedJobStatus, { grantProblem }: Memory): string | null {
  return grantProblem && grantProblem.generation === owner?.generation ? grantProblem.message : null;
}

/** Another controller has tried it: whoever acts for a leader that is silent, or follows it, need not try every job's pod first. */
function acceptedBefore({ status, metadata: { generation = 0 } }: FencedJob, atMs: number): Memory["template"] {
  const accepted = readStatus(status).conditions.find(({ type }) => type === "Admitted");
  if (accepted?.status !== "True" || accepted.observedGeneration !== generation) return null;
  return { generation, verdict: { ok: true }, atMs };
}
