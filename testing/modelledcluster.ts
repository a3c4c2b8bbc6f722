/**
 * A cluster in memory around the real `Reconciler`: an API server that keeps versions as the real one does and may be
 * unwell, controllers whose caches lag each by its own, a kubelet, sidecars and a fence. It asserts the invariants
 * wherever something is written. The real API server is in controller/controller.api.test.ts, real nodes in e2e/.
 */
import { expect } from "vitest";
import { type FencedJobStatus, fencedJobStatus, readStatus } from "../controller/api/status.ts";
import type { DeleteOptions, Resource } from "../controller/kube/api.ts";
import { ApiError } from "../controller/kube/errors.ts";
import type { KubeObject, ObjectKey } from "../controller/kube/objects.ts";
import { SIDECAR_NAME } from "../controller/snapshot.ts";
import {
  GENERATION_ANNOTATION,
  isOurs,
  type RawLease,
  readLease,
  releasedLease,
  renewedLease,
} from "../lease/record.ts";
import { formatReport } from "../lease/report.ts";
import type { Clock } from "../platform/clock.ts";
import type { ModelledController } from "./modelledcontroller.ts";
import { seededRandom } from "./seeded.ts";

export const KEY = "n/run";
const LEASE_MS = 10_000;
const RENEW_MS = 3_000;

// biome-ignore lint/suspicious/noExplicitAny: objects of three kinds, as raw as they are in the API server.
export type Stored = KubeObject & Record<string, any>;
export type Plural = "fencedjobs" | "pods" | "leases";
export const PLURALS: readonly Plural[] = ["fencedjobs", "pods", "leases"];

export interface Sidecar {
  grant: { holder: string; generation: number } | null;
  lost: boolean;
  raised: boolean;
  sentMs: number;
  renewedMs: number;
  frozenUntilMs: number;
  worksUntilMs: number;
}

export class World {
  readonly random;
  readonly chance: (share: number) => boolean;
  nowMs = 1_000_000;
  wallOffsetMs = Date.parse("2026-11-29T13:00:00Z");
  readonly objects: Record<Plural, Map<string, Stored>> = { fencedjobs: new Map(), pods: new Map(), leases: new Map() };
  readonly log: { plural: Plural; object: Stored; gone: boolean }[] = [];
  readonly sidecars = new Map<string, Sidecar>();
  /** The protected database: the highest generation, and who raised what. */
  fence = { generation: 0, holder: "" };
  readonly succeeded = new Set<string>();
  readonly raisedBy = new Map<string, number>();
  readonly controllers: ModelledController[] = [];
  faultShare = 0;
  versions = 0;
  statusWrites = 0;
  /** What this world has done, for the message of a failure. */
  readonly story: string[] = [];

  constructor(seed: number) {
    this.random = seededRandom(seed);
    this.chance = (share) => this.random.unit() < share;
  }

  readonly clock: Clock = {
    monoMs: () => this.nowMs,
    wall: () => new Date(this.wallOffsetMs + this.nowMs),
    sleep: () => Promise.resolve(),
    after: () => () => {},
  };

  tell(text: string): void {
    this.story.push(`${((this.nowMs - 1_000_000) / 1000).toFixed(1)}s ${text}`);
  }

  job(): Stored | undefined {
    return this.objects.fencedjobs.get("run");
  }

  status(): FencedJobStatus {
    return readStatus(this.job()?.status);
  }

  lease(): Stored | undefined {
    return this.objects.leases.get("run");
  }

  put(plural: Plural, object: Stored): Stored {
    const uid = object.metadata.uid ?? `${plural}-${++this.versions}`;
    const stored = structuredClone({
      ...object,
      metadata: { ...object.metadata, namespace: "n", uid, resourceVersion: String(++this.versions) },
    });
    this.objects[plural].set(stored.metadata.name, stored);
    this.log.push({ plural, object: stored, gone: false });
    return stored;
  }

  drop(plural: Plural, name: string): void {
    const object = this.objects[plural].get(name);
    if (!object) return;
    this.objects[plural].delete(name);
    this.log.push({ plural, object, gone: true });
  }

  /** The API as the reconciler uses it: conditional, and unwell as often as `faultShare` says. */
  readonly api = {
    get: async (resource: Resource, key: ObjectKey) => {
      if (this.chance(this.faultShare)) throw new ApiError("get", 500, {});
      const object = this.objects[resource.plural as Plural].get(key.name);
      if (!object) throw new ApiError("get", 404, { reason: "NotFound" });
      return structuredClone(object);
    },
    create: async (resource: Resource, object: Stored, options: { dryRun?: boolean } = {}) => {
      if (options.dryRun) return object;
      return this.#write(() => {
        if (this.objects[resource.plural as Plural].has(object.metadata.name))
          throw new ApiError("create", 409, { reason: "AlreadyExists" });
        if (resource.plural === "pods") {
          object.status = { phase: "Pending" };
          this.tell(`pod ${object.metadata.name} created`);
        } else this.tell(`lease created ${JSON.stringify(object.metadata.annotations)}`);
        const stored = this.put(resource.plural as Plural, object);
        if (resource.plural === "leases") this.checkLease();
        return stored;
      });
    },
    update: async (resource: Resource, object: Stored, _options: object = {}) =>
      this.#write(() => {
        const plural = resource.plural as Plural;
        const present = this.objects[plural].get(object.metadata.name);
        if (!present) throw new ApiError("update", 404, { reason: "NotFound" });
        if (present.metadata.uid !== object.metadata.uid) throw new ApiError("update", 409, { reason: "Conflict" });
        if (present.metadata.resourceVersion !== object.metadata.resourceVersion)
          throw new ApiError("update", 409, { reason: "Conflict" });
        if (plural === "fencedjobs") {
          const checked = fencedJobStatus.safeParse(object.status);
          if (!checked.success)
            throw new ApiError("update", 422, { reason: "Invalid", message: checked.error.message });
          this.checkStatus(readStatus(present.status), object.status);
          this.statusWrites++;
          return this.put(plural, { ...present, status: object.status });
        }
        if (object.spec.leaseTransitions > 2 ** 31 - 1) throw new ApiError("update", 400, { reason: "BadRequest" });
        const stored = this.put(plural, object);
        this.tell(`lease -> ${object.spec.holderIdentity} ${object.metadata.annotations?.[GENERATION_ANNOTATION]}`);
        this.checkLease();
        return stored;
      }),
    delete: async (resource: Resource, key: ObjectKey, options: DeleteOptions = {}) => {
      await this.#write(() => {
        const plural = resource.plural as Plural;
        const present = this.objects[plural].get(key.name);
        if (!present) throw new ApiError("delete", 404, { reason: "NotFound" });
        const { uid, resourceVersion } = options.preconditions ?? {};
        if (uid && uid !== present.metadata.uid) throw new ApiError("delete", 409, { reason: "Conflict" });
        if (resourceVersion && resourceVersion !== present.metadata.resourceVersion)
          throw new ApiError("delete", 409, { reason: "Conflict" });
        if (plural !== "pods") return this.drop(plural, key.name);
        this.tell(`pod ${key.name} deleted`);
        this.checkDelete(present);
        present.metadata.deletionTimestamp ??= "2026-11-29T13:00:00Z";
        this.put("pods", present);
      });
    },
    apply: async (_resource: Resource, object: Stored) => object,
  };

  async #write<T>(write: () => T): Promise<T> {
    if (this.chance(this.faultShare)) throw new ApiError("write", 500, { message: "not done" });
    const done = write();
    if (this.chance(this.faultShare)) throw new ApiError("write", 504, { message: "done, not answered" });
    return done;
  }

  // ---- invariants, asserted where something is written ----

  readonly #holderOf = new Map<number, string>();
  readonly #generationOf = new Map<string, number>();
  /** Somebody edits: what is needless or false then is his doing. */
  wild = false;

  checkStatus(before: FencedJobStatus, after: FencedJobStatus): void {
    if (before.owner?.uid !== after.owner?.uid)
      this.tell(
        `owner ${before.owner?.pod ?? "none"} -> ${after.owner?.pod ?? "none"} generation ${after.generation} ${after.history[0]?.reason ?? ""}`,
      );
    expect(after.generation, "INV-8: the generation in status went back").toBeGreaterThanOrEqual(before.generation);
    expect(after.attempt, "an attempt was taken back").toBeGreaterThanOrEqual(before.attempt);
    const { owner } = after;
    if (owner && owner.uid !== before.owner?.uid) {
      expect(this.#holderOf.get(owner.generation) ?? owner.uid, "INV-2: one generation, two holders").toBe(owner.uid);
      expect(this.#generationOf.has(owner.uid), `INV-7: ${owner.pod} was granted twice`).toBe(false);
      this.#holderOf.set(owner.generation, owner.uid);
      this.#generationOf.set(owner.uid, owner.generation);
      expect(owner.generation, "INV-8: the grant is the reserved generation").toBe(after.generation);
    }
    const complete = (status: FencedJobStatus): boolean =>
      status.conditions.some(({ type, status }) => type === "Complete" && status === "True");
    if (complete(after) && !complete(before)) {
      const owner = before.owner?.uid ?? "";
      expect(this.succeeded.has(owner), "INV-9: completion from the owner in force only").toBe(true);
    }
    const [last] = after.history;
    if (!this.wild && last && before.owner?.uid === last.uid && after.owner?.uid !== last.uid) {
      const sidecar = this.sidecars.get(last.uid);
      if (last.reason === "LeaseExpired" && sidecar) {
        expect(this.nowMs - sidecar.renewedMs, `${last.pod} was replaced though it renews`).toBeGreaterThanOrEqual(
          LEASE_MS,
        );
      }
      expect(["LeaseTaken", "LeaseDeleted"], "nobody touched the Lease").not.toContain(last.reason);
    }
  }

  checkLease(): void {
    const { holder, generation } = readLease(this.lease() as RawLease);
    if (holder === null || this.wild) return;
    expect(this.#holderOf.get(generation ?? 0), "INV-8: the Lease names what was not reserved").toBe(holder);
    expect(generation, "the Lease went back").toBeGreaterThanOrEqual(this.#leaseGeneration);
    this.#leaseGeneration = generation ?? 0;
  }

  #leaseGeneration = 0;

  checkDelete(pod: Stored): void {
    const { owner } = this.status();
    if (!this.job()?.spec.suspend && !pod.metadata.deletionTimestamp)
      expect(pod.metadata.uid, `the owner in force, ${owner?.pod}, was deleted`).not.toBe(owner?.uid);
  }

  // ---- kubelet, sidecars, database ----

  sidecarOf(pod: Stored): Sidecar {
    const known = this.sidecars.get(pod.metadata.uid ?? "");
    if (known) return known;
    const sidecar: Sidecar = {
      grant: null,
      lost: false,
      raised: false,
      sentMs: 0,
      renewedMs: this.nowMs,
      frozenUntilMs: 0,
      worksUntilMs: this.nowMs + 5_000 + this.random.unit() * 60_000,
    };
    this.sidecars.set(pod.metadata.uid ?? "", sidecar);
    return sidecar;
  }

  podIs(pod: Stored, phase: string, running = true): void {
    const state = running ? { running: {} } : { terminated: { exitCode: 0 } };
    const started = this.sidecarOf(pod).raised;
    const containerStatuses = started ? [{ name: "app", state: running ? { running: {} } : { terminated: {} } }] : [];
    pod.status = { phase, initContainerStatuses: [{ name: SIDECAR_NAME, state }], containerStatuses };
    this.put("pods", pod);
    if (phase === "Succeeded") this.succeeded.add(pod.metadata.uid ?? "");
    if (phase !== "Running") this.tell(`pod ${pod.metadata.name} ${phase}`);
  }

  /** One moment in the life of each pod. */
  live(quiet: boolean): void {
    for (const pod of [...this.objects.pods.values()]) {
      const { phase } = pod.status;
      const sidecar = this.sidecarOf(pod);
      const ended = phase === "Succeeded" || phase === "Failed";
      if (pod.metadata.deletionTimestamp && this.chance(0.2)) {
        if (!ended && this.chance(0.5)) this.#release(pod, sidecar);
        this.drop("pods", pod.metadata.name);
        this.tell(`pod ${pod.metadata.name} gone`);
      } else if (ended) continue;
      else if (phase === "Pending") {
        if (this.chance(0.3)) this.podIs(pod, "Running");
      } else if (this.nowMs >= sidecar.frozenUntilMs) this.#work(pod, sidecar, quiet);
    }
  }

  #work(pod: Stored, sidecar: Sidecar, quiet: boolean): void {
    const lease = this.lease() as RawLease | undefined;
    const record = lease ? readLease(lease) : null;
    if (!sidecar.grant && record?.holder === pod.metadata.uid && record?.generation) {
      sidecar.grant = { holder: record.holder ?? "", generation: record.generation };
      sidecar.sentMs = Number.NEGATIVE_INFINITY;
    }
    if (!sidecar.grant) return;
    if (sidecar.lost) {
      if (this.chance(0.05)) this.podIs(pod, "Failed", false);
      return;
    }
    if (this.nowMs - sidecar.sentMs >= RENEW_MS && !this.chance(this.faultShare)) {
      sidecar.sentMs = this.nowMs;
      if (!isOurs(record, sidecar.grant)) {
        sidecar.lost = true;
        return;
      }
      this.#raise(pod, sidecar);
      this.put(
        "leases",
        renewedLease(lease as RawLease, sidecar.grant, this.clock.wall(), this.#report(sidecar)) as Stored,
      );
      sidecar.renewedMs = this.nowMs;
    }
    if (!sidecar.raised || this.nowMs < sidecar.worksUntilMs) return;
    if (quiet || this.chance(0.7)) this.#release(pod, sidecar);
    this.podIs(pod, quiet || this.chance(0.1) ? "Succeeded" : "Failed", false);
  }

  #report({ grant, raised }: Sidecar): string {
    const generation = grant?.generation ?? 0;
    const fence = {
      database: "ledger",
      generation,
      previousGeneration: null,
      incarnation: "x",
      tookMs: 1,
      sessionsEnded: 0,
      closed: false,
    };
    const { generation: floor } = this.fence;
    const failure = { database: "ledger", code: "LF001", message: "over", hint: "", final: true, floor };
    return formatReport({
      generation,
      fences: raised ? [fence] : [],
      failures: raised ? [] : [failure],
      served: raised,
    });
  }

  #raise(pod: Stored, sidecar: Sidecar): void {
    const { holder, generation } = sidecar.grant as { holder: string; generation: number };
    if (sidecar.raised || generation <= this.fence.generation || this.raisedBy.has(holder)) return;
    if (generation - this.fence.generation > 1_000_000) return;
    this.fence = { generation, holder };
    this.raisedBy.set(holder, generation);
    sidecar.raised = true;
    this.podIs(pod, "Running");
    this.tell(`${pod.metadata.name} raised ${generation}`);
  }

  #release(pod: Stored, { grant, lost }: Sidecar): void {
    const lease = this.lease() as RawLease | undefined;
    if (!lease || !grant || lost || !isOurs(readLease(lease), grant)) return;
    this.tell(`${pod.metadata.name} gives the Lease back`);
    this.put("leases", releasedLease(lease, grant, this.clock.wall(), readLease(lease).report ?? "") as Stored);
  }
}
