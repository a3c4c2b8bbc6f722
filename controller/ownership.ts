/**
 * Whether the granted ownership has ended, and whether the Lease may be claimed for another: pure.
 *
 * Does NOT protect data: waiting protects the progress of a live owner, the fence protects the data.
 */
import { isOurs, type LeaseRecord } from "../lease/record.ts";
import { parseReport, type RaiseFailure, type Report } from "../lease/report.ts";
import { overdueMs } from "../lease/timing.ts";
import type { Reason } from "./api/reasons.ts";
import { type FencedJobSpec, timingOf } from "./api/spec.ts";
import type { FencedJobStatus, Owner } from "./api/status.ts";
import type { PodView, Snapshot } from "./snapshot.ts";
import { isAlive } from "./snapshot.ts";

/** The fence refuses a greater jump, which would use up the numbers; nor is it believed here. */
const GENERATION_JUMP_MAX = 1_000_000;

export interface OwnershipEnd {
  readonly reason: Reason;
  /** What it counts as for the job (INV-9: only the owner in force is asked). */
  readonly outcome: "success" | "failure" | "superseded";
  readonly message: string;
}

export type OwnerState =
  | { readonly kind: "ended"; readonly end: OwnershipEnd }
  /** Reserved in status; the Lease does not name it yet. */
  | { readonly kind: "granting" }
  /** The Lease names it and is being renewed. */
  | { readonly kind: "held" }
  /** No renewal for so long that a successor should be prepared; `expired`: it may be claimed now. */
  | { readonly kind: "overdue"; readonly expired: boolean }
  /** Given back; its pod is about to end, and tells then whether the job is done. */
  | { readonly kind: "ending" };

/** It renews at the pace of the spec that its pod was made from: a change of that is no reason to prepare a successor each time. */
export function overdueMsOf({ overdueSeconds }: Owner, spec: FencedJobSpec): number {
  return overdueSeconds === undefined ? overdueMs(timingOf(spec)) : overdueSeconds * 1000;
}

export function ownerState(owner: Owner, spec: FencedJobSpec, snapshot: Snapshot): OwnerState {
  const { lease, leaseRemainingMs, leaseUnchangedMs } = snapshot;
  const pod = snapshot.pods.find(({ uid }) => uid === owner.uid);
  const report = ownReport(owner, snapshot);
  const refusal = finalRefusal(report);
  const podEnd = podEnded(owner, pod, lease);
  // INV-9: no success or failure of the work is told by a pod whose generation a database has refused.
  if (podEnd && (!refusal || podEnd.outcome === "superseded")) return { kind: "ended", end: podEnd };
  // The report of a sidecar that was restarted in place knows nothing of its earlier raise; our status does.
  if (refusal)
    return { kind: "ended", end: refusedEnd(refusal, owner, [...(report?.fences ?? []), ...snapshot.status.fences]) };
  const me = { holder: owner.uid, generation: owner.generation };
  if (isOurs(lease, me)) {
    if (leaseUnchangedMs < overdueMsOf(owner, spec)) return { kind: "held" };
    return { kind: "overdue", expired: leaseRemainingMs === 0 };
  }
  if (!lease)
    return owner.leaseUID ? ended("LeaseDeleted", "the Lease was deleted under its holder") : { kind: "granting" };
  if (lease.generation === owner.generation) {
    if (lease.holder === null) return released(pod, endingMs(snapshot));
    return ended("LeaseTaken", `the Lease names ${lease.holder}, to whom nothing was granted`);
  }
  if (isLostToAnother(owner, lease))
    return ended("LeaseTaken", `the Lease names generation ${lease.generation ?? "none"}`);
  return { kind: "granting" };
}

/** For a kubelet that is busy: a job that is done would be run again where its lease is shorter than the way of its success. */
const TELLS_MS_MIN = 10_000;

/** For how long the pod that has given the Lease back may still tell how it ended. */
export function endingMs({ leaseRemainingMs, leaseUnchangedMs }: Snapshot): number {
  return Math.max(leaseRemainingMs, TELLS_MS_MIN - leaseUnchangedMs);
}

function released(pod: PodView | undefined, leftMs: number): OwnerState {
  if (pod?.failed) return { kind: "ended", end: podFailed(pod, pod.leaving) };
  // What a long-running owner ends with is not waited for: it is not the job's end.
  if (leftMs > 0 && !pod?.longRunning) return { kind: "ending" };
  return ended(pod?.leaving ?? "Released", "the Lease was given back");
}

/**
 * Once it was seen to name this grant, a Lease that names another is loss for the owner, whoever wrote it. And if it names
 * another of this very pod, its sidecar has taken that for its grant: ours would be the second (INV-7).
 */
function isLostToAnother(owner: Owner, lease: LeaseRecord): boolean {
  return owner.leaseUID !== undefined || (lease.holder === owner.uid && lease.generation !== null);
}

function ended(reason: Reason, message: string): OwnerState {
  return { kind: "ended", end: { reason, outcome: "superseded", message } };
}

/**
 * INV-9: an application that runs while its pod is a candidate may end before that is owner, and the grant come between
 * its end and what the kubelet tells of it. Its success counts only if it was served under this grant.
 */
function hasServed(owner: Owner, lease: LeaseRecord | null): boolean {
  const report = reportOf(lease);
  return report?.generation === owner.generation && report.served;
}

export function endedUnserved(owner: Owner, pod: PodView, lease: LeaseRecord | null): boolean {
  return pod.phase === "Succeeded" && pod.startedEarly && !hasServed(owner, lease);
}

/** What goes wrong first with an application that is started early. */
export const MUST_WAIT =
  "An application of spec.standbys.application Started must wait for its first connection (connect_timeout=0)";

/** Its application has begun to do the job. */
export function isAtWork(owner: Owner, pod: PodView, lease: LeaseRecord | null): boolean {
  return pod.startedEarly ? hasServed(owner, lease) : pod.applicationStarted;
}

/** All fences that the owner's pod knows of; a database that came into the spec later joins with the next owner. */
export function hasRaised({ owner, fence }: FencedJobStatus, { pods, lease }: Snapshot): boolean {
  if (!owner || fence === owner.generation) return owner !== undefined;
  const pod = pods.find(({ uid }) => uid === owner.uid);
  return pod !== undefined && isAtWork(owner, pod, lease);
}

/** A pod that was taken away has not failed, however it ended: drains and preemption must not use up the backoff limit. */
function podEnded(owner: Owner, pod: PodView | undefined, lease: LeaseRecord | null): OwnershipEnd | null {
  const reason = pod?.leaving ?? (owner.leaving as Reason | undefined) ?? null;
  if (!pod) {
    const message = `pod ${owner.pod} no longer exists`;
    return { reason: reason ?? "PodGone", outcome: "superseded", message };
  }
  const { name, phase } = pod;
  if (endedUnserved(owner, pod, lease)) {
    const message = `${name} ended well without a database session of generation ${owner.generation}: it ended before it was owner, and has not done the job`;
    if (reason) return { reason, outcome: "superseded", message };
    return { reason: "EndedUnserved", outcome: "failure", message: `${message}. ${MUST_WAIT}` };
  }
  if (phase === "Succeeded") {
    // Asked to end, a long-running owner ends well; its work goes on elsewhere.
    const outcome = pod.longRunning ? "superseded" : "success";
    return { reason: pod.longRunning && reason ? reason : "PodSucceeded", outcome, message: `${name} ended well` };
  }
  return phase === "Failed" ? podFailed(pod, reason) : null;
}

function podFailed({ name, failure }: PodView, leaving: Reason | null): OwnershipEnd {
  const message = `${name}: ${failure || "failed"}`;
  if (leaving) return { reason: leaving, outcome: "superseded", message };
  return { reason: "PodFailed", outcome: "failure", message };
}

/** The report of the grant in force, also when it was given back; never of an older one (INV-9). */
export function ownReport(owner: Owner, { lease }: Snapshot): Report | null {
  const isOwn = lease?.generation === owner.generation && (lease.holder === owner.uid || lease.holder === null);
  return isOwn ? reportOf(lease) : null;
}

/** What the generation in the Lease says of itself, whoever it was granted to, and also after it was given back. */
export function reportOf(lease: LeaseRecord | null): Report | null {
  const report = parseReport(lease?.report ?? null);
  return report && report.generation === lease?.generation ? report : null;
}

function finalRefusal(report: Report | null): RaiseFailure | null {
  return report?.failures.find(({ final }) => final) ?? null;
}

function refusedEnd(
  refusal: RaiseFailure,
  owner: Owner,
  fences: readonly { database: string; generation: number }[],
): OwnershipEnd {
  const { database, floor, message } = refusal;
  const raised = fences.some((fence) => fence.database === database && fence.generation === owner.generation);
  // Our count was behind the database (a FencedJob made anew under its name, a restore), or edited: that says nothing about the
  // work. Once raised and then refused it counts, so that two issuers do not fight without an end.
  const behind = !raised && floor !== null && (isFloor(floor, owner.generation) || isAbsurd(owner, [floor], null));
  return { reason: "RaiseRefused", outcome: behind ? "superseded" : "failure", message: `${database}: ${message}` };
}

/**
 * The highest generation that counts as issued, as the Lease's report says it: the databases are the floor (INV-8), unless the jump is
 * absurd. A count that they themselves refuse as absurd was edited into the status, and goes back to what they know.
 */
export function issuedGeneration({ generation, owner, history }: FencedJobStatus, report: Report | null): number {
  const floors = (report?.failures ?? []).flatMap(({ floor }) => floor ?? []);
  const floor = Math.max(0, ...floors.filter((one) => one - generation <= GENERATION_JUMP_MAX));
  const isOwn = owner !== undefined && report?.generation === owner.generation;
  if (!isOwn || !isAbsurd(owner, floors, report)) return Math.max(generation, floor);
  return Math.max(floor, ...history.map((past) => past.generation).filter((one) => one - floor <= GENERATION_JUMP_MAX));
}

/** The next generation is above it: one that is not believed would refuse every next pod, too. */
function isFloor(floor: number, generation: number): boolean {
  return floor >= generation && floor - generation <= GENERATION_JUMP_MAX;
}

/** Refused everywhere for being too far above the fence: it was accepted by nobody, ever. */
function isAbsurd({ generation }: Owner, floors: readonly number[], report: Report | null): boolean {
  if (!floors.length || report?.fences.some((fence) => fence.generation === generation)) return false;
  return generation - Math.max(...floors) > GENERATION_JUMP_MAX;
}

/**
 * Whether the observed Lease may be claimed now: it names nobody, its holder cannot be running any more, its holder
 * cannot raise, or it has stood unchanged for its whole duration.
 */
export function mayClaim(snapshot: Snapshot): boolean {
  const { lease, pods, leaseRemainingMs } = snapshot;
  if (lease?.foreign) return false;
  if (!lease || lease.holder === null || leaseRemainingMs === 0) return true;
  const holder = pods.find(({ uid }) => uid === lease.holder);
  if (holder ? !isAlive(holder) : !snapshot.holderElsewhere) return true;
  return finalRefusal(reportOf(lease)) !== null;
}
