/** Which pods a job needs, has and no longer needs: candidates, superseded and ended ones. Pure. */
import { isoSeconds, wallMsOf } from "../platform/clock.ts";
import type { FencedJobSpec } from "./api/spec.ts";
import { HISTORY_MAX } from "./api/status.ts";
import type { Draft } from "./draft.ts";
import type { OwnerState } from "./ownership.ts";
import { isAlive, isClosing, type PodView } from "./snapshot.ts";

/** A superseded pod may see the refusal and log it before it is deleted; the fence protects meanwhile. */
const SUPERSEDED_LINGER_MS = 60_000;
const BACKOFF_MS_BASE = 1_000;
const BACKOFF_MS_MAX = 300_000;
/** Ended pods kept for their logs. */
const ENDED_PODS_MAX = HISTORY_MAX;

export function candidatesWanted(draft: Draft, spec: FencedJobSpec, state: OwnerState | null): number {
  const { status, snapshot } = draft;
  const ownerLeaves = snapshot.pods.some(({ uid, deleting }) => uid === status.owner?.uid && deleting);
  const successor = !status.owner || state?.kind === "overdue" || ownerLeaves;
  const atRest = (isClosing(snapshot) ? 0 : spec.standbys.count) + (successor ? 1 : 0);
  // A standby's start takes processor time from a takeover under way: it comes after the raise.
  const settled = status.owner !== undefined && status.fence === status.owner.generation;
  const wanted = settled ? atRest : Math.min(atRest, Math.max(status.candidates.length, successor ? 1 : 0));
  // Also beside a healthy owner: standbys that fail at once would else be made anew without a pause.
  const leftMs = backoffLeftMs(draft);
  if (leftMs <= 0 || status.candidates.length >= wanted) return wanted;
  draft.lookAgainIn(leftMs);
  if (!status.owner) {
    const message = `failure ${status.failures}; the next candidate starts at ${isoSeconds(snapshot.wallMs + leftMs)}`;
    draft.condition("Owned", "False", "BackingOff", message);
    status.summary = `Backing off after failure ${status.failures}`;
  }
  return status.candidates.length;
}

function backoffLeftMs({ status, snapshot, wall }: Draft): number {
  if (status.failures === 0 || !status.lastFailureTime) return 0;
  // The wall clock was set back: nobody waits until it has caught up.
  if (wallMsOf(status.lastFailureTime) > snapshot.wallMs) status.lastFailureTime = wall;
  // The first failure is succeeded at once: most are the only one.
  const backoffMs = status.failures === 1 ? 0 : Math.min(BACKOFF_MS_BASE * 2 ** (status.failures - 1), BACKOFF_MS_MAX);
  return wallMsOf(status.lastFailureTime) + backoffMs - snapshot.wallMs;
}

/** Candidates that can no longer be granted leave the list; one that ended by itself counts as a failure. */
export function dropLostCandidates(draft: Draft, closing: boolean): void {
  const { status, snapshot } = draft;
  status.candidates = status.candidates.filter(({ attempt, pod: name, closes = false }) => {
    if (closes !== closing) return false;
    if (snapshot.burnedAttempts.includes(attempt)) return false;
    const pod = snapshot.pods.find((pod) => pod.name === name);
    if (!pod) return true;
    if (pod.uid === snapshot.lease?.holder && pod.uid !== status.owner?.uid) {
      // Its sidecar has taken this for a grant: our grant would be its second (INV-7).
      draft.event(
        "Warning",
        "LeaseTaken",
        `the Lease names candidate ${name}, to whom nothing was granted; it is replaced`,
      );
      return false;
    }
    // Made anew from the present spec: the change may be what it waits for.
    if (isAlive(pod)) return !pod.deleting && !pod.outdated;
    if (!closes) status.failures += 1;
    status.lastFailureTime = draft.wall;
    draft.event(
      "Warning",
      "PodFailed",
      `candidate ${name} ended before it was granted anything: ${pod.failure || pod.phase}`,
    );
    return false;
  });
}

export function keepCandidates(draft: Draft, wanted: number, closes = false): void {
  const { status, snapshot } = draft;
  // The newest go first: an older candidate is likelier to be ready.
  status.candidates = status.candidates.slice(0, wanted);
  while (status.candidates.length < wanted) {
    status.attempt += 1;
    const pod = `${snapshot.job.name}-${status.attempt}`;
    status.candidates.push({ attempt: status.attempt, pod, ...(closes && { closes }) });
  }
  const inSpec = snapshot.spec.ok ? snapshot.spec.spec.databases.map(({ name }) => name) : [];
  const open = status.fences.flatMap(({ database, secretName, closed }) =>
    closed || !secretName || (!closes && inSpec.includes(database)) ? [] : [{ database, secretName }],
  );
  for (const { attempt, pod } of status.candidates) {
    if (snapshot.pods.some(({ name }) => name === pod)) continue;
    draft.actions.push({ kind: "createPod", attempt, closer: closes, closes: open });
  }
}

export function readyCandidate(draft: Draft): PodView | undefined {
  const { pods } = draft.snapshot;
  return draft.status.candidates
    .map(({ pod }) => pods.find(({ name }) => name === pod))
    .find((pod) => pod?.sidecarRunning && !pod.deleting && isAlive(pod));
}

/** Surplus candidates, superseded pods after their time, and ended pods beyond those kept for their logs. */
export function collectPods(draft: Draft): void {
  const { status, snapshot } = draft;
  const kept = new Set([status.owner?.pod, ...status.candidates.map(({ pod }) => pod)]);
  const alreadyAsked = new Set(draft.actions.map((action) => (action.kind === "deletePod" ? action.pod : "")));
  const ended = snapshot.pods.filter((pod) => !isAlive(pod)).sort((a, b) => b.attempt - a.attempt);
  const surplus = ended.slice(ENDED_PODS_MAX);
  for (const pod of snapshot.pods.filter(isAlive)) {
    if (kept.has(pod.name)) continue;
    const past = status.history.find(({ uid }) => uid === pod.uid);
    const lingers = past && past.reason !== "SpecChanged" && !status.completionTime;
    const lingersMs = lingers ? wallMsOf(past.until) + SUPERSEDED_LINGER_MS - snapshot.wallMs : 0;
    // Longer than that: the wall clock was set back.
    if (lingersMs > 0 && lingersMs <= SUPERSEDED_LINGER_MS) draft.lookAgainIn(lingersMs);
    else surplus.push(pod);
  }
  for (const pod of surplus) {
    if (!pod.deleting && !alreadyAsked.has(pod.name))
      draft.actions.push({ kind: "deletePod", pod: pod.name, uid: pod.uid });
  }
}
