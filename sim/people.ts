/**
 * What people with rights and no mercy do to the objects of a job, and what a backup brings back. Nothing of it may lead to a
 * generation that one history of the database accepts for two holders, or to a job that does not go on.
 */
import { GENERATION_ANNOTATION, REPORT_ANNOTATION } from "../lease/record.ts";
import type { ApiServer, Stored } from "./apiserver.ts";
import type { Fault, FaultKind } from "./faults.ts";
import type { Scheduler } from "./scheduler.ts";

export interface PeoplePlace {
  readonly apiServer: ApiServer;
  readonly scheduler: Scheduler;
  readonly job: string;
  /** Numbers, pods and the Lease of before mean nothing to the objects that are there now. */
  readonly onForgotten: () => void;
}

const GENERATIONS = ["1", "7", "1e3", "9007199254740991"];
const DURATIONS_SECONDS = [4, 60];
const REPORTS = [
  "x",
  "[]",
  '{"generation":1,"fences":[null],"failures":[null]}',
  '{"generation":1,"fences":[{"database":"ledger"}],"failures":[{"final":true,"floor":"9"}]}',
];
/** Of the share that a fault lasts: between an object's end and its return. */
const REMADE_MS = 4_000;
/** Whether it is gone. */
const GONE_MS = 500;
/** Of a fault that lasts for less: it is done by force. */
const FORCED_MS = 3_000;
/** Until the garbage collector has followed the owner. */
const COLLECTED_MS_MAX = 8_000;
const SHORT_LEASE = { durationSeconds: 5, renewIntervalSeconds: 1, requestTimeoutSeconds: 1, marginSeconds: 1 };

/** Faults that are somebody's doing; what is in here is edited, deleted or made anew. */
export class People {
  readonly #place: PeoplePlace;

  constructor(place: PeoplePlace) {
    this.#place = place;
  }

  /** False: not a thing that people do. `pod`: the UID of one of those that live. */
  act({ kind, which, lastsMs }: Fault, pod: string | undefined): boolean {
    const acts: Partial<Record<FaultKind, () => void>> = {
      nameAnotherPod: () => this.#editLease({ spec: { holderIdentity: pod ?? "nobody" } }),
      writeGeneration: () => this.#annotate(GENERATION_ANNOTATION, one(GENERATIONS, which)),
      writeDuration: () => this.#editLease({ spec: { leaseDurationSeconds: one(DURATIONS_SECONDS, which) } }),
      writeReport: () => this.#annotate(REPORT_ANNOTATION, one(REPORTS, which)),
      takeLabelOff: () => this.#editLease({ metadata: { labels: {} } }),
      deleteLease: () => this.#place.apiServer.askToEnd("leases", this.#place.job),
      suspendJob: () => {
        this.#editSpec({ suspend: true });
        this.#later(lastsMs, () => this.#editSpec({ suspend: false }));
      },
      changeImage: () => this.#editSpec({ template: templateOf(`image-${which}`) }),
      shortenLease: () => this.#editSpec({ lease: SHORT_LEASE }),
      remakeJob: () => this.#remake(which * REMADE_MS, other(which) * COLLECTED_MS_MAX, lastsMs < FORCED_MS),
      loseStatus: () => this.#loseStatus(),
    };
    const act = acts[kind];
    act?.();
    return act !== undefined;
  }

  /** Nobody leaves a job suspended for ever, though a restore may have brought that back. */
  resume(): void {
    if (this.#place.apiServer.get("fencedjobs", this.#place.job)?.spec.suspend) this.#editSpec({ suspend: false });
  }

  #editLease(change: { metadata?: object; spec?: object }): void {
    const { apiServer, job } = this.#place;
    const lease = apiServer.get("leases", job);
    if (!lease) return;
    const metadata = { ...lease.metadata, ...change.metadata };
    apiServer.put("leases", { ...lease, metadata, spec: { ...lease.spec, ...change.spec } });
  }

  #annotate(key: string, value: string): void {
    const lease = this.#place.apiServer.get("leases", this.#place.job);
    this.#editLease({ metadata: { annotations: { ...lease?.metadata.annotations, [key]: value } } });
  }

  #editSpec(change: object): void {
    const { apiServer, job } = this.#place;
    const stored = apiServer.get("fencedjobs", job);
    if (!stored) return;
    const metadata = { ...stored.metadata, generation: stored.metadata.generation + 1 };
    apiServer.put("fencedjobs", { ...stored, metadata, spec: { ...stored.spec, ...change } });
  }

  /**
   * Deleted with all that belongs to it, and made anew under its name: from git, or from a backup, which has no status. `byForce`:
   * somebody takes the finalizers away.
   */
  #remake(afterMs: number, collectedMs: number, byForce: boolean): void {
    const { apiServer, job, onForgotten } = this.#place;
    const stored = apiServer.get("fencedjobs", job);
    if (!stored || stored.metadata.deletionTimestamp) return;
    const { uid } = stored.metadata;
    if (byForce) apiServer.remove("fencedjobs", job);
    else apiServer.askToEnd("fencedjobs", job);
    const look = (): void => {
      const present = apiServer.get("fencedjobs", job);
      if (present) return this.#later(GONE_MS, look);
      onForgotten();
      this.#later(collectedMs, () => this.#collect(uid));
      this.#later(afterMs, () => {
        const { metadata, spec } = stored;
        if (apiServer.get("fencedjobs", job)) return;
        apiServer.put("fencedjobs", {
          ...stored,
          metadata: { name: metadata.name, generation: 1 },
          spec,
          status: undefined,
        });
      });
    };
    look();
  }

  #collect(owner: string): void {
    const { apiServer } = this.#place;
    const isOf = ({ metadata }: Stored): boolean =>
      metadata.ownerReferences?.some(({ uid }: { uid: string }) => uid === owner);
    for (const lease of apiServer.list("leases")) if (isOf(lease)) apiServer.remove("leases", lease.metadata.name);
    for (const pod of apiServer.list("pods")) if (isOf(pod)) apiServer.askToEnd("pods", pod.metadata.name);
  }

  /** As after a restore that has left it out, around pods that are still there. */
  #loseStatus(): void {
    const { apiServer, job } = this.#place;
    const stored = apiServer.get("fencedjobs", job);
    if (!stored) return;
    this.#place.onForgotten();
    apiServer.put("fencedjobs", { ...stored, status: undefined });
  }

  #later(ms: number, fn: () => void): void {
    const { scheduler } = this.#place;
    scheduler.at(scheduler.nowMs + ms, fn);
  }
}

export const templateOf = (image: string): object => ({
  spec: { restartPolicy: "Never", containers: [{ name: "app", image }] },
});

/** Of a share that has chosen a pod already, other digits. */
const other = (which: number): number => (which * 97) % 1;
const one = <T>(list: readonly T[], which: number): T => list[Math.floor(other(which) * list.length)] as T;
