/**
 * When no owner is wanted, because the job is suspended, has failed or is being deleted: its pods are stopped, then every fence is closed,
 * so that nothing of an older generation commits behind it (INV-3). Pure.
 *
 * The owner's sidecar closes at its own end. Where it could not, a closer does: a pod that has only the sidecar, granted a generation of
 * its own, which raises and closes. A pod that is out of reach is not waited for. What cannot be closed holds a suspension up, and says
 * so; it holds a failure or a deletion up for a while only, and then leaves a Warning: a deadline shall be one, and nobody need to remove
 * a finalizer by hand.
 */
import { isoSeconds } from "../platform/clock.ts";
import { shellWord } from "../platform/shell.ts";
import type { Reason } from "./api/reasons.ts";
import type { FencedJobSpec } from "./api/spec.ts";
import type { FencedJobStatus, Owner } from "./api/status.ts";
import { backoffLeftMs, failuresOf } from "./backoff.ts";
import { candidatesWanted, keepCandidates } from "./candidates.ts";
import { count, type Draft } from "./draft.ts";
import { isOver } from "./fences.ts";
import { grantNext, watchOwner } from "./holding.ts";
import { type OwnerState, type OwnershipEnd, ownReport, reportOf } from "./ownership.ts";
import { isAlive, type PodView } from "./snapshot.ts";

/** For a closer's pod to start, and to try a database that does not answer; then it may have to wait for old transactions to drain. */
const CLOSES_MS_MAX = 60_000;
/** For a sidecar whose application has ended, which closes at its own end, and for Kubernetes to delete what a FencedJob owns. */
const SETTLES_MS_MAX = 10_000;

/** A pod that we stopped did not fail. One that ends well after its deadline does not take back that the job has failed. */
export function whileClosing(draft: Draft, end: OwnershipEnd | null): OwnershipEnd {
  const { owner, failing } = draft.status;
  if (end && (owner?.closes || (end.outcome === "success" && !failing))) return end;
  const { end: reason, why } = occasionOf(draft);
  return { reason, outcome: "superseded", message: `the owner was stopped because ${why}` };
}

interface Occasion {
  /** Of the owner's end. */
  readonly end: Reason;
  /** Of the condition `Owned`. */
  readonly unowned: Reason;
  /** In the status column. */
  readonly summary: string;
  /** For people. */
  readonly why: string;
}

/** Why nobody shall own. */
function occasionOf({ snapshot: { job }, status: { failing } }: Draft): Occasion {
  if (job.deleting)
    return { end: "Deleted", unowned: "Deleting", summary: "Deleting", why: "the FencedJob is being deleted" };
  if (!failing) return { end: "Suspended", unowned: "Suspended", summary: "Suspending", why: "spec.suspend is true" };
  const reason = failing.reason as Reason;
  return { end: reason, unowned: reason, summary: `Failing: ${reason}`, why: failing.message };
}

/**
 * What the sidecar of the generation in the Lease says it has closed, and what somebody else has, by raising above it; also after it has
 * given the Lease back.
 */
export function noteClosed({ status, snapshot: { lease } }: Draft): void {
  const report = reportOf(lease);
  // INV-9: of its own generation only.
  if (!report) return;
  status.fences = status.fences.filter((fence) => !isOver(fence, report));
  for (const fence of status.fences) {
    if (fence.generation !== report.generation) continue;
    if (report.fences.some(({ database, closed }) => closed && database === fence.database)) fence.closed = true;
  }
}

/** A closer that a database refuses, where others have closed what was left to it: it would try for ever. */
export function hasNothingToClose({ status, snapshot }: Draft, owner: Owner): boolean {
  if (!owner.closes || !ownReport(owner, snapshot)?.failures.length) return false;
  return status.fences.every(({ closed }) => closed);
}

/**
 * An owner that is out of reach before its report came may have raised all the same. What it has left open nobody tells: it counts as
 * open until it is raised or closed.
 */
export function assumeRaised({ status, snapshot }: Draft, spec: FencedJobSpec, owner: Owner, end: Reason): void {
  const { lease, pods } = snapshot;
  const pod = pods.find(({ uid }) => uid === owner.uid);
  const outOfReach = !pod || pod.leaving === "NodeLost" || end === "LeaseExpired";
  const gaveBack = lease?.generation === owner.generation && lease.holder === null;
  const named = owner.leaseUID !== undefined || lease?.holder === owner.uid;
  if (!outOfReach || gaveBack || !named || owner.closes) return;
  for (const { name: database, secretName } of spec.databases) {
    const fence = status.fences.find((one) => one.database === database);
    if (!fence) status.fences.push({ database, generation: owner.generation, incarnation: "", secretName });
    else if (fence.generation < owner.generation) delete fence.closed;
  }
}

export function tellClosed(draft: Draft): void {
  const { fences } = draft.status;
  const closed = fences.filter((fence) => fence.closed);
  if (!fences.length || closed.length < fences.length) return;
  const message = `no generation is let in: ${closed.map(({ database, generation }) => `${database} (last ${generation})`).join(", ")}`;
  draft.condition("FenceRaised", "False", "FenceClosed", message);
}

/** True: nothing of the job is left that could write, or what is left is not waited for any longer. */
export function closeDown(draft: Draft, spec: FencedJobSpec, state: OwnerState | null): boolean {
  const { status, snapshot } = draft;
  const { job } = snapshot;
  // As with a Job: the active deadline counts from the first owner after it is resumed.
  if (!status.completionTime && !status.failing) delete status.startTime;
  const waiting = stopPods(draft);
  const { owner } = status;
  const { unowned, summary, why } = occasionOf(draft);
  status.summary = summary;
  if (owner) watchOwner(draft, spec, owner, state);
  else draft.condition("Owned", "False", unowned, why);
  if (owner && !owner.closes) return wait(draft, `${owner.pod} (generation ${owner.generation}) is being stopped`);
  const fences = status.fences.filter(({ closed }) => !closed);
  const open = fences.map(({ database }) => database);
  if (!owner && !open.length) return allClosed(draft, waiting);
  if ((job.deleting || status.failing) && giveUp(draft, spec, fences)) return letGo(draft);
  const last = waiting.find(({ uid, failed }) => failed && uid === status.history[0]?.uid);
  const settlesMs = SETTLES_MS_MAX - job.closingMs;
  // A closer's account, made in front of that, would be deleted with the rest, and the closer never be heard.
  if (settlesMs > 0 && (job.inForeground || (status.failing && last))) {
    draft.lookAgainIn(settlesMs);
    return wait(draft, "its last pod is ending");
  }
  const what = open.length
    ? `the fence of ${open.join(", ")} is being closed`
    : `${owner?.pod} has closed and is ending`;
  keepCandidates(draft, candidatesWanted(draft, spec, state), true);
  if (!owner) grantNext(draft, spec);
  return wait(draft, `${what}${sayFailures(draft)}`);
}

function allClosed(draft: Draft, waiting: readonly PodView[]): boolean {
  const { status, snapshot } = draft;
  tellClosed(draft);
  if (snapshot.job.deleting || status.failing) return letGo(draft);
  if (waiting.length) return wait(draft, `${count(waiting.length, "pod")} being stopped`);
  draft.condition("Suspended", "True", "Stopped", "no pod of the job is left that could write");
  status.summary = "Suspended";
  return true;
}

function sayFailures(draft: Draft): string {
  const { failures } = failuresOf(draft);
  if (failures === 0) return "";
  const leftMs = backoffLeftMs(draft);
  const next = leftMs > 0 ? `, the next try begins at ${isoSeconds(draft.snapshot.wallMs + leftMs)}` : "";
  return `; ${count(failures, "failure")}${next}`;
}

/** Nothing can be closed without a spec: the sidecars close for themselves, and are waited for. */
export function letGoUnclosed(draft: Draft): void {
  if (!stopPods(draft).length) letGo(draft);
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
  // A standby never is in the history, and a lost owner only among the last: their pods stay until somebody removes the node.
  return alive.filter(({ uid, leaving }) => leaving !== "NodeLost" && !outOfReach.has(uid));
}

function wait(draft: Draft, message: string): false {
  const { failing } = draft.status;
  if (draft.snapshot.job.deleting) return false;
  if (failing) draft.condition("Failed", "False", failing.reason as Reason, `${failing.message}; ${message}`);
  else draft.condition("Suspended", "False", "Suspending", message);
  return false;
}

function giveUp(draft: Draft, { drainSeconds }: FencedJobSpec, open: FencedJobStatus["fences"]): boolean {
  const { job, namespaceEnding, creationProblem } = draft.snapshot;
  const leftMs = CLOSES_MS_MAX + drainSeconds * 1000 - job.closingMs;
  if (leftMs > 0 && !namespaceEnding) {
    draft.lookAgainIn(leftMs);
    return false;
  }
  // Somebody else's finalizer may keep it for long after ours is off.
  if (!job.finalized || !open.length) return true;
  // Last, as it can be so long that it is cut off.
  const problem = creationProblem ? ` . No pod could be made for it: ${creationProblem}` : "";
  const { generation } = draft.status;
  // One each: together they would be cut off.
  for (const { database, secretName } of open) {
    draft.event(
      "Warning",
      "FenceNotClosed",
      `the fence of ${database} could not be closed: a pod of the job that still runs somewhere could write there under generation ${generation} or below. To close it by hand: ${closeCommand(draft, secretName)}${problem}`,
    );
  }
  return true;
}

/** As it can be pasted, where the Secret has its address in `uri`: the controller reads no Secret. */
function closeCommand(draft: Draft, secretName = "…"): string {
  const { namespace } = draft.snapshot.job;
  const uri = `$(kubectl get secret -n ${namespace} ${secretName} -o jsonpath='{.data.uri}' | base64 -d)`;
  return `fencedjob db close --job ${shellWord(fenceNameOf(draft))} --generation ${draft.status.generation} --database-url "${uri}"`;
}

function fenceNameOf({ snapshot: { spec, job } }: Draft): string {
  return (spec.ok && spec.spec.fenceName) || `${job.namespace}/${job.name}`;
}

/** No closer is needed any more; a FencedJob that is being deleted may go. */
function letGo({ status, snapshot: { job }, actions }: Draft): true {
  status.candidates = [];
  if (job.deleting && job.finalized) actions.push({ kind: "removeFinalizer" });
  return true;
}
