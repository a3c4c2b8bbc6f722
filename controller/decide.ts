/**
 * One reconcile's decision: snapshot → plan, without I/O, clock or randomness.
 *
 * Invariants: a generation is reserved in the plan's status before its Lease action may run (INV-8); completion,
 * failure and progress count from the owner in force only (INV-9); a pod is granted at most once (INV-7).
 * Not responsible for: writing. `reconciler.ts` writes the status first, conditional on its version, and acts after it.
 */
import { type LeaseTiming, overdueMs } from "../lease/timing.ts";
import { wallMsOf } from "../platform/clock.ts";
import type { Reason } from "./api/reasons.ts";
import type { FencedJobSpec } from "./api/spec.ts";
import { HISTORY_MAX, type Owner } from "./api/status.ts";
import { candidatesWanted, collectPods, dropLostCandidates, keepCandidates, readyCandidate } from "./candidates.ts";
import { count, Draft, type Plan } from "./draft.ts";
import { fenceChange } from "./fences.ts";
import { mayClaim, type OwnerState, type OwnershipEnd, ownerState, ownReport, reportedFloor } from "./ownership.ts";
import { isAlive, type PodView, type Snapshot } from "./snapshot.ts";

/** A Lease without our label is not watched. */
const FOREIGN_LEASE_POLL_MS = 30_000;
/** After so long without a failure under one owner, earlier ones are not held against the job: as the kubelet does. */
const PROGRESS_MS = 600_000;

export function decide(snapshot: Snapshot): Plan {
  const draft = new Draft(snapshot);
  // A pod that this status does not know of: the status is an old one (then writing it conflicts, and nothing is done
  // to the pod), or was restored (then its name is not given out again).
  draft.status.attempt = Math.max(draft.status.attempt, ...snapshot.pods.map(({ attempt }) => attempt));
  countRejectedWrites(draft);
  admit(draft);
  const spec = snapshot.spec.ok ? snapshot.spec.spec : null;
  if (spec) {
    const timing = timingOf(spec);
    const overdue = overdueMs(timing, snapshot.lease?.durationMs);
    const state = draft.status.owner ? ownerState(draft.status.owner, snapshot, overdue) : null;
    followOwner(draft, spec, state);
  }
  collectPods(draft);
  return draft.plan();
}

export function timingOf(spec: FencedJobSpec): LeaseTiming {
  const { durationSeconds, renewIntervalSeconds, requestTimeoutSeconds, marginSeconds } = spec.lease;
  return {
    durationMs: durationSeconds * 1000,
    renewIntervalMs: renewIntervalSeconds * 1000,
    requestTimeoutMs: requestTimeoutSeconds * 1000,
    marginMs: marginSeconds * 1000,
  };
}

function countRejectedWrites(draft: Draft): void {
  for (const entry of draft.status.history) {
    const words = draft.snapshot.pods.find(({ uid }) => uid === entry.uid)?.lastWords;
    if (!words || words.generation !== entry.generation || words.rejectedWrites <= entry.rejectedWrites) continue;
    entry.rejectedWrites = words.rejectedWrites;
    draft.event(
      "Warning",
      "WriteRefused",
      `${count(words.rejectedWrites, "write")} of generation ${entry.generation} (${entry.pod}) refused after its end`,
    );
  }
}

function admit(draft: Draft): void {
  const { spec, template } = draft.snapshot;
  const problem: { reason: Reason; message: string } | null = !spec.ok
    ? { reason: "InvalidSpec", message: spec.problems.join("; ") }
    : template.ok
      ? null
      : template;
  if (!problem) {
    draft.condition("Admitted", "True", "Accepted", "the spec is valid and the API server accepts the pod");
    return;
  }
  draft.condition(
    "Admitted",
    "False",
    problem.reason,
    `${problem.message}. No new pod is created until this is fixed.`,
  );
  draft.status.summary = `Not admitted: ${problem.reason}`;
  if (draft.reasonBefore("Admitted") !== problem.reason) draft.event("Warning", problem.reason, problem.message);
}

function followOwner(draft: Draft, spec: FencedJobSpec, state: OwnerState | null): void {
  const { status, snapshot } = draft;
  const report = status.owner ? ownReport(status.owner, snapshot) : null;
  status.generation = Math.max(status.generation, reportedFloor(report, status.generation));
  forgetFailures(draft);
  dropLostCandidates(draft);
  const successor = readyCandidate(draft);
  const open = !status.completionTime && !spec.suspend && !snapshot.job.deleting && isAdmitted(snapshot);
  if (status.owner && state?.kind === "ended") endOwnership(draft, spec, status.owner, whileSuspended(spec, state.end));
  else if (status.owner && state?.kind === "overdue" && state.expired && successor && open) {
    endOwnership(draft, spec, status.owner, expiry(status.owner, snapshot));
  } else if (status.owner && open && isOutdated(status.owner, snapshot)) {
    const message = `${status.owner.pod} (generation ${status.owner.generation}) had not started its application when the spec changed; a pod of the new spec replaces it`;
    endOwnership(draft, spec, status.owner, { reason: "SpecChanged", outcome: "superseded", message });
  }
  deadlines(draft, spec);
  limitRetries(draft, spec);
  if (!status.completionTime && !status.owner && status.failures > spec.backoffLimit) {
    finish(draft, "Failed", "BackoffLimitExceeded", `${count(status.failures, "consecutive failure")} of candidates`);
  }
  if (status.completionTime) return finished(draft, spec);
  if (spec.suspend) return suspend(draft);
  draft.condition("Suspended", "False", "NotSuspended", "spec.suspend is false");
  draft.condition("Complete", "False", "Running", "the job has not ended");
  draft.condition("Failed", "False", "Running", `${status.failures} of ${spec.backoffLimit} consecutive failures`);
  if (status.owner) watchOwner(draft, spec, status.owner, state);
  const wanted = candidatesWanted(draft, spec, state);
  keepCandidates(draft, isAdmitted(snapshot) && !snapshot.job.deleting ? wanted : 0);
  if (!status.owner) grantNext(draft);
}

function isAdmitted(snapshot: Snapshot): boolean {
  return snapshot.spec.ok && snapshot.template.ok;
}

/** Nothing was done yet, and the change may be what it waits for: an address, a Secret, an image. */
function isOutdated(owner: Owner, { pods }: Snapshot): boolean {
  return pods.some(({ uid, outdated, applicationStarted }) => uid === owner.uid && outdated && !applicationStarted);
}

/** One that never renewed has failed: a sidecar that cannot reach the API server must not use up pods for ever. */
function expiry(owner: Owner, { lease, leaseUnchangedMs }: Snapshot): OwnershipEnd {
  const who = `${owner.pod} (generation ${owner.generation})`;
  // Each renewal writes a report, each grant takes the old one away.
  if (lease?.report === null) {
    const message = `${who} never renewed its Lease: its sidecar does not run, or does not reach the API server; its log says why`;
    return { reason: "LeaseExpired", outcome: "failure", message };
  }
  const seconds = Math.round(leaseUnchangedMs / 1000);
  const message = `${who} did not renew for ${seconds} s; its writes will be refused`;
  return { reason: "LeaseExpired", outcome: "superseded", message };
}

/** A pod that we stopped did not fail. */
function whileSuspended(spec: FencedJobSpec, end: OwnershipEnd): OwnershipEnd {
  if (!spec.suspend || end.outcome === "success") return end;
  return { reason: "Suspended", outcome: "superseded", message: "the owner was stopped because spec.suspend is true" };
}

function endOwnership(draft: Draft, spec: FencedJobSpec, owner: Owner, end: OwnershipEnd): void {
  const { status } = draft;
  status.history.unshift({
    generation: owner.generation,
    pod: owner.pod,
    uid: owner.uid,
    from: owner.since,
    until: draft.wall,
    reason: end.reason,
    rejectedWrites: 0,
  });
  status.history.splice(HISTORY_MAX);
  delete status.owner;
  const expected = end.outcome === "success" || end.reason === "Suspended";
  draft.event(expected ? "Normal" : "Warning", end.reason, end.message);
  countRejectedWrites(draft);
  if (end.outcome === "success") {
    status.failures = 0;
    finish(draft, "Complete", "Completed", `generation ${owner.generation} (${owner.pod}) completed the job`);
  } else if (end.outcome === "failure") {
    status.failures += 1;
    status.lastFailureTime = draft.wall;
    if (status.failures > spec.backoffLimit) {
      finish(
        draft,
        "Failed",
        "BackoffLimitExceeded",
        `${count(status.failures, "consecutive failure")}, the last: ${end.message}`,
      );
    }
  }
}

function finish(draft: Draft, type: "Complete" | "Failed", reason: Reason, message: string): void {
  draft.status.completionTime = draft.wall;
  draft.condition(type, "True", reason, message);
  draft.condition(type === "Complete" ? "Failed" : "Complete", "False", "Finished", message);
  draft.event(type === "Complete" ? "Normal" : "Warning", reason, message);
  draft.status.summary = type === "Complete" ? "Complete" : `Failed: ${reason}`;
}

function deadlines(draft: Draft, spec: FencedJobSpec): void {
  const { status, snapshot } = draft;
  if (status.completionTime || spec.suspend || spec.activeDeadlineSeconds === undefined || !status.startTime) return;
  const leftMs = wallMsOf(status.startTime) + spec.activeDeadlineSeconds * 1000 - snapshot.wallMs;
  if (leftMs > 0) return draft.lookAgainIn(leftMs);
  const message = `the job ran longer than ${spec.activeDeadlineSeconds} s`;
  if (status.owner)
    endOwnership(draft, spec, status.owner, { reason: "DeadlineExceeded", outcome: "superseded", message });
  finish(draft, "Failed", "DeadlineExceeded", message);
}

/** INV-9: only an owner that has raised every fence has made progress. */
function forgetFailures({ status, snapshot }: Draft): void {
  const { owner, fence, failures, lastFailureTime } = status;
  if (!owner || fence !== owner.generation || failures === 0) return;
  const sinceMs = Math.max(wallMsOf(owner.since), lastFailureTime ? wallMsOf(lastFailureTime) : 0);
  if (snapshot.wallMs - sinceMs < PROGRESS_MS) return;
  status.failures = 0;
  delete status.lastFailureTime;
}

/** Containers that the kubelet starts again in place fail as pods do: at the limit no further try is let in (C09). */
function limitRetries(draft: Draft, spec: FencedJobSpec): void {
  const { status, snapshot } = draft;
  const { owner } = status;
  const retries = snapshot.pods.find(({ uid }) => uid === owner?.uid)?.retries ?? 0;
  if (status.completionTime || !owner || retries === 0 || status.failures + retries <= spec.backoffLimit) return;
  status.failures += retries;
  const message = `${owner.pod} was started again ${count(retries, "time")} in place; ${count(status.failures, "consecutive failure")}`;
  endOwnership(draft, spec, owner, { reason: "BackoffLimitExceeded", outcome: "superseded", message });
  finish(draft, "Failed", "BackoffLimitExceeded", message);
}

function finished(draft: Draft, spec: FencedJobSpec): void {
  const { status, snapshot } = draft;
  draft.condition("Owned", "False", "Finished", "the job has ended");
  status.candidates = [];
  const last = status.history[0];
  if (last && snapshot.lease?.holder === last.uid && snapshot.lease.generation === last.generation) {
    draft.actions.push({ kind: "clearLease", holder: last.uid, generation: last.generation });
  }
  if (spec.ttlSecondsAfterFinished === undefined || !status.completionTime) return;
  const leftMs = wallMsOf(status.completionTime) + spec.ttlSecondsAfterFinished * 1000 - snapshot.wallMs;
  if (leftMs > 0) draft.lookAgainIn(leftMs);
  else draft.actions.push({ kind: "deleteJob" });
}

function suspend(draft: Draft): void {
  const { status, snapshot } = draft;
  status.candidates = [];
  // As with a Job: the active deadline counts from the first owner after it is resumed.
  delete status.startTime;
  const alive = snapshot.pods.filter(isAlive);
  for (const pod of alive) if (!pod.deleting) draft.actions.push({ kind: "deletePod", pod: pod.name, uid: pod.uid });
  if (alive.length) draft.condition("Suspended", "False", "Suspending", `${count(alive.length, "pod")} being stopped`);
  else draft.condition("Suspended", "True", "Stopped", "no pod of the job is left");
  draft.condition("Owned", "False", "Suspended", "spec.suspend is true");
  status.summary = alive.length ? "Suspending" : "Suspended";
}

function watchOwner(draft: Draft, spec: FencedJobSpec, owner: Owner, state: OwnerState | null): void {
  const { snapshot, status } = draft;
  const overdue = overdueMs(timingOf(spec), snapshot.lease?.durationMs);
  const pod = snapshot.pods.find(({ uid }) => uid === owner.uid);
  owner.node = pod?.node ?? owner.node;
  if (pod?.leaving) owner.leaving = pod.leaving;
  if (state?.kind === "granting") {
    if (mayClaim(snapshot)) draft.actions.push({ kind: "grant" });
    else waitForLease(draft, owner.pod);
    return;
  }
  if (snapshot.lease) owner.leaseUID = snapshot.lease.uid;
  if (state?.kind === "ending") {
    draft.condition("Owned", "False", "Ending", `${owner.pod} has given the Lease back and is ending`);
    draft.lookAgainIn(snapshot.leaseRemainingMs);
    status.summary = "Ending";
    return;
  }
  const raised = tellFences(draft, spec, owner, pod);
  if (state?.kind === "overdue") {
    const message = `${owner.pod} (generation ${owner.generation}) has not renewed; a candidate takes over when the lease runs out`;
    draft.condition("Owned", "Unknown", "RenewalOverdue", message);
    status.summary = "Owner does not renew";
    // At least so often, since time without sight of the Lease does not count. Once it has run out the next change is a
    // candidate's, or a renewal after all, which wakes nobody.
    draft.lookAgainIn(state.expired ? overdue : Math.min(overdue, snapshot.leaseRemainingMs));
    return;
  }
  const message = `${owner.pod} owns generation ${owner.generation}${colon(pod?.trouble?.text)}`;
  draft.condition("Owned", "True", "Granted", message);
  draft.lookAgainIn(overdue - snapshot.leaseUnchangedMs);
  const why = raised === "Raised" ? pod?.trouble?.reason : raised;
  status.summary = why ? `Owned, ${why}` : "Owned";
}

/** Status, condition and events of the fences; returns the condition's reason. */
function tellFences(draft: Draft, spec: FencedJobSpec, owner: Owner, pod: PodView | undefined): Reason {
  const { snapshot, status } = draft;
  const started = pod?.applicationStarted ?? false;
  const change = fenceChange(owner, spec, ownReport(owner, snapshot), snapshot.status, started);
  status.fences = change.fences;
  if (change.fence === null) delete status.fence;
  else status.fence = change.fence;
  draft.condition("FenceRaised", change.condition.status, change.condition.reason, change.condition.message);
  for (const event of change.events) draft.event(event.type, event.reason, event.message);
  return change.condition.reason;
}

function grantNext(draft: Draft): void {
  const { status, snapshot } = draft;
  const next = readyCandidate(draft);
  if (!next) {
    const first = snapshot.pods.find(({ name }) => name === status.candidates[0]?.pod);
    if (!status.candidates.length) return;
    const waitsFor = first ? first.waitingFor : `its pod to be created${colon(snapshot.creationProblem)}`;
    draft.condition("Owned", "False", "WaitingForPod", `${status.candidates[0]?.pod} waits for ${waitsFor}`);
    status.summary = `Waiting: ${waitsFor.length > 60 ? `${waitsFor.slice(0, 60)}…` : waitsFor}`;
    return;
  }
  if (!mayClaim(snapshot)) return waitForLease(draft, next.name);
  // INV-8: reserved here, in the status that is written before the Lease.
  status.generation += 1;
  status.owner = { pod: next.name, uid: next.uid, generation: status.generation, since: draft.wall };
  if (next.node) status.owner.node = next.node;
  status.startTime ??= draft.wall;
  status.candidates = status.candidates.filter(({ pod }) => pod !== next.name);
  draft.condition("Owned", "True", "Granted", `${next.name} owns generation ${status.generation}`);
  draft.condition("FenceRaised", "False", "Raising", `${next.name} is raising the fence to ${status.generation}`);
  draft.event("Normal", "Granted", `generation ${status.generation} granted to ${next.name}`);
  status.summary = "Owned, Raising";
  draft.actions.push({ kind: "grant" });
}

const colon = (text: string | null | undefined): string => (text ? `: ${text}` : "");

function waitForLease(draft: Draft, pod: string): void {
  const { job, lease, leaseRemainingMs } = draft.snapshot;
  if (lease?.foreign) {
    const message = `Lease ${job.namespace}/${job.name} is not a FencedJob's (holder: ${lease.holder ?? "none"}) and is left alone. Give the FencedJob another name, or delete that Lease if nothing uses it`;
    draft.condition("Owned", "False", "LeaseForeign", message);
    draft.status.summary = "Waiting: a foreign Lease";
    return draft.lookAgainIn(FOREIGN_LEASE_POLL_MS);
  }
  const message = `${pod} waits for the Lease of ${lease?.holderPod ?? lease?.holder} to run out; it need not once that pod is deleted`;
  draft.condition("Owned", "False", "WaitingForLease", message);
  draft.status.summary = "Waiting: an older Lease";
  draft.lookAgainIn(leaseRemainingMs);
}
