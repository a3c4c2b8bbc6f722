/**
 * What people with rights and no mercy do to the objects of a job, and what a backup brings back. Nothing of it may lead to a
 * generation that one history of the database accepts for two holders, or to a job that does not go on.
 */
import type { Condition } from "../controller/api/status.ts";
import { GENERATION_ANNOTATION, REPORT_ANNOTATION } from "../lease/record.ts";
import type { ApiServer, Stored } from "./apiserver.ts";
import { digits, type Fault, type FaultKind } from "./faults.ts";
import type { Scheduler } from "./scheduler.ts";

export interface PeoplePlace {
  readonly apiServer: ApiServer;
  readonly scheduler: Scheduler;
  readonly job: string;
  readonly databases: readonly string[];
  /** Numbers, pods and the Lease of before mean nothing to the objects that are there now. */
  readonly onForgotten: () => void;
}

const GENERATIONS = ["1", "7", "1e3", "9007199254740991"];
const DURATIONS_SECONDS = [1, 4, 60];
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
/** Until somebody has read a condition and made up his mind. */
const READS_MS = 5_000;
const PORT = 5432;
const SHORT_LEASE = { durationSeconds: 5, renewIntervalSeconds: 1, requestTimeoutSeconds: 1, marginSeconds: 1 };

/** Faults that are somebody's doing; what is in here is edited, deleted or made anew. */
export class People {
  readonly #place: PeoplePlace;
  readonly #accepted: { readonly issuer: string; readonly generation: number }[] = [];
  #foreignSinceMs: number | undefined;

  constructor(place: PeoplePlace) {
    this.#place = place;
  }

  /** False: not a thing that people do. `pod`: the UID of one of those that live. */
  act({ kind, which, lastsMs }: Fault, pod: string | undefined): boolean {
    const acts: Partial<Record<FaultKind, () => void>> = {
      nameAnotherPod: () => this.#nameAnother(pod ?? "nobody", digits(which) < 0.5),
      writeGeneration: () => this.#annotate(GENERATION_ANNOTATION, one(GENERATIONS, which)),
      writeDuration: () => this.#editLease({ spec: { leaseDurationSeconds: one(DURATIONS_SECONDS, which) } }),
      writeReport: () => this.#annotate(REPORT_ANNOTATION, one(REPORTS, which)),
      takeLabelOff: () => this.#editLease({ metadata: { labels: {} } }),
      deleteLease: () => this.#place.apiServer.askToEnd("leases", this.#place.job),
      suspendJob: () => {
        this.#editSpec({ suspend: true });
        this.#later(lastsMs, () => this.#editSpec({ suspend: false }));
      },
      changeDatabases: () => this.#changeDatabases(),
      changeImage: () => this.#editSpec({ template: templateOf(`image-${which}`) }),
      shortenLease: () => this.#editSpec({ lease: SHORT_LEASE }),
      remakeJob: () => this.#remake(which * REMADE_MS, digits(which) * COLLECTED_MS_MAX, lastsMs < FORCED_MS),
      loseStatus: () => this.#loseStatus(),
    };
    const act = acts[kind];
    act?.();
    return act !== undefined;
  }

  /** Whoever reads the condition and finds that the work has moved here does what it says. */
  accept(): void {
    const { apiServer, scheduler, job } = this.#place;
    const conditions: Condition[] = apiServer.get("fencedjobs", job)?.status?.conditions ?? [];
    const foreign = conditions.find(({ type, status }) => type === "ForeignIssuer" && status === "True");
    if (!foreign) this.#foreignSinceMs = undefined;
    else this.#foreignSinceMs ??= scheduler.nowMs;
    if (!foreign || scheduler.nowMs - (this.#foreignSinceMs ?? 0) < READS_MS) return;
    const patch = /-p '(.*)'/.exec(foreign.message)?.[1];
    // The pod may not have read whose the fence is; that it never says so would show as a job that does not end.
    if (!patch) return;
    const { spec } = JSON.parse(patch);
    this.#accepted.push(spec.takeOver);
    this.#foreignSinceMs = undefined;
    this.#editSpec(spec);
  }

  hasAccepted(issuer: string, generation: number): boolean {
    return this.#accepted.some((one) => one.issuer === issuer && one.generation >= generation);
  }

  /** Nobody leaves a job suspended for ever, though a restore may have brought that back. */
  resume(): void {
    if (this.#place.apiServer.get("fencedjobs", this.#place.job)?.spec.suspend) this.#editSpec({ suspend: false });
  }

  /** `next`: with the generation that is to come, as somebody would who means it well. */
  #nameAnother(holderIdentity: string, next: boolean): void {
    const { metadata } = this.#place.apiServer.get("leases", this.#place.job) ?? {};
    const generation = Number(metadata?.annotations?.[GENERATION_ANNOTATION]);
    if (next && Number.isSafeInteger(generation)) this.#annotate(GENERATION_ANNOTATION, String(generation + 1));
    this.#editLease({ spec: { holderIdentity } });
  }

  /** The last one leaves the spec, or comes back into it. */
  #changeDatabases(): void {
    const databases: object[] = this.#place.apiServer.get("fencedjobs", this.#place.job)?.spec.databases ?? [];
    const [first, ...more] = this.#place.databases.map(databaseOf);
    this.#editSpec({ databases: databases.length > 1 ? [first] : [first, ...more] });
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

/** Of a job's spec. */
export const databaseOf = (name: string, index: number): object => ({ name, secretName: name, port: PORT + index });

export const templateOf = (image: string): object => ({
  spec: { restartPolicy: "Never", containers: [{ name: "app", image }] },
});

const one = <T>(list: readonly T[], which: number): T => list[Math.floor(digits(which) * list.length)] as T;
