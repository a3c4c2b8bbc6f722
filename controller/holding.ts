/** The owner in force, as the Lease, its report and its pod show it, and the grant of the next one. Pure. */
import { overdueMs } from "../lease/timing.ts";
import { truncate } from "./api/conditions.ts";
import type { Reason } from "./api/reasons.ts";
import { type FencedJobSpec, timingOf } from "./api/spec.ts";
import { GENERATION_MAX, type Owner } from "./api/status.ts";
import { readyCandidate } from "./candidates.ts";
import type { Draft } from "./draft.ts";
import { fenceChange, issuerCondition } from "./fences.ts";
import { endingMs, isAtWork, mayClaim, type OwnerState, overdueMsOf, ownReport } from "./ownership.ts";
import type { PodView } from "./snapshot.ts";

/** A Lease without our label is not watched. */
const FOREIGN_LEASE_POLL_MS = 30_000;

/** Of what a pod waits for, in a column of `kubectl get`. */
const SUMMARY_CHARACTERS_MAX = 60;

export function watchOwner(draft: Draft, spec: FencedJobSpec, owner: Owner, state: OwnerState | null): void {
  const { snapshot, status } = draft;
  const overdue = overdueMsOf(owner, spec);
  const pod = snapshot.pods.find(({ uid }) => uid === owner.uid);
  owner.node = pod?.node ?? owner.node;
  if (pod?.leaving) owner.leaving = pod.leaving;
  if (state?.kind === "granting") {
    if (!mayClaim(snapshot)) return waitForLease(draft, owner.pod);
    // A database has told of a higher one since: what was reserved would be refused.
    if (status.generation > owner.generation) return reserve(draft, owner);
    if (snapshot.grantProblem) tellUngranted(draft, owner, snapshot.grantProblem);
    draft.actions.push({ kind: "grant" });
    return;
  }
  if (snapshot.lease) owner.leaseUID = snapshot.lease.uid;
  if (state?.kind === "ending") {
    draft.condition("Owned", "False", "Ending", `${owner.pod} has given the Lease back and is ending`);
    draft.lookAgainIn(endingMs(snapshot));
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
  draft.condition("Owned", "True", "Granted", `${message}${missingStandby(draft)}`);
  draft.lookAgainIn(overdue - snapshot.leaseUnchangedMs);
  const why = raised === "Raised" ? pod?.trouble?.reason : raised;
  status.summary = why ? `Owned, ${why}` : "Owned";
}

/** A standby that is not to be had, as when a quota is full, is no reason not to work, and not passed over either. */
function missingStandby({ snapshot: { pods, creationProblem }, status: { candidates } }: Draft): string {
  const missing = candidates.find(({ pod }) => !pods.some(({ name }) => name === pod));
  return missing && creationProblem ? `; ${missing.pod} waits for its pod to be created: ${creationProblem}` : "";
}

/** Status, condition and events of the fences; returns the condition's reason. */
function tellFences(draft: Draft, spec: FencedJobSpec, owner: Owner, pod: PodView | undefined): Reason {
  const { snapshot, status } = draft;
  const atWork = pod !== undefined && isAtWork(owner, pod, snapshot.lease);
  const report = ownReport(owner, snapshot);
  const change = fenceChange(owner, spec, report, snapshot.status, atWork);
  const foreign = issuerCondition(report, spec);
  if (foreign) draft.condition("ForeignIssuer", foreign.status, foreign.reason, foreign.message);
  if (change.fence === null) delete status.fence;
  else status.fence = change.fence;
  draft.condition("FenceRaised", change.condition.status, change.condition.reason, change.condition.message);
  for (const event of change.events) draft.event(event.type, event.reason, event.message);
  return change.condition.reason;
}

export function grantNext(draft: Draft, spec: FencedJobSpec): void {
  const { status, snapshot } = draft;
  const next = readyCandidate(draft);
  if (!next) {
    const first = snapshot.pods.find(({ name }) => name === status.candidates[0]?.pod);
    if (!status.candidates.length) return;
    const waitsFor = first ? first.waitingFor : `its pod to be created${colon(snapshot.creationProblem)}`;
    draft.condition("Owned", "False", "WaitingForPod", `${status.candidates[0]?.pod} waits for ${waitsFor}`);
    status.summary = `Waiting: ${truncate(waitsFor, SUMMARY_CHARACTERS_MAX)}`;
    return;
  }
  if (!mayClaim(snapshot)) return waitForLease(draft, next.name);
  status.owner = { pod: next.name, uid: next.uid, generation: status.generation, since: draft.wall };
  status.owner.overdueSeconds = overdueMs(timingOf(spec)) / 1000;
  if (next.node) status.owner.node = next.node;
  // INV-9: what an application that was started early gave up while it waited is no failure of an owner.
  if (next.retries) status.owner.retries = next.retries;
  if (status.candidates.some(({ pod, closes }) => closes && pod === next.name)) status.owner.closes = true;
  else status.startTime ??= draft.wall;
  status.candidates = status.candidates.filter(({ pod }) => pod !== next.name);
  reserve(draft, status.owner);
}

/** INV-8: the next generation, reserved in the status that is written before the Lease. */
function reserve(draft: Draft, owner: Owner): void {
  const { status } = draft;
  status.generation = Math.min(status.generation + 1, GENERATION_MAX);
  owner.generation = status.generation;
  draft.condition("Owned", "True", "Granted", `${owner.pod} owns generation ${owner.generation}`);
  draft.condition("FenceRaised", "False", "Raising", `${owner.pod} is raising the fence to ${owner.generation}`);
  draft.event("Normal", "Granted", `generation ${owner.generation} granted to ${owner.pod}`);
  status.summary = "Owned, Raising";
  draft.actions.push({ kind: "grant" });
}

/** INV-11: a quota, a policy or missing rights may keep it from being written for ever. */
function tellUngranted(draft: Draft, { pod }: Owner, problem: string): void {
  draft.condition("Owned", "False", "WaitingForLease", `${pod} waits for its Lease to be written: ${problem}`);
  draft.status.summary = "Waiting: its Lease";
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
