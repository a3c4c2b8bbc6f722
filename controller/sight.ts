/**
 * The Lease of a job as one controller sees it: from its watch while that shows a live owner, and from the API server in front of
 * everything that can cost an owner its job, as a watch may have fallen silent.
 *
 * Time for which the API server gave no answer does not count as unchanged (`sight`). So whoever stands by looks as often as
 * whoever leads: else its first look would find that nobody had, and an owner would be given its time again.
 */
import { fingerprintOf, observe, sight, unchangedMs } from "../lease/observe.ts";
import { isOurs, type LeaseRecord, type RawLease, readLease } from "../lease/record.ts";
import type { Clock } from "../platform/clock.ts";
import { type FencedJobSpec, readSpec } from "./api/spec.ts";
import { type FencedJob, type FencedJobStatus, type Owner, readStatus } from "./api/status.ts";
import { type KubeApi, RESOURCES } from "./kube/api.ts";
import { ifThere } from "./kube/errors.ts";
import type { KubeObject } from "./kube/objects.ts";
import type { Outcome } from "./kube/queue.ts";
import type { Store } from "./kube/store.ts";
import type { Memories, Memory } from "./memory.ts";
import { overdueMsOf } from "./ownership.ts";

export interface SightParts {
  readonly api: KubeApi;
  readonly jobs: Store<FencedJob & KubeObject>;
  readonly leases: Store<RawLease & KubeObject>;
  readonly memories: Memories;
  readonly clock: Clock;
}

/** A look waits its turn; only more than that is an API server that did not answer. */
const SIGHT_DELAY_MS = 500;

export class LeaseSight {
  readonly #parts: SightParts;

  constructor(parts: SightParts) {
    this.#parts = parts;
  }

  /** For whoever stands by: looks at what is overdue, and does nothing else. */
  readonly watchOver = async (key: string): Promise<Outcome> => {
    const { jobs, memories, clock } = this.#parts;
    const job = jobs.get(key);
    if (!job) memories.forget(key);
    const spec = job && readSpec(job.spec);
    const status = job && readStatus(job.status);
    if (!spec?.ok || !status?.owner) return { kind: "done" };
    const memory = memories.about(key, job?.metadata.uid ?? "");
    const lease = await this.lease(key, status, memory, spec.spec);
    if (!lease || !memory.observation) return { kind: "done" };
    const overdue = overdueMsOf(status.owner, spec.spec);
    const leftMs = overdue - unchangedMs(memory.observation, clock.monoMs());
    return { kind: "requeueAfter", ms: leftMs > 0 ? leftMs : overdue };
  };

  async lease(
    key: string,
    { owner, candidates }: FencedJobStatus,
    memory: Memory,
    spec: FencedJobSpec | null,
  ): Promise<LeaseRecord | null> {
    const cached = this.#parts.leases.get(key);
    const record = cached ? readLease(cached) : null;
    // No news: it would begin the observation of the present one anew, at each look.
    if (record && fingerprintOf(record) === memory.leaseBehind) return await this.live(key, owner, memory, spec);
    if (record) memory.observation = observe(memory.observation, record, this.#parts.clock.monoMs());
    // Without an owner a Lease that the watch does not show may still be there: somebody else's, without our label.
    if (owner ? this.#isHeld(record, owner, memory, spec) : record || !candidates.length) return record;
    return await this.live(key, owner, memory, spec);
  }

  /** As the API server has it now. */
  async live(
    key: string,
    owner: Owner | undefined,
    memory: Memory,
    spec: FencedJobSpec | null,
  ): Promise<LeaseRecord | null> {
    const [namespace = "", name = ""] = key.split("/");
    const raw = await ifThere(this.#parts.api.get<RawLease & KubeObject>(RESOURCES.leases, { namespace, name }));
    const live = raw && readLease(raw);
    if (!live) return null;
    const cached = this.#parts.leases.get(key);
    const shown = cached && fingerprintOf(readLease(cached));
    if (shown && shown !== fingerprintOf(live)) memory.leaseBehind = shown;
    const held = owner && spec && isOurs(live, { holder: owner.uid, generation: owner.generation });
    const gapMs = held ? overdueMsOf(owner, spec) + SIGHT_DELAY_MS : Number.POSITIVE_INFINITY;
    memory.observation = sight(memory.observation, live, this.#parts.clock.monoMs(), gapMs);
    return live;
  }

  /**
   * Whether the cached Lease shows a live owner. Everything else can cost an owner its job, and a watch that has fallen
   * silent shows exactly that: it is asked of the API server.
   */
  #isHeld(lease: LeaseRecord | null, owner: Owner, memory: Memory, spec: FencedJobSpec | null): boolean {
    if (!lease || !spec || !isOurs(lease, { holder: owner.uid, generation: owner.generation })) return false;
    const { observation } = memory;
    return observation ? unchangedMs(observation, this.#parts.clock.monoMs()) < overdueMsOf(owner, spec) : false;
  }
}
