/** What a controller remembers of each job beyond what the API server stores; lost without harm. */
import { type Observation, observe } from "../lease/observe.ts";
import { type RawLease, readLease } from "../lease/record.ts";
import type { Clock } from "../platform/clock.ts";
import type { Reason } from "./api/reasons.ts";
import type { FencedJob } from "./api/status.ts";
import type { Rivalry } from "./rivalry.ts";
import { leavingOf, type RawPod, type TemplateVerdict } from "./snapshot.ts";

export interface Memory {
  /** Of the FencedJob that the rest is about: one that is created anew under the same name is another one. */
  uid?: string;
  observation?: Observation;
  /** Fingerprint of the Lease that the watch showed when the API server had another already. */
  leaseBehind?: string;
  /** What we wrote last, while the watch still shows one of the versions that it supersedes. */
  written?: { supersedes: Set<string>; job: FencedJob; atMs: number };
  /** Null: to be tried again. */
  template?: { generation: number; verdict: TemplateVerdict; atMs: number } | null;
  /** The account of its pods has the rights that this version gives. */
  accountMade?: boolean;
  /** Monotonic ms at which pods were made, the last minute's. */
  madeAtMs?: readonly number[];
  /** Why the last pod could not be created, until one can. */
  creationProblem?: string;
  /** Why the Lease could not be written for this generation. */
  grantProblem?: { readonly generation: number; readonly message: string };
  /** That pod was refused because its namespace is being deleted. */
  namespaceEnding?: boolean;
  /** Monotonic ms since when it is being deleted, or failing, and no owner works. */
  closingSinceMs?: number;
  /** Of our writes of the status. */
  rivalry?: Rivalry;
  /** Why the pod that went last was taken away, as its last version said. */
  left?: { readonly uid: string; readonly reason: Reason };
  readonly burned: Set<number>;
}

/**
 * `job` is there in place of `superseded`: the watch shows that a moment later, and until then no version before it is decided on again.
 * `atMs`: monotonic, of the write.
 */
export function supersede(memory: Memory, superseded: FencedJob, job: FencedJob, atMs: number): void {
  const supersedes = memory.written?.supersedes ?? new Set();
  memory.written = { supersedes: supersedes.add(superseded.metadata.resourceVersion ?? ""), job, atMs };
}

/** By the job's key; kept from one turn of the controller to its next. */
export class Memories {
  readonly #clock: Clock;
  readonly #all = new Map<string, Memory>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A Lease as the watch brought it: the observation starts when it was seen, not when it is next looked at. */
  sawLease(key: string, lease: RawLease): void {
    const memory = this.#of(key);
    memory.observation = observe(memory.observation, readLease(lease), this.#clock.monoMs());
  }

  /** A pod's end as the watch brought it. Why it was taken away may have come in the same piece, and nobody have looked in between. */
  sawPodGo(key: string, pod: RawPod): void {
    const reason = leavingOf(pod);
    if (reason) this.#of(key).left = { uid: pod.metadata.uid ?? "", reason };
  }

  about(key: string, uid: string): Memory {
    const { uid: before, observation } = this.#of(key);
    if (before === uid) return this.#of(key);
    // What was observed of the Lease is about the Lease, not about the job.
    const memory: Memory = { uid, burned: new Set(), ...(observation && { observation }) };
    this.#all.set(key, memory);
    return memory;
  }

  forget(key: string): void {
    this.#all.delete(key);
  }

  #of(key: string): Memory {
    const memory = this.#all.get(key) ?? { burned: new Set<number>() };
    this.#all.set(key, memory);
    return memory;
  }
}
