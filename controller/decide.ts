/**
 * One reconcile's decision: snapshot → plan, without I/O, clock or randomness.
 *
 * Invariants: a generation is reserved in the plan's status before its Lease action may run (INV-8); completion,
 * failure and progress count from the owner in force only (INV-9); a pod is granted at most once (INV-7).
 * Not responsible for: writing. `reconciler.ts` writes the status first, conditional on its version, and acts after it.
 */
import type { Reason } from "./api/reasons.ts";
import type { FencedJobSpec } from "./api/spec.ts";
import type { Owner } from "./api/status.ts";
import { candidatesWanted, collectPods, dropLostCandidates, keepCandidates, readyCandidate } from "./candidates.ts";
import { closeDown, hasNothingToClose, letGoUnclosed, noteClosed, whileClosing } from "./closing.ts";
import { count, Draft, type Plan } from "./draft.ts";
import {
  countRejectedWrites,
  countRetries,
  deadlines,
  endOwnership,
  expiry,
  fail,
  failAtLast,
  finished,
  forgetFailures,
  isDecided,
} from "./ending.ts";
import { fencesAfter, leftUnseen } from "./fences.ts";
import { grantNext, watchOwner } from "./holding.ts";
import { isAtWork, issuedGeneration, type OwnerState, ownerState, ownReport, reportOf } from "./ownership.ts";
import { isAdmitted, isClosing, type Snapshot } from "./snapshot.ts";

export function decide(snapshot: Snapshot): Plan {
  const draft = new Draft(snapshot);
  if (!snapshot.job.finalized && !snapshot.job.deleting) {
    // Before anything that would have to be closed: else it could vanish with its fences open.
    draft.actions.push({ kind: "addFinalizer" });
    return draft.plan();
  }
  // A pod that this status does not know of: the status is an old one (then writing it conflicts, and nothing is done
  // to the pod), or was restored (then its name is not given out again).
  draft.status.attempt = Math.max(draft.status.attempt, ...snapshot.pods.map(({ attempt }) => attempt));
  countRejectedWrites(draft);
  admit(draft);
  const spec = snapshot.spec.ok ? snapshot.spec.spec : null;
  if (spec) {
    const state = draft.status.owner ? ownerState(draft.status.owner, spec, snapshot) : null;
    followOwner(draft, spec, state);
  } else if (snapshot.job.deleting) letGoUnclosed(draft);
  collectPods(draft);
  return draft.plan();
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
  if (!draft.status.completionTime) draft.status.summary = `Not admitted: ${problem.reason}`;
  if (draft.reasonBefore("Admitted") !== problem.reason) draft.event("Warning", problem.reason, problem.message);
}

function followOwner(draft: Draft, spec: FencedJobSpec, state: OwnerState | null): void {
  const { status, snapshot } = draft;
  status.generation = issuedGeneration(status, reportOf(snapshot.lease));
  if (status.owner) noteFences(draft, spec, status.owner);
  noteClosed(draft);
  forgetFailures(draft);
  const closing = isClosing(snapshot);
  if (!closing) delete status.closers;
  dropLostCandidates(draft, closing);
  endOwner(draft, spec, state, closing);
  if (!closing) {
    deadlines(draft, spec);
    countRetries(draft, spec);
  }
  if (!isDecided(status) && !closing && !status.owner && status.failures > spec.backoffLimit) {
    fail(draft, "BackoffLimitExceeded", `${count(status.failures, "consecutive failure")} of candidates`);
  }
  const ends = closing && (snapshot.job.deleting || !status.completionTime);
  if (ends && closeDown(draft, spec, state) && status.failing) {
    // A closer that is not waited for any longer would go on behind the end of the job, for ever.
    if (status.owner) endOwnership(draft, spec, status.owner, whileClosing(draft, null));
    failAtLast(draft, status.failing);
  }
  if (status.completionTime && !snapshot.job.deleting) return finished(draft, spec);
  if (closing || status.failing) return;
  draft.condition("Suspended", "False", "NotSuspended", "spec.suspend is false");
  draft.condition("Complete", "False", "Running", "the job has not ended");
  draft.condition("Failed", "False", "Running", `${status.failures} of ${spec.backoffLimit} consecutive failures`);
  if (status.owner) watchOwner(draft, spec, status.owner, state);
  keepCandidates(draft, candidatesWanted(draft, spec, state));
  if (!status.owner) grantNext(draft, spec);
}

function endOwner(draft: Draft, spec: FencedJobSpec, state: OwnerState | null, closing: boolean): void {
  const { snapshot } = draft;
  const { owner, completionTime } = draft.status;
  if (!owner || !state) return;
  const open = !completionTime && !closing;
  if (state.kind === "ended")
    return endOwnership(draft, spec, owner, closing ? whileClosing(draft, state.end) : state.end);
  // Without a successor there is nothing to gain from it: the owner may still come back.
  if (state.kind === "overdue" && state.expired && (closing || (open && readyCandidate(draft)))) {
    return endOwnership(draft, spec, owner, expiry(owner, snapshot));
  }
  if (closing && (owner.closes ? hasNothingToClose(draft, owner) : state.kind === "granting")) {
    return endOwnership(draft, spec, owner, whileClosing(draft, null));
  }
  if (open && isAdmitted(snapshot) && isOutdated(owner, snapshot)) {
    const message = `${owner.pod} (generation ${owner.generation}) had not started its application when the spec changed; a pod of the new spec replaces it`;
    endOwnership(draft, spec, owner, { reason: "SpecChanged", outcome: "superseded", message });
  }
}

/** Also those that an owner tells of first when it has ended: what it has left open is to be closed (INV-3). */
function noteFences({ status, snapshot }: Draft, spec: FencedJobSpec, owner: Owner): void {
  const report = ownReport(owner, snapshot);
  const told = snapshot.pods.find(({ uid }) => uid === owner.uid)?.databases ?? [];
  const known = [...status.fences, ...leftUnseen(spec, report, status.fences, told)];
  const { inSpec, removed } = fencesAfter(spec, report, known);
  status.fences = [...inSpec, ...removed];
}

/** Nothing was done yet, and the change may be what it waits for: an address, a Secret, an image; or nothing is to be closed. */
function isOutdated(owner: Owner, { pods, lease }: Snapshot): boolean {
  if (owner.closes) return true;
  const pod = pods.find(({ uid }) => uid === owner.uid);
  return pod?.outdated === true && !isAtWork(owner, pod, lease);
}
