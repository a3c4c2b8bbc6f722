/** How an ownership ends, and when the Lease may be claimed for another; what an end counts for is in ending.test.ts. */
import { expect, test } from "vitest";
import { aLease, aPod, aSnapshot, aSpec, condition, failureReport, kinds, owned, owner } from "../testing/snapshots.ts";
import { decide } from "./decide.ts";
import type { Plan } from "./draft.ts";
import type { PodView } from "./snapshot.ts";

const past = {
  pod: "run-0",
  uid: "uid-0",
  from: "2026-11-29T12:58:00Z",
  until: "2026-11-29T12:59:00Z",
  reason: "PodFailed",
  rejectedWrites: 0,
};

test("a pending grant over an older Lease that moved on waits for it anew", () => {
  const status = { generation: 2, attempt: 2, owner: owner(2, 2, ""), history: [] };
  const plan = decide(aSnapshot({ status, pods: [aPod(1), aPod(2)], lease: aLease(1, 1), leaseRemainingMs: 9_000 }));
  expect(kinds(plan)).not.toContain("grant");
  expect(plan.requeueAfterMs).toBe(9_000);
});

test("INV-7: who was named by an edit between the reservation and the grant has taken that for his grant: he is replaced", () => {
  const status = { generation: 2, attempt: 2, owner: owner(2, 2, ""), history: [] };
  const pods = [aPod(2)];
  const plan = decide(aSnapshot({ status, pods, lease: aLease(2, 7), leaseRemainingMs: 0 }));
  expect(plan.status.owner).toBeUndefined();
  expect(plan.status.history[0]).toMatchObject({ generation: 2, reason: "LeaseTaken" });
  expect(kinds(plan)).not.toContain("grant");
  // What is no generation is no grant to him either.
  const none = decide(aSnapshot({ status, pods, lease: aLease(2, 7, { generation: null }), leaseRemainingMs: 0 }));
  expect(kinds(none)).toContain("grant");
});

test.each([
  ["failed", aPod(1, { phase: "Failed", failure: "container app ended with exit code 3 (Error)" }), "PodFailed", 1],
  ["gone", null, "PodGone", 0],
  ["evicted", aPod(1, { phase: "Failed", leaving: "Evicted" }), "Evicted", 0],
])("an owner whose pod is %s ends at once, without waiting for the Lease", (_what, pod, reason, failures) => {
  const plan = decide(aSnapshot({ status: owned(), pods: pod ? [pod] : [], lease: aLease(1, 1) }));
  expect(plan.status.owner).toBeUndefined();
  expect(plan.status.history[0]).toMatchObject({ generation: 1, reason });
  expect(plan.status.failures).toBe(failures);
});

test("why a pod was taken away is remembered until it is gone, and is no failure of its work (D14)", () => {
  const status = owned({ failures: 6, lastFailureTime: "2026-11-29T12:00:00Z" });
  const leaves = decide(
    aSnapshot({ status, pods: [aPod(1, { deleting: true, leaving: "Preempted" })], lease: aLease(1, 1) }),
  );
  expect(leaves.status.owner).toMatchObject({ generation: 1, leaving: "Preempted" });
  // A successor is prepared meanwhile.
  expect(leaves.actions).toEqual([{ kind: "createPod", attempt: 2, closer: false, closes: [] }]);
  const gone = decide(aSnapshot({ status: leaves.status, lease: aLease(1, 1) }));
  expect(gone.status).toMatchObject({ failures: 6, history: [{ generation: 1, reason: "Preempted" }] });
  expect(condition(gone, "Failed")?.status).toBe("False");
});

test("a long-running owner that ends well, as it does when it is drained, does not complete the job", () => {
  const pods = [aPod(1, { phase: "Succeeded", longRunning: true, leaving: "Evicted" })];
  const plan = decide(aSnapshot({ status: owned(), pods, lease: aLease(1, 1) }));
  expect(condition(plan, "Complete")?.status).toBe("False");
  expect(plan.status).toMatchObject({ failures: 0, history: [{ reason: "Evicted" }] });
  expect(plan.actions).toEqual([{ kind: "createPod", attempt: 2, closer: false, closes: [] }]);
});

test("a long-running owner that has given its Lease back is succeeded at once; another is heard to the end", () => {
  const status = owned({ attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }] });
  const released = (change: Partial<PodView>): Plan =>
    decide(aSnapshot({ status, pods: [aPod(1, change), aPod(2)], lease: aLease(1, 1, { holder: null }) }));
  expect(released({ longRunning: true }).status.owner).toMatchObject({ pod: "run-2", generation: 2 });
  expect(released({}).status.owner).toMatchObject({ pod: "run-1", generation: 1 });
});

test("INV-9: the success of an application that was started early counts only if it was served under this grant", () => {
  const ends = (report: object | null, pod: Partial<PodView> = {}): Plan => {
    const text = report && JSON.stringify({ generation: 1, fences: [], failures: [], ...report });
    const pods = [aPod(1, { phase: "Succeeded", startedEarly: true, ...pod })];
    return decide(aSnapshot({ status: owned(), pods, lease: aLease(1, 1, { holder: null, report: text }) }));
  };
  expect(condition(ends({ served: true }), "Complete")?.status).toBe("True");
  for (const report of [{ served: false }, { generation: 2, served: true }, null]) {
    const plan = ends(report);
    expect(condition(plan, "Complete")?.status).toBe("False");
    expect(plan.status).toMatchObject({ failures: 1, history: [{ reason: "EndedUnserved" }] });
    expect(plan.events[0]?.message).toContain("must wait for its first connection");
  }
  // It is started as the owner: whatever it did, it did as that.
  expect(condition(ends(null, { startedEarly: false }), "Complete")?.status).toBe("True");
});

test("INV-8: a generation that the database has passed is not issued again: the floor lifts the counter", () => {
  const lease = aLease(1, 1, { report: failureReport({ code: "LF001", final: true, floor: 12 }) });
  const plan = decide(
    aSnapshot({
      status: owned({ attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }] }),
      pods: [aPod(1), aPod(2)],
      lease,
    }),
  );
  expect(plan.status.history[0]).toMatchObject({ generation: 1, reason: "RaiseRefused" });
  expect(plan.status.owner).toMatchObject({ pod: "run-2", generation: 13 });
});

test("INV-8: one refusal costs one generation, also when it is seen only after the Lease was given back", () => {
  const lease = aLease(1, 1, { holder: null, report: failureReport({ code: "LF001", final: true, floor: 12 }) });
  const candidates = [{ attempt: 2, pod: "run-2" }];
  const after = (status: object, pod: Partial<PodView> = {}): Plan["status"] =>
    decide(aSnapshot({ status: { ...status, attempt: 2, candidates }, pods: [aPod(1, pod), aPod(2)], lease })).status;
  const next = { failures: 0, owner: { pod: "run-2", generation: 13 }, history: [{ reason: "RaiseRefused" }] };
  expect(after(owned(), { phase: "Running" })).toMatchObject(next);
  // An application that was started early has ended for it: whatever with, it is not its work's end (INV-9).
  for (const phase of ["Failed", "Succeeded"] as const)
    expect(after(owned(), { phase, startedEarly: true })).toMatchObject(next);
  expect(after(owned(), { phase: "Failed", leaving: "Evicted" })).toMatchObject({
    owner: { generation: 13 },
    history: [{ reason: "Evicted" }],
  });
  // Its owner had ended before, as with its node; or the next number was reserved, as the Lease's watch was behind the pods'.
  const history = [{ ...past, generation: 1 }];
  expect(after({ generation: 1, history }).owner?.generation).toBe(13);
  expect(after({ generation: 2, history, owner: owner(2, 2, "") })).toMatchObject({
    generation: 13,
    owner: { pod: "run-2", generation: 13 },
  });
});

test("INV-9: a success behind a refusal, as of a database that was set back, does not complete the job", () => {
  const fences = [
    { database: "ledger", generation: 1, previousGeneration: null, incarnation: "x", tookMs: 1, sessionsEnded: 0 },
  ];
  const report = { ...JSON.parse(failureReport({ code: "LF001", final: true, floor: 1 })), fences };
  const lease = aLease(1, 1, { report: JSON.stringify(report) });
  const { status } = decide(aSnapshot({ status: owned(), pods: [aPod(1, { phase: "Succeeded" })], lease }));
  expect(status).toMatchObject({ failures: 1, history: [{ reason: "RaiseRefused" }] });
  expect(status.completionTime).toBeUndefined();
});

test("INV-8: a generation below the floor is no failure of the work: backoffLimit 0 still runs a job made anew", () => {
  const refused = (change: object, fences: object[] = [], status: object = {}): Plan => {
    const report = JSON.stringify({ ...JSON.parse(failureReport({ code: "LF001", final: true, ...change })), fences });
    const spec = aSpec({ backoffLimit: 0 });
    return decide(aSnapshot({ spec, status: owned(status), pods: [aPod(1)], lease: aLease(1, 1, { report }) }));
  };
  const anew = refused({ floor: 1 });
  expect(anew.status).toMatchObject({ failures: 0, generation: 1, candidates: [{ attempt: 2 }] });
  expect(anew.status.completionTime).toBeUndefined();
  // A fence that somebody else raised after ours, and the sidecar's own earlier life.
  const raised = { database: "ledger", generation: 1, incarnation: "x" };
  const more = { previousGeneration: null, tookMs: 1, sessionsEnded: 0 };
  expect(refused({ floor: 2 }, [{ ...raised, ...more }]).status.failures).toBe(1);
  expect(refused({ floor: 1 }, [], { fences: [raised] }).status.failures).toBe(1);
});

test.each([5_000_000, Number.MAX_SAFE_INTEGER])(
  "a generation that was edited to %i is refused by the database, and the count goes back to what it knows",
  (huge) => {
    const report = JSON.parse(failureReport({ code: "LF001", final: true, floor: 6 }));
    const status = owned({ generation: huge, owner: owner(1, huge), history: [{ ...past, generation: 7 }] });
    const after = (change: object): Plan => {
      const lease = aLease(1, huge, { report: JSON.stringify({ ...report, generation: huge, ...change }) });
      return decide(aSnapshot({ spec: aSpec({ backoffLimit: 0 }), status, pods: [aPod(1)], lease }));
    };
    const refused = after({});
    // 7 was issued, though this database does not know of it.
    expect(refused.status).toMatchObject({ generation: 7, failures: 0, history: [{ reason: "RaiseRefused" }, {}] });
    expect(kinds(refused)).toEqual(["createPod"]);
    // Another database has taken it: it can never be issued again.
    const fence = {
      database: "other",
      generation: huge,
      previousGeneration: null,
      incarnation: "x",
      tookMs: 1,
      sessionsEnded: 0,
    };
    expect(after({ fences: [fence] }).status.generation).toBe(huge);
  },
);

test("a floor that would use up the numbers is not believed", () => {
  const lease = aLease(1, 1, { report: failureReport({ code: "LF001", final: true, floor: 2 ** 53 - 1 }) });
  expect(decide(aSnapshot({ status: owned(), pods: [aPod(1)], lease })).status.generation).toBe(1);
});

test("… and each pod that it refuses has failed: with the same number for ever they would be made anew without a pause", () => {
  const lease = aLease(1, 1, { report: failureReport({ code: "LF001", final: true, floor: 3_000_000 }) });
  const { status } = decide(aSnapshot({ status: owned(), pods: [aPod(1)], lease }));
  expect(status).toMatchObject({ failures: 1, history: [{ reason: "RaiseRefused" }] });
});

test("INV-7: a candidate that an edited Lease names is not granted anything any more: it is replaced", () => {
  const status = { generation: 1, attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }] };
  const plan = decide(aSnapshot({ status, pods: [aPod(2)], lease: aLease(2, 5), leaseRemainingMs: 0 }));
  expect(plan.status.owner).toBeUndefined();
  expect(plan.actions).toEqual([
    { kind: "createPod", attempt: 3, closer: false, closes: [] },
    { kind: "deletePod", pod: "run-2", uid: "uid-2" },
  ]);
  expect(plan.events.map(({ reason }) => reason)).toEqual(["LeaseTaken"]);
});

test("an owner that never renewed has failed: a sidecar without network does not use up pods for ever", () => {
  const status = owned({ attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }] });
  const expired = (report: string | null): Plan =>
    decide(
      aSnapshot({
        status,
        pods: [aPod(1), aPod(2)],
        lease: aLease(1, 1, { report }),
        leaseUnchangedMs: 10_000,
        leaseRemainingMs: 0,
      }),
    );
  expect(expired(null).status).toMatchObject({ failures: 1, owner: { pod: "run-2" } });
  expect(expired("{}").status).toMatchObject({ failures: 0, owner: { pod: "run-2" } });
});

test("a Lease deleted under its owner is loss: the next pod gets the next generation", () => {
  const plan = decide(aSnapshot({ status: owned(), pods: [aPod(1)], lease: null }));
  expect(plan.status.history[0]).toMatchObject({ reason: "LeaseDeleted" });
  expect(plan.status.owner).toBeUndefined();
  expect(plan.actions).toContainEqual({ kind: "createPod", attempt: 2, closer: false, closes: [] });
});

test("a released Lease waits for its pod to tell how it ended", () => {
  const lease = aLease(1, 1, { holder: null });
  const ending = decide(aSnapshot({ status: owned(), pods: [aPod(1, { phase: "Running" })], lease }));
  expect(ending.status.owner?.generation).toBe(1);
  expect(condition(ending, "Owned")?.reason).toBe("Ending");
  const after = (leaseUnchangedMs: number): Plan =>
    decide(
      aSnapshot({
        status: owned(),
        pods: [aPod(1, { phase: "Running" })],
        lease,
        leaseUnchangedMs,
        leaseRemainingMs: 0,
      }),
    );
  expect(after(10_000).status.history[0]?.reason).toBe("Released");
  // A short lease has run out before a busy kubelet tells of a success, and the job would be run again.
  const short = after(4_000);
  expect(short.status).toMatchObject({ owner: { generation: 1 }, summary: "Ending" });
  expect(short.requeueAfterMs).toBe(6_000);
});

test("a Lease edited to name somebody else ends the ownership", () => {
  const lease = aLease(9, 1);
  const plan = decide(aSnapshot({ status: owned(), pods: [aPod(1)], lease }));
  expect(plan.status.history[0]?.reason).toBe("LeaseTaken");
});

test("a generation in an edited Lease is not believed", () => {
  const lease = aLease(9, 999_999);
  const plan = decide(
    aSnapshot({
      status: owned({ attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }] }),
      pods: [aPod(1), aPod(2)],
      lease,
    }),
  );
  expect(plan.status.generation).toBe(2);
});

test.each([
  ["its duration", { durationSeconds: 3, renewIntervalSeconds: 1, requestTimeoutSeconds: 1, marginSeconds: 0 }, {}],
  ["its interval", { durationSeconds: 10, renewIntervalSeconds: 1, requestTimeoutSeconds: 1, marginSeconds: 0 }, {}],
  ["the Lease's own duration, to a day", {}, { durationMs: 86_400_000 }],
])(
  "an owner renews at the pace that its pod was made for: a change of %s makes it neither overdue nor everlasting",
  (_what, lease, edited) => {
    const candidates = [{ attempt: 1, pod: "run-1" }];
    const { status } = decide(aSnapshot({ status: { attempt: 1, candidates }, pods: [aPod(1)] }));
    const pods = [aPod(1, { outdated: true, applicationStarted: true })];
    const after = (leaseUnchangedMs: number): Plan =>
      decide(aSnapshot({ spec: aSpec({ lease }), status, pods, lease: aLease(1, 1, edited), leaseUnchangedMs }));
    const atItsPace = after(5_900);
    expect(atItsPace.actions).toEqual([]);
    expect(condition(atItsPace, "Owned")?.status).toBe("True");
    expect(kinds(after(6_000))).toEqual(["createPod"]);
  },
);

test("a Lease that is not a FencedJob's is left alone, and the condition says what to do", () => {
  const lease = aLease(9, 1, { foreign: true, generation: null, holder: "other-app" });
  const status = { attempt: 1, candidates: [{ attempt: 1, pod: "run-1" }] };
  const plan = decide(aSnapshot({ status, pods: [aPod(1)], lease, leaseRemainingMs: 0 }));
  expect(plan.status).toMatchObject({ generation: 0, summary: "Waiting: a foreign Lease" });
  expect(kinds(plan)).toEqual([]);
  expect(condition(plan, "Owned")).toMatchObject({ reason: "LeaseForeign" });
  expect(plan.requeueAfterMs).toBe(30_000);
});

test("a Lease whose holder lives, though it is a pod of an earlier FencedJob, is waited for", () => {
  const status = { attempt: 1, candidates: [{ attempt: 1, pod: "run-1" }] };
  const given = { status, pods: [aPod(1)], lease: aLease(9, 4), leaseRemainingMs: 7_000 };
  const waits = decide(aSnapshot({ ...given, holderElsewhere: true }));
  expect(kinds(waits)).toEqual([]);
  expect(condition(waits, "Owned")).toMatchObject({ reason: "WaitingForLease" });
  expect(waits.requeueAfterMs).toBe(7_000);
  expect(kinds(decide(aSnapshot(given)))).toEqual(["grant"]);
});

test("an application that has failed is succeeded when its sidecar has given the Lease back, and not before (INV-5)", () => {
  const status = owned({ attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }] });
  const failure = "container app ended with exit code 3 (Error)";
  const pods = [aPod(1, { phase: "Running", applicationStarted: true, failed: true, failure }), aPod(2)];
  const parts = { spec: aSpec({ standbys: { count: 1 } }), pods, leaseRemainingMs: 10_000 };
  const held = decide(aSnapshot({ ...parts, status, lease: aLease(1, 1) }));
  expect(kinds(held)).not.toContain("grant");
  const lease = aLease(1, 1, { holder: null });
  const released = decide(aSnapshot({ ...parts, status: held.status, lease }));
  expect(kinds(released)).toContain("grant");
  expect(released.status).toMatchObject({
    failures: 1,
    owner: { pod: "run-2", generation: 2 },
    history: [{ generation: 1, reason: "PodFailed" }],
  });
});
