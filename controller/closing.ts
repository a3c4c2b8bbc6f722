/**
 * When no owner is wanted, because the job is suspended or being deleted: its pods are stopped, then every fence is closed, so that
 * nothing of an older generation commits behind it (INV-3). Pure.
 *
 * The owner's sidecar closes at its own end. Where it could not, a closer does: a pod that has only the sidecar, granted a generation of
 * its own, which raises and closes. A pod that is out of reach is not waited for. What cannot be closed holds a suspension up, and says
 * so; it holds a deletion up for a while only, and then leaves a Warning: nobody shall need to remove a finalizer by hand.
 */
import { parseReport } from "../lease/report.ts";
import type { FencedJobSpec } from "./api/spec.ts";
import { candidatesWanted, keepCandidates } from "./candidates.ts";
import { count, type Draft } from "./draft.ts";
import { grantNext, watchOwner } from "./holding.ts";
import type { OwnerState, OwnershipEnd } from "./ownership.ts";
import { isAlive, type PodView } from "./snapshot.ts";

/** For a closer's pod to start, and to try a database that does not answer. */
const DELETION_CLOSES_MS_MAX = 60_000;

/** A pod that we stopped did not fail. */
export function whileClosing({ snapshot, status }: Draft, end: OwnershipEnd | null): OwnershipEnd {
  if (end && (end.outcome === "success" || status.owner?.closes)) return end;
  const [reason, why] = snapshot.job.deleting
    ? (["Deleted", "the FencedJob is being deleted"] as const)
    : (["Suspended", "spec.suspend is true"] as const);
  return { reason, outcome: "superseded", message: `the owner was stopped because ${why}` };
}

/** What the sidecar of the generation in the Lease says it has closed; also after it has given the Lease back. */
export function noteClosed({ status, snapshot: { lease } }: Draft): void {
  const report = parseReport(lease?.report ?? null);
  for (const fence of status.fences) {
    // INV-9: of its own generation only.
    if (fence.generation !== lease?.generation || fence.generation !== report?.generation) continue;
    if (report.fences.some(({ database, closed }) => closed && database === fence.database)) fence.closed = true;
  }
}

export function tellClosed(draft: Draft): void {
  const { fences } = draft.status;
  const closed = fences.filter((fence) => fence.closed);
  if (!fences.length || closed.length < fences.length) return;
  const message = `no generation is let in: ${closed.map(({ database, generation }) => `${database} (last ${generation})`).join(", ")}`;
  draft.condition("FenceRaised", "False", "FenceClosed", message);
}

export function closeDown(draft: Draft, spec: FencedJobSpec, state: OwnerState | null): void {
  const { status, snapshot } = draft;
  const { job } = snapshot;
  // As with a Job: the active deadline counts from the first owner after it is resumed.
  if (!status.completionTime) delete status.startTime;
  const waiting = stopPods(draft);
  const { owner } = status;
  const why = job.deleting ? "the FencedJob is being deleted" : "spec.suspend is true";
  const reason = job.deleting ? "Deleting" : "Suspended";
  status.summary = job.deleting ? "Deleting" : "Suspending";
  if (owner) watchOwner(draft, spec, owner, state);
  else draft.condition("Owned", "False", reason, why);
  if (owner && !owner.closes)
    return tellSuspended(draft, `${owner.pod} (generation ${owner.generation}) is being stopped`);
  const open = status.fences.filter(({ closed }) => !closed).map(({ database }) => database);
  if (!owner && !open.length) {
    tellClosed(draft);
    if (job.deleting) return removeFinalizer(draft);
    if (waiting.length) return tellSuspended(draft, `${count(waiting.length, "pod")} being stopped`);
    draft.condition("Suspended", "True", "Stopped", "no pod of the job is left that could write");
    status.summary = "Suspended";
    return;
  }
  if (job.deleting && giveUp(draft, open)) return removeFinalizer(draft);
  tellSuspended(draft, `the fence of ${open.join(", ")} is being closed`);
  keepCandidates(draft, candidatesWanted(draft, spec, state), true);
  if (!owner) grantNext(draft);
}

/** Nothing can be closed without a spec: the sidecars close for themselves, and are waited for. */
export function letGo(draft: Draft): void {
  if (!stopPods(draft).length) removeFinalizer(draft);
}

/** Returns those that are still alive, and not out of reach. */
function stopPods({ status, snapshot, actions }: Draft): PodView[] {
  const closers = new Set([
    ...status.candidates.filter(({ closes }) => closes).map(({ pod }) => pod),
    ...(status.owner?.closes ? [status.owner.pod] : []),
  ]);
  const alive = snapshot.pods.filter((pod) => isAlive(pod) && !closers.has(pod.name));
  for (const { name, uid, deleting } of alive) if (!deleting) actions.push({ kind: "deletePod", pod: name, uid });
  const outOfReach = new Set(
    status.history.filter(({ reason }) => reason === "LeaseExpired" || reason === "NodeLost").map(({ uid }) => uid),
  );
  return alive.filter(({ uid }) => !outOfReach.has(uid));
}

function tellSuspended(draft: Draft, message: string): void {
  if (!draft.snapshot.job.deleting) draft.condition("Suspended", "False", "Suspending", message);
}

function giveUp(draft: Draft, open: readonly string[]): boolean {
  const { job, namespaceEnding, creationProblem } = draft.snapshot;
  const leftMs = DELETION_CLOSES_MS_MAX - job.closingMs;
  if (leftMs > 0 && !namespaceEnding) {
    draft.lookAgainIn(leftMs);
    return false;
  }
  const problem = creationProblem ? ` (${creationProblem})` : "";
  draft.event(
    "Warning",
    "FenceNotClosed",
    `the fence of ${open.join(", ")} could not be closed${problem}: a pod of the job that still runs somewhere could write there under generation ${draft.status.generation}. To close it by hand: fencedjob db close --database-url … --job ${fenceNameOf(draft)}`,
  );
  return true;
}

function fenceNameOf({ snapshot: { spec, job } }: Draft): string {
  return (spec.ok && spec.spec.fenceName) || `${job.namespace}/${job.name}`;
}

function removeFinalizer(draft: Draft): void {
  draft.status.candidates = [];
  if (draft.snapshot.job.finalized) draft.actions.push({ kind: "removeFinalizer" });
}
