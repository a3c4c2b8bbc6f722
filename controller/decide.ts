/**
 * One reconcile's decision: snapshot → plan, without I/O, clock or randomness.
 *
 * Invariants: a generation is reserved in the plan's status before its Lease action may run (INV-8); completion,
 * failure and progress count from the owner in force only (INV-9); a pod is granted at most once (INV-7).
 * Not responsible for: writing. `reconciler.ts` writes the status first, conditional on its version, and acts after it.
 */
import { overdueMs } from "../lease/timing.ts";
import type { Reason } from "./api/reasons.ts";
import { type FencedJobSpec, timingOf } from "./api/spec.ts";
import type { Owner } from "./api/status.ts";
import { candidatesWanted, collectPods, dropLostCandidates, keepCandidates, readyCandidate } from "./candidates.ts";
import { closeDown, letGo, noteClosed, whileClosing } from "./closing.ts";
import { count, Draft, type Plan } from "./draft.ts";
import {
  countRejectedWrites,
  deadlines,
  endOwnership,
  expiry,
  finish,
  finished,
  forgetFailures,
  limitRetries,
} from "./ending.ts";
import { grantNext, watchOwner } from "./holding.ts";
import { issuedGeneration, type OwnerState, ownerState, ownReport } from "./ownership.ts";
import { isClosing, type Snapshot } from "./snapshot.ts";

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
    const overdue = overdueMs(timingOf(spec), snapshot.lease?.durationMs);
    const state = draft.status.owner ? ownerState(draft.status.owner, snapshot, overdue) : null;
    followOwner(draft, spec, state);
  } else if (snapshot.job.deleting) letGo(draft);
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
  draft.status.summary = `Not admitted: ${problem.reason}`;
  if (draft.reasonBefore("Admitted") !== problem.reason) draft.event("Warning", problem.reason, problem.message);
}

function followOwner(draft: Draft, spec: FencedJobSpec, state: OwnerState | null): void {
  const { status, snapshot } = draft;
  const report = status.owner ? ownReport(status.owner, snapshot) : null;
  status.generation = issuedGeneration(status, report);
  noteClosed(draft);
  forgetFailures(draft);
  const closing = isClosing(snapshot);
  dropLostCandidates(draft, closing);
  endOwner(draft, spec, state, closing);
  if (!closing) {
    deadlines(draft, spec);
    limitRetries(draft, spec);
  }
  if (!status.completionTime && !closing && !status.owner && status.failures > spec.backoffLimit) {
    finish(draft, "Failed", "BackoffLimitExceeded", `${count(status.failures, "consecutive failure")} of candidates`);
  }
  if (status.completionTime && !snapshot.job.deleting) return finished(draft, spec);
  if (closing) return closeDown(draft, spec, state);
  draft.condition("Suspended", "False", "NotSuspended", "spec.suspend is false");
  draft.condition("Complete", "False", "Running", "the job has not ended");
  draft.condition("Failed", "False", "Running", `${status.failures} of ${spec.backoffLimit} consecutive failures`);
  if (status.owner) watchOwner(draft, spec, status.owner, state);
  const wanted = candidatesWanted(draft, spec, state);
  keepCandidates(draft, isAdmitted(snapshot) ? wanted : 0);
  if (!status.owner) grantNext(draft);
}

function endOwner(draft: Draft, spec: FencedJobSpec, state: OwnerState | null, closing: boolean): void {
  const { snapshot } = draft;
  const { owner, completionTime } = draft.status;
  if (!owner || !state) return;
  const open = !completionTime && !closing && isAdmitted(snapshot);
  if (state.kind === "ended")
    return endOwnership(draft, spec, owner, closing ? whileClosing(draft, state.end) : state.end);
  // Without a successor there is nothing to gain from it: the owner may still come back.
  if (state.kind === "overdue" && state.expired && (closing || (open && readyCandidate(draft)))) {
    return endOwnership(draft, spec, owner, expiry(owner, snapshot));
  }
  if (closing && !owner.closes && state.kind === "granting") {
    return endOwnership(draft, spec, owner, whileClosing(draft, null));
  }
  if (open && isOutdated(owner, snapshot)) {
    const message = `${owner.pod} (generation ${owner.generation}) had not started its application when the spec changed; a pod of the new spec replaces it`;
    endOwnership(draft, spec, owner, { reason: "SpecChanged", outcome: "superseded", message });
  }
}

function isAdmitted(snapshot: Snapshot): boolean {
  return snapshot.spec.ok && snapshot.template.ok;
}

/** Nothing was done yet, and the change may be what it waits for: an address, a Secret, an image; or nothing is to be closed. */
function isOutdated(owner: Owner, { pods }: Snapshot): boolean {
  if (owner.closes) return true;
  return pods.some(({ uid, outdated, applicationStarted }) => uid === owner.uid && outdated && !applicationStarted);
}
