/** Which pods a job needs, has and no longer needs: candidates, superseded and ended ones. Pure. */
import { isoSeconds, wallMsOf } from "../platform/clock.ts";
import type { FencedJobSpec } from "./api/spec.ts";
import { HISTORY_MAX } from "./api/status.ts";
import { backoffLeftMs, closerFailed } from "./backoff.ts";
import type { Draft } from "./draft.ts";
import { hasRaised, MUST_WAIT, type OwnerState } from "./ownership.ts";
import { isAdmitted, isAlive, isClosing, type PodView } from "./snapshot.ts";

/** A superseded pod may see the refusal and log it before it is deleted; the fence protects meanwhile. */
const SUPERSEDED_LINGER_MS = 60_000;
/** Ended pods kept for their logs. */
const ENDED_PODS_MAX = HISTORY_MAX;

export function candidatesWanted(draft: Draft, spec: FencedJobSpec, state: OwnerState | null): number {
  const { status, snapshot } = draft;
  const ownerLeaves = snapshot.pods.some(({ uid, deleting }) => uid === status.owner?.uid && deleting);
  const successor = !status.owner || state?.kind === "overdue" || ownerLeaves;
  const atRest = (isClosing(snapshot) ? 0 : spec.standbys.count) + (successor ? 1 : 0);
  // A standby's start takes processor time from a takeover under way, and a webhook may hang at it: it comes after the raise.
  const settled = hasRaised(status, snapshot) && !(successor && readyCandidate(draft));
  const wanted = settled ? atRest : Math.min(atRest, Math.max(status.candidates.length, successor ? 1 : 0));
  // Also beside a healthy owner: standbys that fail at once would else be made anew without a pause.
  const leftMs = backoffLeftMs(draft);
  if (leftMs <= 0 || status.candidates.length >= wanted) return wanted;
  draft.lookAgainIn(leftMs);
  if (!status.owner && !isClosing(snapshot) && isAdmitted(snapshot)) {
    const message = `failure ${status.failures}; the next candidate starts at ${isoSeconds(snapshot.wallMs + leftMs)}`;
    draft.condition("Owned", "False", "BackingOff", message);
    status.summary = `Backing off after failure ${status.failures}`;
  }
  return status.candidates.length;
}

/** Candidates that can no longer be granted leave the list; one that ended by itself, and was not taken away, counts as a failure. */
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
    // Made anew from the present spec, if it can be: the change may be what it waits for.
    if (isAlive(pod)) return !pod.deleting && !(pod.outdated && (closes || isAdmitted(snapshot)));
    candidateEnded(draft, pod, closes);
    return false;
  });
}

function candidateEnded(draft: Draft, pod: PodView, closes: boolean): void {
  const { status, wall } = draft;
  if (closes) closerFailed(draft);
  else if (!pod.leaving) {
    status.failures += 1;
    status.lastFailureTime = wall;
  }
  const hint = pod.startedEarly ? `. ${MUST_WAIT}` : "";
  draft.event(
    "Warning",
    pod.leaving ?? "PodFailed",
    `candidate ${pod.name} ended before it was granted anything: ${pod.failure || pod.phase}${hint}`,
  );
}

export function keepCandidates(draft: Draft, atMost: number, closes = false): void {
  const { status, snapshot } = draft;
  let wanted = atMost;
  if (!closes && !isAdmitted(snapshot)) {
    // No new one; a webhook that is down, or a slip in the template, costs none of those that are there its place.
    status.candidates = status.candidates.filter(({ pod }) => snapshot.pods.some(({ name }) => name === pod));
    wanted = Math.min(atMost, status.candidates.length);
    // INV-11: what was said of the last owner holds no longer.
    const message = "no pod is created until the template is accepted, see Admitted";
    if (!status.owner && !wanted) draft.condition("Owned", "False", "WaitingForPod", message);
  }
  // Those that are not ready go first, and of both the newest: an older candidate is likelier to be ready.
  if (status.candidates.length > wanted) {
    const ready = new Set(snapshot.pods.filter(isReady).map(({ name }) => name));
    status.candidates.sort((a, b) => Number(ready.has(b.pod)) - Number(ready.has(a.pod)));
  }
  status.candidates = status.candidates.slice(0, wanted);
  while (status.candidates.length < wanted) {
    status.attempt += 1;
    const pod = `${snapshot.job.name}-${status.attempt}`;
    status.candidates.push({ attempt: status.attempt, pod, ...(closes && { closes }) });
  }
  const databases = snapshot.spec.ok ? snapshot.spec.spec.databases : [];
  const open = status.fences.flatMap(({ database, closed, ...fence }) => {
    const inSpec = databases.find(({ name }) => name === database);
    const secretName = fence.secretName ?? inSpec?.secretName;
    return closed || !secretName || (!closes && inSpec) ? [] : [{ database, secretName }];
  });
  for (const { attempt, pod } of status.candidates) {
    if (snapshot.pods.some(({ name }) => name === pod)) continue;
    if (snapshot.creationRestMs > 0) {
      draft.lookAgainIn(snapshot.creationRestMs);
      continue;
    }
    draft.actions.push({ kind: "createPod", attempt, closer: closes, closes: open });
  }
}

/**
 * One whose application runs already, if there is one. One that has given up while it waited, and is to be started again, comes last
 * and not never: it may be an application that needs its first session.
 */
export function readyCandidate(draft: Draft): PodView | undefined {
  const { pods } = draft.snapshot;
  const ready = draft.status.candidates.flatMap(({ pod }) => pods.filter(({ name }) => name === pod)).filter(isReady);
  return ready.find(({ applicationRuns }) => applicationRuns) ?? ready.find(({ trouble }) => !trouble) ?? ready[0];
}

const isReady = (pod: PodView): boolean => pod.sidecarRunning && !pod.deleting && !pod.applicationEnded && isAlive(pod);

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
    // The clock was set back, or another controller's is ahead: from now on, and not until it has caught up.
    if (past && wallMsOf(past.until) > snapshot.wallMs) past.until = draft.wall;
    const lingersMs = lingers ? wallMsOf(past.until) + SUPERSEDED_LINGER_MS - snapshot.wallMs : 0;
    if (lingersMs > 0) draft.lookAgainIn(lingersMs);
    else surplus.push(pod);
  }
  for (const pod of surplus) {
    if (pod.deleting || alreadyAsked.has(pod.name)) continue;
    tellUnknown(draft, pod);
    draft.actions.push({ kind: "deletePod", pod: pod.name, uid: pod.uid });
  }
}

/** Made by hand, or by a controller whose status was lost since (A01). */
function tellUnknown(draft: Draft, { name, attempt }: PodView): void {
  const { snapshot, status } = draft;
  if (attempt > 0 && attempt <= snapshot.status.attempt) return;
  const { owner } = status;
  const who = owner ? `the owner is ${owner.pod} (generation ${owner.generation})` : "there is no owner";
  draft.event("Warning", "UnknownPod", `pod ${name} is not one that this job has made: it is deleted; ${who}`);
}
