/** Which pods a job has, makes and no longer needs. */
import { expect, test } from "vitest";
import { aLease, aPod, aSnapshot, aSpec, condition, kinds, owned, owner, WALL_MS } from "../testing/snapshots.ts";
import { decide } from "./decide.ts";
import type { Plan } from "./draft.ts";
import type { PodView, Snapshot } from "./snapshot.ts";

test("a candidate whose sidecar does not run yet is granted nothing", () => {
  const pods = [aPod(1, { sidecarRunning: false, waitingFor: "image pull" })];
  const plan = decide(aSnapshot({ status: { attempt: 1, candidates: [{ attempt: 1, pod: "run-1" }] }, pods }));
  expect(plan.actions).toEqual([]);
  expect(plan.status.summary).toBe("Waiting: image pull");
});

test("INV-9: of started candidates one whose application runs is granted, one that is to be started again last, never one whose application has ended", () => {
  const candidates = [1, 2, 3].map((attempt) => ({ attempt, pod: `run-${attempt}` }));
  const grantedTo = (...changes: Partial<PodView>[]): string | undefined => {
    const pods = changes.map((change, i) => aPod(i + 1, { startedEarly: true, ...change }));
    const spec = aSpec({ standbys: { count: 2, application: "Started" } });
    return decide(aSnapshot({ spec, status: { attempt: 3, candidates }, pods })).status.owner?.pod;
  };
  const ended = { applicationStarted: true, applicationEnded: true };
  const runs = { applicationStarted: true, applicationRuns: true };
  const trouble = { reason: "CrashLoopBackOff", text: "container app: CrashLoopBackOff" };
  const crashing = { applicationStarted: true, trouble };
  expect(grantedTo(ended, {}, runs)).toBe("run-3");
  expect(grantedTo(crashing, ended, runs)).toBe("run-3");
  expect(grantedTo(crashing, {}, ended)).toBe("run-2");
  // It may need a first session to go on.
  expect(grantedTo(ended, crashing, ended)).toBe("run-2");
  expect(grantedTo(ended, {}, {})).toBe("run-2");
  expect(grantedTo(ended, ended, ended)).toBeUndefined();
});

test("an overdue renewal prepares a candidate and takes nothing away", () => {
  const plan = decide(
    aSnapshot({
      status: owned(),
      pods: [aPod(1)],
      lease: aLease(1, 1),
      leaseUnchangedMs: 6_000,
      leaseRemainingMs: 4_000,
    }),
  );
  expect(plan.status.owner?.generation).toBe(1);
  expect(plan.actions).toEqual([{ kind: "createPod", attempt: 2, closer: false, closes: [] }]);
  expect(condition(plan, "Owned")).toMatchObject({ status: "Unknown", reason: "RenewalOverdue" });
  expect(plan.requeueAfterMs).toBe(4_000);
});

test("an expired Lease is taken over in one step when a candidate is ready", () => {
  const status = owned({ attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }] });
  const plan = decide(
    aSnapshot({ status, pods: [aPod(1), aPod(2)], lease: aLease(1, 1), leaseUnchangedMs: 10_000, leaseRemainingMs: 0 }),
  );
  expect(plan.status.owner).toMatchObject({ uid: "uid-2", generation: 2 });
  expect(plan.status.history[0]).toMatchObject({ generation: 1, pod: "run-1", reason: "LeaseExpired" });
  expect(plan.actions).toEqual([{ kind: "grant" }]);
  expect(plan.events.map(({ reason }) => reason)).toEqual(["LeaseExpired", "Granted"]);
});

test("an expired Lease stays its owner's while no candidate is ready: it may still come back", () => {
  const status = owned({ attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }] });
  const pods = [aPod(1), aPod(2, { sidecarRunning: false })];
  const plan = decide(aSnapshot({ status, pods, lease: aLease(1, 1), leaseUnchangedMs: 12_000, leaseRemainingMs: 0 }));
  expect(plan.status.owner?.generation).toBe(1);
  expect(plan.actions).toEqual([]);
  // Not at once, which would be a loop; but it is looked at again: a renewal alone wakes nobody.
  expect(plan.requeueAfterMs).toBe(6_000);
});

test("a candidate that is no longer needed is deleted when the owner renews again", () => {
  const status = owned({ attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }] });
  const plan = decide(aSnapshot({ status, pods: [aPod(1), aPod(2)], lease: aLease(1, 1) }));
  expect(plan.status.candidates).toEqual([]);
  expect(plan.actions).toEqual([{ kind: "deletePod", pod: "run-2", uid: "uid-2" }]);
});

test("of two candidates the one that is ready is kept, though the other one is older: fewer standbys cost no takeover", () => {
  const candidates = [2, 3].map((attempt) => ({ attempt, pod: `run-${attempt}` }));
  const status = { generation: 1, attempt: 3, candidates };
  const pods = [aPod(2, { sidecarRunning: false, waitingFor: "scheduling" }), aPod(3)];
  const plan = decide(aSnapshot({ status, pods, lease: aLease(1, 1, { holder: null }) }));
  expect(plan.status).toMatchObject({ generation: 2, owner: { pod: "run-3" }, candidates: [] });
  expect(plan.actions).toEqual([{ kind: "grant" }, { kind: "deletePod", pod: "run-2", uid: "uid-2" }]);
});

test("a first failure is succeeded at once, the next ones back off exponentially and end at backoffLimit", () => {
  const first = decide(aSnapshot({ status: owned(), pods: [aPod(1, { phase: "Failed" })], lease: aLease(1, 1) }));
  expect(kinds(first)).toEqual(["createPod"]);
  const failed = aPod(1, { phase: "Failed" });
  const waits = decide(
    aSnapshot({ status: { attempt: 1, failures: 3, lastFailureTime: "2026-11-29T13:00:00Z" }, pods: [failed] }),
  );
  expect(waits.actions).toEqual([]);
  expect(waits.requeueAfterMs).toBe(4_000);
  expect(condition(waits, "Owned")?.reason).toBe("BackingOff");
  const spec = aSpec({ backoffLimit: 0 });
  const ends = decide(aSnapshot({ spec, status: owned(), pods: [failed], lease: aLease(1, 1) }));
  expect(condition(ends, "Failed")).toMatchObject({ status: "True", reason: "BackoffLimitExceeded" });
  expect(ends.status.completionTime).toBe("2026-11-29T13:00:00Z");
});

/** The status of an owner that has raised its fence. */
const raised = { fence: 1, fences: [{ database: "ledger", generation: 1, incarnation: "1/1/1/1" }] };

test("a standby starts after the owner's raise: a takeover has the processor for itself; one that is there is kept", () => {
  const parts = { spec: aSpec({ standbys: { count: 1 } }), pods: [aPod(1), aPod(2)], lease: aLease(1, 1) };
  expect(decide(aSnapshot({ ...parts, status: owned({ attempt: 1 }), pods: [aPod(1)] })).actions).toEqual([]);
  const standby = { attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }] };
  expect(decide(aSnapshot({ ...parts, status: owned(standby) })).actions).toEqual([]);
  expect(kinds(decide(aSnapshot({ ...parts, status: owned({ ...raised, attempt: 1 }), pods: [aPod(1)] })))).toEqual([
    "createPod",
  ]);
  // Of two candidates that are wanted the standby is there: it is granted, and nothing starts beside it.
  const gone = decide(aSnapshot({ ...parts, status: owned({ ...raised, ...standby }), pods: [aPod(2)] }));
  expect(kinds(gone)).toEqual(["grant"]);
});

test("an owner that is overdue or leaves has its successor in a standby that is ready: no other pod is made in front of the grant", () => {
  const spec = aSpec({ standbys: { count: 1 } });
  const status = owned({ ...raised, attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }] });
  const overdue = { lease: aLease(1, 1), leaseUnchangedMs: 6_000, leaseRemainingMs: 4_000 };
  const after = (standby: Partial<PodView>, atWork: Partial<PodView> = {}, change: object = overdue): string[] =>
    kinds(decide(aSnapshot({ spec, status, pods: [aPod(1, atWork), aPod(2, standby)], ...change })));
  expect(after({})).toEqual([]);
  expect(after({}, { deleting: true }, { lease: aLease(1, 1) })).toEqual([]);
  // One that is not may never be.
  expect(after({ sidecarRunning: false })).toEqual(["createPod"]);
});

test("standbys that fail at once beside a healthy owner back off too", () => {
  const spec = aSpec({ standbys: { count: 1 } });
  const status = owned({ ...raised, attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }], failures: 3 });
  const pods = [aPod(1), aPod(2, { phase: "Failed", failure: "OutOfcpu" })];
  const plan = decide(aSnapshot({ spec, status, pods, lease: aLease(1, 1) }));
  expect(plan.status).toMatchObject({ failures: 4, candidates: [] });
  expect(plan.actions).toEqual([]);
  expect(condition(plan, "Owned")?.status).toBe("True");
  expect(plan.requeueAfterMs).toBe(6_000);
  const later = decide(aSnapshot({ spec, status: plan.status, pods, lease: aLease(1, 1), wallMs: WALL_MS + 8_000 }));
  expect(later.actions).toEqual([{ kind: "createPod", attempt: 3, closer: false, closes: [] }]);
});

test("a candidate that was evicted has not failed: backoffLimit 0 still runs the job (D14)", () => {
  const status = { attempt: 1, candidates: [{ attempt: 1, pod: "run-1" }] };
  const pods = [aPod(1, { phase: "Failed", leaving: "Evicted" })];
  const plan = decide(aSnapshot({ spec: aSpec({ backoffLimit: 0 }), status, pods }));
  expect(plan.status).toMatchObject({ failures: 0, candidates: [{ pod: "run-2" }] });
  expect(condition(plan, "Failed")?.status).toBe("False");
  expect(plan.events).toMatchObject([{ type: "Warning", reason: "Evicted" }]);
});

test("a wall clock that was set back delays nothing for longer than the backoff", () => {
  const status = { attempt: 1, failures: 2, lastFailureTime: "2027-11-29T13:00:00Z" };
  const plan = decide(aSnapshot({ status }));
  expect(plan.status.lastFailureTime).toBe("2026-11-29T13:00:00Z");
  expect(plan.requeueAfterMs).toBe(2_000);
});

const supersededAt = (until: string, wallMs = WALL_MS): Plan => {
  const past = {
    generation: 1,
    pod: "run-1",
    uid: "uid-1",
    from: until,
    until,
    reason: "LeaseExpired",
    rejectedWrites: 0,
  };
  const status = { generation: 2, attempt: 2, owner: owner(2, 2), history: [past] };
  return decide(aSnapshot({ status, pods: [aPod(1), aPod(2)], lease: aLease(2, 2), wallMs }));
};

test("a superseded pod lingers to see the refusal, then is deleted", () => {
  expect(supersededAt("2026-11-29T12:59:30Z").actions).toEqual([]);
  expect(supersededAt("2026-11-29T12:58:00Z").actions).toEqual([{ kind: "deletePod", pod: "run-1", uid: "uid-1" }]);
});

test.each(["2026-11-29T13:00:02Z", "2027-11-29T13:00:00Z"])(
  "a superseded pod has its minute, and no more, where the clock is behind its end (%s)",
  (until) => {
    const plan = supersededAt(until);
    expect(plan.actions).toEqual([]);
    const [past] = plan.status.history;
    expect(past?.until).toBe("2026-11-29T13:00:00Z");
    expect(kinds(supersededAt(past?.until ?? "", WALL_MS + 59_000))).toEqual([]);
    expect(kinds(supersededAt(past?.until ?? "", WALL_MS + 61_000))).toEqual(["deletePod"]);
  },
);

test("a pod name taken by somebody else is given up for the next attempt", () => {
  const plan = decide(
    aSnapshot({ status: { attempt: 1, candidates: [{ attempt: 1, pod: "run-1" }] }, burnedAttempts: [1] }),
  );
  expect(plan.status.candidates).toEqual([{ attempt: 2, pod: "run-2" }]);
  expect(plan.actions).toEqual([{ kind: "createPod", attempt: 2, closer: false, closes: [] }]);
});

test("a candidate of an older spec is replaced: the change may be what it waits for", () => {
  const status = { attempt: 1, candidates: [{ attempt: 1, pod: "run-1" }] };
  const plan = decide(aSnapshot({ status, pods: [aPod(1, { outdated: true, waitingFor: "ImagePullBackOff" })] }));
  expect(plan.status).toMatchObject({ failures: 0, generation: 0 });
  expect(plan.actions).toEqual([
    { kind: "createPod", attempt: 2, closer: false, closes: [] },
    { kind: "deletePod", pod: "run-1", uid: "uid-1" },
  ]);
});

test("an owner of an older spec is replaced only while its application has not started", () => {
  const after = (change: Partial<PodView>, template: Snapshot["template"] = { ok: true }): Plan =>
    decide(
      aSnapshot({ status: owned(), template, pods: [aPod(1, { outdated: true, ...change })], lease: aLease(1, 1) }),
    );
  const idle = after({});
  expect(idle.status.history[0]).toMatchObject({ generation: 1, reason: "SpecChanged" });
  expect(idle.status.failures).toBe(0);
  // At once, not after the time in which a superseded application may see the refusal.
  expect(kinds(idle)).toEqual(["createPod", "deletePod"]);
  expect(after({ applicationStarted: true }).status.owner?.generation).toBe(1);
  // One that is started early has not begun before it is served.
  expect(after({ applicationStarted: true, startedEarly: true }).status.history[0]?.reason).toBe("SpecChanged");
  const unfit = { ok: false, reason: "InvalidTemplate", message: "x" } as const;
  expect(after({}, unfit).status.owner?.generation).toBe(1);
});

test("a database that is added costs an owner at work neither its standby nor what it has made up for", () => {
  const fences = [{ database: "ledger", generation: 1, incarnation: "x", secretName: "ledger-db" }];
  const report = JSON.stringify({
    generation: 1,
    fences: [{ ...fences[0], previousGeneration: null, tookMs: 1, sessionsEnded: 0 }],
    failures: [],
    served: true,
  });
  const databases = ["ledger", "audit"].map((name, i) => ({ name, secretName: `${name}-db`, port: 5432 + i }));
  const after = (applicationStarted: boolean): Plan =>
    decide(
      aSnapshot({
        spec: aSpec({ standbys: { count: 1 }, databases }),
        status: owned({ fences, failures: 2, owner: { ...owner(1, 1), since: "2026-11-29T12:40:00Z" } }),
        pods: [aPod(1, { phase: "Running", applicationStarted })],
        lease: aLease(1, 1, { report }),
      }),
    );
  expect(kinds(after(true))).toEqual(["createPod"]);
  expect(after(true).status.failures).toBe(0);
  // It still raises: the standby's start would take processor time from that.
  expect(kinds(after(false))).toEqual([]);
  expect(after(false).status.failures).toBe(2);
});
