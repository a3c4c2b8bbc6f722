/** How an ownership ends, and with it perhaps the job: by success, failure, limits and deadlines. Pure. */
import { wallMsOf } from "../platform/clock.ts";
import type { Reason } from "./api/reasons.ts";
import type { FencedJobSpec } from "./api/spec.ts";
import { type FencedJobStatus, HISTORY_MAX, type Owner } from "./api/status.ts";
import { closerFailed } from "./backoff.ts";
import { assumeRaised, tellClosed } from "./closing.ts";
import { count, type Draft } from "./draft.ts";
import { hasRaised, type OwnershipEnd } from "./ownership.ts";
import type { Snapshot } from "./snapshot.ts";

/** After so long without a failure under one owner, earlier ones are not held against the job: as the kubelet does. */
const PROGRESS_MS = 600_000;

export function countRejectedWrites(draft: Draft): void {
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

/** One that never renewed has failed: a sidecar that cannot reach the API server must not use up pods for ever. */
export function expiry(owner: Owner, { lease, leaseUnchangedMs }: Snapshot): OwnershipEnd {
  const who = `${owner.pod} (generation ${owner.generation})`;
  // Each renewal writes a report, each grant takes the old one away.
  if (lease?.report === null) {
    const message = `${who} never renewed its Lease: its sidecar does not run, does not reach the API server, or is refused by it (rights, a policy); its log says why`;
    return { reason: "LeaseExpired", outcome: "failure", message };
  }
  const seconds = Math.round(leaseUnchangedMs / 1000);
  const message = `${who} did not renew for ${seconds} s; its writes will be refused`;
  return { reason: "LeaseExpired", outcome: "superseded", message };
}

export function endOwnership(draft: Draft, spec: FencedJobSpec, owner: Owner, end: OwnershipEnd): void {
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
  assumeRaised(draft, spec, owner, end.reason);
  delete status.owner;
  const expected = end.outcome === "success" || end.reason === "Suspended" || end.reason === "Deleted";
  draft.event(expected ? "Normal" : "Warning", end.reason, end.message);
  countRejectedWrites(draft);
  if (owner.closes) return closerEnded(draft, end);
  if (end.outcome === "success") {
    status.failures = 0;
    finish(draft, "Complete", "Completed", `generation ${owner.generation} (${owner.pod}) completed the job`);
  } else if (end.outcome === "failure") {
    status.failures += 1;
    status.lastFailureTime = draft.wall;
    if (status.failures <= spec.backoffLimit) return;
    fail(draft, "BackoffLimitExceeded", `${count(status.failures, "consecutive failure")}, the last: ${end.message}`);
  }
}

/**
 * As a Job's FailureTarget: no owner is wanted any more. `Failed` comes when that holds: the pods are stopped, and the fences closed, so
 * that nothing of the job commits behind it (closing.ts, INV-3).
 */
export function fail(draft: Draft, reason: Reason, message: string): void {
  const { status } = draft;
  if (!status.owner && status.fences.every(({ closed }) => closed)) return finish(draft, "Failed", reason, message);
  status.failing = { reason, message };
  status.summary = `Failing: ${reason}`;
  draft.condition("Failed", "False", reason, message);
  draft.event("Warning", reason, message);
}

function closerEnded(draft: Draft, { outcome }: OwnershipEnd): void {
  if (outcome === "success") for (const fence of draft.status.fences) fence.closed = true;
  else if (outcome === "failure") closerFailed(draft);
}

/** Its pods are stopped, and its fences closed, or not for as long as that is waited for. */
export function failAtLast(draft: Draft, { reason, message }: NonNullable<FencedJobStatus["failing"]>): void {
  const open = draft.status.fences.flatMap(({ database, closed }) => (closed ? [] : [database]));
  const left = open.length ? `; the fence of ${open.join(", ")} could not be closed, see event FenceNotClosed` : "";
  finish(draft, "Failed", reason as Reason, message + left);
}

function finish(draft: Draft, type: "Complete" | "Failed", reason: Reason, message: string): void {
  delete draft.status.failing;
  delete draft.status.closers;
  draft.status.completionTime = draft.wall;
  draft.condition(type, "True", reason, message);
  draft.condition(type === "Complete" ? "Failed" : "Complete", "False", "Finished", message);
  if (draft.snapshot.status.failing?.reason !== reason)
    draft.event(type === "Complete" ? "Normal" : "Warning", reason, message);
  draft.status.summary = type === "Complete" ? "Complete" : `Failed: ${reason}`;
}

export const isDecided = ({ completionTime, failing }: FencedJobStatus): boolean =>
  completionTime !== undefined || failing !== undefined;

export function deadlines(draft: Draft, spec: FencedJobSpec): void {
  const { status, snapshot } = draft;
  if (isDecided(status)) return;
  // Resumed before it was stopped: from now on, as with a Job.
  if (status.owner && !status.owner.closes) status.startTime ??= draft.wall;
  if (spec.activeDeadlineSeconds === undefined || !status.startTime) return;
  // The clock was set back: from now on, and not until it has caught up.
  if (wallMsOf(status.startTime) > snapshot.wallMs) status.startTime = draft.wall;
  const leftMs = wallMsOf(status.startTime) + spec.activeDeadlineSeconds * 1000 - snapshot.wallMs;
  if (leftMs > 0) return draft.lookAgainIn(leftMs);
  fail(draft, "DeadlineExceeded", `the job ran longer than ${spec.activeDeadlineSeconds} s`);
}

/** Containers that the kubelet starts again in place fail as pods do: at the limit no further try is let in (C09). */
export function countRetries(draft: Draft, spec: FencedJobSpec): void {
  const { status, snapshot } = draft;
  const { owner } = status;
  const pod = snapshot.pods.find(({ uid }) => uid === owner?.uid);
  if (isDecided(status) || !owner || !pod) return;
  const more = pod.retries - (owner.retries ?? 0);
  // A kubelet that has forgotten its containers counts anew.
  if (more !== 0) owner.retries = pod.retries;
  if (more <= 0) return;
  status.failures += more;
  status.lastFailureTime = draft.wall;
  if (status.failures <= spec.backoffLimit) return;
  const message = `${owner.pod} was started again ${count(pod.retries, "time")} in place; ${count(status.failures, "consecutive failure")}`;
  fail(draft, "BackoffLimitExceeded", message);
}

export function finished(draft: Draft, spec: FencedJobSpec): void {
  const { status, snapshot } = draft;
  draft.condition("Owned", "False", "Finished", "the job has ended");
  tellClosed(draft);
  status.candidates = [];
  const last = status.history[0];
  if (last && snapshot.lease?.holder === last.uid && snapshot.lease.generation === last.generation) {
    draft.actions.push({ kind: "clearLease", holder: last.uid, generation: last.generation });
  }
  if (spec.ttlSecondsAfterFinished === undefined || !status.completionTime) return;
  if (wallMsOf(status.completionTime) > snapshot.wallMs) status.completionTime = draft.wall;
  const leftMs = wallMsOf(status.completionTime) + spec.ttlSecondsAfterFinished * 1000 - snapshot.wallMs;
  if (leftMs > 0) draft.lookAgainIn(leftMs);
  else draft.actions.push({ kind: "deleteJob" });
}

/** INV-9: only an owner that has raised every fence has made progress. */
export function forgetFailures({ status, snapshot, wall }: Draft): void {
  const { owner, failures, lastFailureTime } = status;
  if (!owner || failures === 0 || !hasRaised(status, snapshot)) return;
  // The clock was set back: from now on, and not when it has caught up.
  if (wallMsOf(owner.since) > snapshot.wallMs) owner.since = wall;
  const sinceMs = Math.max(wallMsOf(owner.since), lastFailureTime ? wallMsOf(lastFailureTime) : 0);
  if (snapshot.wallMs - sinceMs < PROGRESS_MS) return;
  status.failures = 0;
  delete status.lastFailureTime;
}
