/**
 * The invariants, asserted where something takes effect: at each write of the API server, each message of an application; at
 * each commit of a database in fencechecks.ts.
 */
import { type FencedJobStatus, type Owner, readStatus } from "../controller/api/status.ts";
import type { Permit } from "../lease/permit.ts";
import { type LeaseRecord, type RawLease, readLease } from "../lease/record.ts";
import { parseReport } from "../lease/report.ts";
import { KUBERNETES, type Stored, type Write } from "./apiserver.ts";
import { CONTROLLERS_LEASE } from "./controllers.ts";
import type { Commit } from "./databasestate.ts";
import { Failures, isTrue } from "./failures.ts";
import { type AcceptsIssuer, FenceChecks } from "./fencechecks.ts";
import { API } from "./kubeclient.ts";
import type { PodRuntime } from "./kubelet.ts";
import type { Process } from "./process.ts";
import { violated } from "./violation.ts";
import { Waits } from "./waits.ts";
import type { World } from "./world.ts";

/** Without a cut towards the database for so long, whoever blocks a raise is somebody whom it could end. */
const UNDISTURBED_MS = 20_000;

/** So many renewals in such a share of the Lease's duration, and their owner lives. */
const RENEWALS = 3;
const RENEWING_SHARE = 0.95;

export class Checks {
  /** Pods whose application ended well. */
  readonly succeeded = new Set<string>();
  /** Pods whose application was started early and has had a session. */
  readonly served = new Set<string>();
  /** Work, for the last time. */
  committedAtMs = 0;
  readonly #world: World;
  readonly #fences = new Map<string, FenceChecks>();
  readonly #waits = new Waits();
  readonly #failures = new Failures();
  readonly #holderOf = new Map<number, string>();
  readonly #generationOf = new Map<string, number>();
  /** All that ever was, also in what etcd has forgotten: a grant may be on its way. */
  readonly #reserved = new Set<string>();
  readonly #permits = new Map<string, { permit: Permit; process: Process; runtime: PodRuntime }>();
  #leaseGeneration = 0;
  /** Of each holder: when its last renewals were stored. */
  readonly #renewedMs = new Map<string, number[]>();

  constructor(world: World) {
    this.#world = world;
  }

  of(database: string): FenceChecks {
    const known = this.#fences.get(database);
    if (known) return known;
    const accepts: AcceptsIssuer = (issuer, generation) => this.#world.people.hasAccepted(issuer, generation);
    const fence = new FenceChecks(database, accepts);
    this.#fences.set(database, fence);
    return fence;
  }

  commit(database: string, commit: Commit): void {
    this.of(database).commit(commit);
    if (commit.kind !== "work") return;
    this.committedAtMs = this.#world.scheduler.nowMs;
    if (!this.of(database).wasRestored) this.#failures.work();
  }

  get committed(): number {
    return sum(this.#fences, ({ committed }) => committed);
  }

  get raises(): number {
    return sum(this.#fences, ({ raises }) => raises);
  }

  // ---- the wire ----

  wireServes(runtime: PodRuntime, generation: number, permit: Permit): void {
    this.#mustHaveRaised(runtime, generation);
    const { process } = runtime;
    const known = this.#permits.get(runtime.uid);
    // One that a restored etcd has brought back is started as a whole: nothing in it remembers its first life.
    if (known?.runtime === runtime && known.process !== process)
      violated(`INV-7: ${runtime.name} serves in a second life of its sidecar`);
    this.#permits.set(runtime.uid, { permit, process, runtime });
  }

  protectedMessage(runtime: PodRuntime, generation: number): void {
    if (runtime.process.paused) violated(`${runtime.name} works in its sleep`);
    this.#mustHaveRaised(runtime, generation);
  }

  /** INV-4: in every database of the job, as far as its pod knows of them. */
  #mustHaveRaised({ name, uid, databases }: PodRuntime, generation: number): void {
    for (const database of databases) {
      if (this.of(database).mayServe(uid, generation)) continue;
      violated(`INV-4: ${name} serves generation ${generation}, which it has not raised in ${database}`);
    }
  }

  // ---- the API server ----

  write({ plural, before, after, author }: Write): void {
    // What people write is theirs to answer for.
    const byPeople = author === KUBERNETES;
    if (plural === "fencedjobs" && before && after && !byPeople) {
      this.#status(statusOf(before), statusOf(after));
      this.#ended(statusOf(before), statusOf(after), author);
      this.#failures.written(statusOf(before), statusOf(after), this.#world.scheduler.nowMs);
      if (!this.#world.edited) this.#waits.written(statusOf(before), statusOf(after), this.#world.scheduler.nowMs);
    }
    if (plural === "leases" && after?.metadata.name.startsWith(CONTROLLERS_LEASE)) {
      this.#elected(before && readLease(before as RawLease), readLease(after as RawLease), after.metadata.name);
    } else if (plural === "leases" && after && !byPeople) {
      const [old, next] = [before ? readLease(before as RawLease) : null, readLease(after as RawLease)];
      this.#lease(old, next);
      this.#byItsHolder(old, next, author);
    }
    if (plural === "pods" && before && after) this.#podDeleted(before, after, byPeople);
  }

  /**
   * etcd is what it was, or the job was made anew, or its status is lost: numbers that were given out are given out again, and
   * must be refused by the database.
   */
  forgotten(): void {
    this.#failures.forgotten();
    this.#holderOf.clear();
    this.#generationOf.clear();
    this.#leaseGeneration = 0;
  }

  #status(before: FencedJobStatus, after: FencedJobStatus): void {
    const { owner } = after;
    if (owner?.uid !== before.owner?.uid) {
      this.#world.tell(
        `owner ${before.owner?.pod ?? "none"} -> ${owner?.pod ?? "none"}, generation ${after.generation} ${after.history[0]?.reason ?? ""}`,
      );
    }
    if (!this.#world.versionsReused) {
      if (after.generation < before.generation) violated("INV-8: the generation in status went back");
      if (after.attempt < before.attempt) violated("an attempt was taken back");
    }
    // A number that was reserved is given up for a higher one as long as the Lease has not named it.
    const again = owner?.uid === before.owner?.uid;
    if (owner && !(again && owner.generation === before.owner?.generation))
      this.#granted(owner, after.generation, again);
    // A write of before the restore, on a version that was given out a second time, may complete it too: the database stands.
    if (this.#world.versionsReused) return;
    if (isTrue(after, "Complete") && !isTrue(before, "Complete") && !this.succeeded.has(before.owner?.uid ?? "")) {
      violated("INV-9: completed by one that is not the owner in force, or has not succeeded");
    }
    const early = this.#world.application === "Started";
    if (
      early &&
      isTrue(after, "Complete") &&
      !isTrue(before, "Complete") &&
      !this.served.has(before.owner?.uid ?? "")
    ) {
      violated("INV-9: completed by one whose application has never had a session");
    }
  }

  /** Nobody loses the job for a Lease that he renews, or that nobody has touched. */
  #ended({ owner }: FencedJobStatus, after: FencedJobStatus, author: string): void {
    const [last] = after.history;
    if (!owner || last?.uid !== owner.uid || after.owner?.uid === owner.uid) return;
    if (!this.#world.edited && (last.reason === "LeaseTaken" || last.reason === "LeaseDeleted")) {
      violated(`${owner.pod} was replaced for ${last.reason}, and nobody had touched the Lease`);
    }
    if (last.reason !== "LeaseExpired" || !this.#world.isUndisturbed([API, author], UNDISTURBED_MS)) return;
    const lease = this.#world.apiServer.get("leases", this.#world.job);
    const sinceMs =
      this.#world.scheduler.nowMs - (lease ? readLease(lease as RawLease).durationMs * RENEWING_SHARE : 0);
    const renewals = (this.#renewedMs.get(owner.uid) ?? []).filter((ms) => ms > sinceMs);
    if (renewals.length >= RENEWALS) violated(`${owner.pod} was replaced though it renews`);
  }

  #granted(owner: Owner, reserved: number, again: boolean): void {
    if (!this.#world.versionsReused) {
      if ((this.#holderOf.get(owner.generation) ?? owner.uid) !== owner.uid) {
        violated(`INV-2: generation ${owner.generation} has two holders`);
      }
      if (!again && this.#generationOf.has(owner.uid)) violated(`INV-7: ${owner.pod} was granted twice`);
    }
    if (owner.generation !== reserved) violated("INV-8: the grant is not the reserved generation");
    this.#holderOf.set(owner.generation, owner.uid);
    this.#generationOf.set(owner.uid, owner.generation);
    this.#reserved.add(`${owner.generation} ${owner.uid}`);
  }

  #lease(before: LeaseRecord | null, after: LeaseRecord): void {
    const { holder, generation } = after;
    if (before?.holder === holder && before.generation === generation) {
      const renewals = this.#renewedMs.get(holder ?? "") ?? [];
      this.#renewedMs.set(holder ?? "", [...renewals.slice(1 - RENEWALS), this.#world.scheduler.nowMs]);
      return this.#report(after);
    }
    if (holder === null) {
      if (before && before.generation !== generation) violated("INV-6: a release changed the generation");
      return;
    }
    this.#world.tell(`lease -> ${after.holderPod} ${generation}`);
    if (!this.#reserved.has(`${generation} ${holder}`)) violated("INV-8: the Lease names what was not reserved");
    // What is no generation is no grant to a sidecar either.
    const named = before?.holder === holder && before.generation !== null;
    if (named) violated(`INV-7: ${after.holderPod}, which the Lease had named, was granted again`);
    if ((generation ?? 0) < this.#leaseGeneration) violated("the Lease went back");
    // A grant that was on its way when its reservation was lost says nothing about what is given out since.
    if (this.#holderOf.get(generation ?? 0) === holder) this.#leaseGeneration = generation ?? 0;
    if (before?.holder) this.#claimed(before);
  }

  /** INV-6: a pod touches the Lease only if that is its own, and gives it to nobody. */
  #byItsHolder(before: LeaseRecord | null, after: LeaseRecord, author: string): void {
    const uid = this.#world.uidOf(author);
    if (uid === undefined) return;
    if (!before) violated(`INV-6: ${author} created a Lease`);
    if (before.holder !== uid) violated(`INV-6: ${author} wrote the Lease of ${before.holderPod}`);
    if (after.generation !== before.generation) violated(`INV-6: ${author} changed the generation`);
    if (after.holder !== null && after.holder !== uid) violated(`INV-6: ${author} gave the Lease away`);
  }

  /** INV-5: whoever lost the Lease for standing unchanged must not believe in his permit any more. */
  #claimed({ holder, holderPod, generation, report }: LeaseRecord): void {
    const known = this.#permits.get(holder ?? "");
    const pod = this.#world.apiServer.list("pods").find(({ metadata }) => metadata.uid === holder);
    const ended = !pod || pod.status.phase === "Succeeded" || pod.status.phase === "Failed";
    const refused = parseReport(report)?.failures.some(({ final }) => final);
    // Somebody has written another holder and not its pod: nobody could find it.
    const misnamed = pod?.metadata.name !== holderPod;
    if (!known || ended || misnamed || refused || this.#world.clocksLie) return;
    const { permit, process } = known;
    if (process.alive && permit.state(process.clock.monoMs()) === "valid") {
      violated(`INV-5: the Lease of generation ${generation} was claimed while its permit was valid`);
    }
  }

  /** INV-5, among controllers: none is elected while another may believe that it leads. */
  #elected(before: LeaseRecord | undefined, after: LeaseRecord, lease: string): void {
    if (after.holder === null || after.holder === before?.holder) return;
    this.#world.tell(`elected ${after.holderPod} ${after.generation}`);
    if (before && (after.generation ?? 0) <= (before.generation ?? 0)) violated("INV-8: an election went back");
    if (this.#world.controllers.clocksLie || !this.#world.isUndisturbed([API], UNDISTURBED_MS)) return;
    const other = this.#world.controllers.leaders(lease)[0];
    if (other) violated(`INV-5: ${after.holderPod} was elected while ${other} had a valid permit`);
  }

  #report({ report }: LeaseRecord): void {
    const failure = parseReport(report)?.failures.find(({ code }) => code === "LF004");
    if (failure && this.#world.isUndisturbed([failure.database], UNDISTURBED_MS)) {
      violated(`INV-13: a raise was blocked by clients: ${failure.message}`);
    }
  }

  #podDeleted(before: Stored, after: Stored, byPeople: boolean): void {
    if (before.metadata.deletionTimestamp || !after.metadata.deletionTimestamp) return;
    const job = this.#world.apiServer.get("fencedjobs", this.#world.job);
    const isAlive = after.status.phase !== "Succeeded" && after.status.phase !== "Failed";
    if (!byPeople && !this.#world.edited && isAlive) {
      this.#waits.deletedByController(after.metadata.uid, statusOf(job), this.#world.scheduler.nowMs);
    }
    // On its way when the etcd was restored: to a pod that is the owner again.
    if (!this.#world.isUndisturbed([API], UNDISTURBED_MS)) return;
    const { owner, failing } = statusOf(job);
    const stops = !job || failing || job.spec.suspend || job.metadata.deletionTimestamp;
    if (owner?.uid === after.metadata.uid && !stops && !this.#world.deletes.has(after.metadata.uid)) {
      violated(`the owner in force, ${owner?.pod}, was deleted`);
    }
  }
}

/** As the controller has written it: without a parser, which would take most of the time. */
const statusOf = (job: Stored | undefined): FencedJobStatus => (job?.status as FencedJobStatus | undefined) ?? EMPTY;
const EMPTY = readStatus(undefined);

const sum = (fences: ReadonlyMap<string, FenceChecks>, of: (one: FenceChecks) => number): number =>
  [...fences.values()].reduce((total, one) => total + of(one), 0);
