/** How an ownership ends, and with it perhaps the job: by success, failure, limits and deadlines. Pure. */
import { wallMsOf } from "../platform/clock.ts";
import type { Reason } from "./api/reasons.ts";
import type { FencedJobSpec } from "./api/spec.ts";
import { HISTORY_MAX, type Owner } from "./api/status.ts";
import { tellClosed } from "./closing.ts";
import { count, type Draft } from "./draft.ts";
import type { OwnershipEnd } from "./ownership.ts";
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
  delete status.owner;
  const expected = end.outcome === "success" || end.reason === "Suspended" || end.reason === "Deleted";
  draft.event(expected ? "Normal" : "Warning", end.reason, end.message);
  countRejectedWrites(draft);
  if (owner.closes) return closerEnded(draft, spec, end);
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

/** INV-9: a closer's end says nothing about the job's work; its failures only put the next one off. */
function closerEnded({ status, wall }: Draft, spec: FencedJobSpec, { outcome }: OwnershipEnd): void {
  if (outcome === "success") {
    for (const fence of status.fences) fence.closed = true;
  } else if (outcome === "failure") {
    status.failures = Math.min(status.failures + 1, spec.backoffLimit);
    status.lastFailureTime = wall;
  }
}

export function finish(draft: Draft, type: "Complete" | "Failed", reason: Reason, message: string): void {
  draft.status.completionTime = draft.wall;
  draft.condition(type, "True", reason, message);
  draft.condition(type === "Complete" ? "Failed" : "Complete", "False", "Finished", message);
  draft.event(type === "Complete" ? "Normal" : "Warning", reason, message);
  draft.status.summary = type === "Complete" ? "Complete" : `Failed: ${reason}`;
}

export function deadlines(draft: Draft, spec: FencedJobSpec): void {
  const { status, snapshot } = draft;
  if (status.completionTime || spec.activeDeadlineSeconds === undefined || !status.startTime) return;
  const leftMs = wallMsOf(status.startTime) + spec.activeDeadlineSeconds * 1000 - snapshot.wallMs;
  if (leftMs > 0) return draft.lookAgainIn(leftMs);
  const message = `the job ran longer than ${spec.activeDeadlineSeconds} s`;
  if (status.owner)
    endOwnership(draft, spec, status.owner, { reason: "DeadlineExceeded", outcome: "superseded", message });
  finish(draft, "Failed", "DeadlineExceeded", message);
}

/** Containers that the kubelet starts again in place fail as pods do: at the limit no further try is let in (C09). */
export function limitRetries(draft: Draft, spec: FencedJobSpec): void {
  const { status, snapshot } = draft;
  const { owner } = status;
  const retries = snapshot.pods.find(({ uid }) => uid === owner?.uid)?.retries ?? 0;
  if (status.completionTime || !owner || retries === 0 || status.failures + retries <= spec.backoffLimit) return;
  status.failures += retries;
  const message = `${owner.pod} was started again ${count(retries, "time")} in place; ${count(status.failures, "consecutive failure")}`;
  endOwnership(draft, spec, owner, { reason: "BackoffLimitExceeded", outcome: "superseded", message });
  finish(draft, "Failed", "BackoffLimitExceeded", message);
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
  const leftMs = wallMsOf(status.completionTime) + spec.ttlSecondsAfterFinished * 1000 - snapshot.wallMs;
  if (leftMs > 0) draft.lookAgainIn(leftMs);
  else draft.actions.push({ kind: "deleteJob" });
}

/** INV-9: only an owner that has raised every fence has made progress. */
export function forgetFailures({ status, snapshot }: Draft): void {
  const { owner, fence, failures, lastFailureTime } = status;
  if (!owner || fence !== owner.generation || failures === 0) return;
  const sinceMs = Math.max(wallMsOf(owner.since), lastFailureTime ? wallMsOf(lastFailureTime) : 0);
  if (snapshot.wallMs - sinceMs < PROGRESS_MS) return;
  status.failures = 0;
  delete status.lastFailureTime;
}
