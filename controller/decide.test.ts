import { expect, test } from "vitest";
import type { LeaseRecord } from "../lease/record.ts";
import { readSpec } from "./api/spec.ts";
import { readStatus } from "./api/status.ts";
import { decide } from "./decide.ts";
import type { Plan } from "./draft.ts";
import type { PodView, Snapshot } from "./snapshot.ts";

const WALL_MS = Date.parse("2026-11-29T13:00:00Z");

function aSpec(change: object = {}): Snapshot["spec"] {
  return readSpec({
    databases: [{ name: "ledger", secretName: "ledger-db" }],
    template: { spec: { restartPolicy: "Never", containers: [{ name: "app" }] } },
    ...change,
  });
}

function aPod(attempt: number, change: Partial<PodView> = {}): PodView {
  return {
    name: `run-${attempt}`,
    uid: `uid-${attempt}`,
    attempt,
    phase: "Pending",
    node: "node-1",
    deleting: false,
    outdated: false,
    applicationStarted: false,
    sidecarRunning: true,
    waitingFor: "",
    trouble: null,
    failure: "",
    lastWords: null,
    ...change,
  };
}

function aLease(attempt: number, generation: number, change: Partial<LeaseRecord> = {}): LeaseRecord {
  return {
    uid: "lease-1",
    resourceVersion: "10",
    holder: `uid-${attempt}`,
    holderPod: `run-${attempt}`,
    generation,
    durationMs: 10_000,
    renewTime: null,
    foreign: false,
    report: null,
    ...change,
  };
}

function aSnapshot(change: Partial<Omit<Snapshot, "status">> & { status?: object } = {}): Snapshot {
  const { status, ...rest } = change;
  return {
    job: { name: "run", namespace: "billing", generation: 1, deleting: false },
    spec: aSpec(),
    template: { ok: true },
    status: readStatus(status),
    pods: [],
    burnedAttempts: [],
    creationProblem: null,
    lease: null,
    holderElsewhere: false,
    leaseUnchangedMs: 0,
    leaseRemainingMs: 10_000,
    wallMs: WALL_MS,
    ...rest,
  };
}

const owner = (attempt: number, generation: number, leaseUID: string | undefined = "lease-1") => ({
  pod: `run-${attempt}`,
  uid: `uid-${attempt}`,
  node: "node-1",
  generation,
  since: "2026-11-29T12:59:00Z",
  ...(leaseUID && { leaseUID }),
});

const owned = (change: object = {}) => ({ generation: 1, attempt: 1, owner: owner(1, 1), ...change });

const kinds = (plan: Plan): string[] => plan.actions.map(({ kind }) => kind);
const condition = (plan: Plan, type: string) => plan.status.conditions.find((one) => one.type === type);

test("a new job reserves attempt 1 and creates its pod, and grants nothing", () => {
  const plan = decide(aSnapshot());
  expect(plan.status.attempt).toBe(1);
  expect(plan.actions).toEqual([{ kind: "createPod", attempt: 1 }]);
  expect(plan.status.generation).toBe(0);
  expect(condition(plan, "Owned")).toMatchObject({ status: "False", reason: "WaitingForPod" });
});

test("INV-8: the generation is reserved in the status of the very plan that writes the Lease", () => {
  const plan = decide(
    aSnapshot({ status: { generation: 4, attempt: 1, candidates: [{ attempt: 1, pod: "run-1" }] }, pods: [aPod(1)] }),
  );
  expect(plan.status.generation).toBe(5);
  expect(plan.status.owner).toMatchObject({ uid: "uid-1", generation: 5 });
  expect(plan.actions).toEqual([{ kind: "grant" }]);
});

test("a candidate whose sidecar does not run yet is granted nothing", () => {
  const pods = [aPod(1, { sidecarRunning: false, waitingFor: "image pull" })];
  const plan = decide(aSnapshot({ status: { attempt: 1, candidates: [{ attempt: 1, pod: "run-1" }] }, pods }));
  expect(plan.actions).toEqual([]);
  expect(plan.status.summary).toBe("Waiting: image pull");
});

test("a grant whose Lease write was lost is written again with the same pod and generation", () => {
  const plan = decide(aSnapshot({ status: { generation: 1, attempt: 1, owner: owner(1, 1, "") }, pods: [aPod(1)] }));
  expect(plan.status.generation).toBe(1);
  expect(plan.actions).toEqual([{ kind: "grant" }]);
});

test("INV-7: a grant in force is never given to another pod, and its pod is never granted again", () => {
  const status = owned({ candidates: [{ attempt: 2, pod: "run-2" }], attempt: 2 });
  const plan = decide(aSnapshot({ status, pods: [aPod(1), aPod(2)], lease: aLease(1, 1) }));
  expect(plan.status.owner).toMatchObject({ uid: "uid-1", generation: 1 });
  expect(kinds(plan)).not.toContain("grant");
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
  expect(plan.actions).toEqual([{ kind: "createPod", attempt: 2 }]);
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

test("a pending grant over an older Lease that moved on waits for it anew", () => {
  const status = { generation: 2, attempt: 2, owner: owner(2, 2, ""), history: [] };
  const plan = decide(aSnapshot({ status, pods: [aPod(1), aPod(2)], lease: aLease(1, 1), leaseRemainingMs: 9_000 }));
  expect(kinds(plan)).not.toContain("grant");
  expect(plan.requeueAfterMs).toBe(9_000);
});

test.each([
  ["failed", aPod(1, { phase: "Failed", failure: "container app ended with exit code 3 (Error)" }), "PodFailed"],
  ["gone", null, "PodGone"],
])("an owner whose pod is %s ends at once, without waiting for the Lease", (_what, pod, reason) => {
  const plan = decide(aSnapshot({ status: owned(), pods: pod ? [pod] : [], lease: aLease(1, 1) }));
  expect(plan.status.owner).toBeUndefined();
  expect(plan.status.history[0]).toMatchObject({ generation: 1, reason });
  expect(plan.status.failures).toBe(1);
});

test("failures back off exponentially and end at backoffLimit", () => {
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

test("INV-9: the owner's success completes the job and its name is taken off the Lease", () => {
  const plan = decide(aSnapshot({ status: owned(), pods: [aPod(1, { phase: "Succeeded" })], lease: aLease(1, 1) }));
  expect(condition(plan, "Complete")).toMatchObject({ status: "True", reason: "Completed" });
  expect(plan.status.summary).toBe("Complete");
  expect(plan.actions).toEqual([{ kind: "clearLease", holder: "uid-1", generation: 1 }]);
});

test("INV-9: a late success of a superseded pod changes nothing", () => {
  const history = [
    {
      generation: 1,
      pod: "run-1",
      uid: "uid-1",
      from: "2026-11-29T12:58:00Z",
      until: "2026-11-29T12:59:30Z",
      reason: "LeaseExpired",
      rejectedWrites: 0,
    },
  ];
  const status = { generation: 2, attempt: 2, owner: owner(2, 2), history };
  const plan = decide(aSnapshot({ status, pods: [aPod(1, { phase: "Succeeded" }), aPod(2)], lease: aLease(2, 2) }));
  expect(condition(plan, "Complete")?.status).toBe("False");
  expect(plan.status.owner?.generation).toBe(2);
});

test("INV-9: a report of an older generation is not believed", () => {
  const report = JSON.stringify({
    generation: 1,
    fences: [
      { database: "ledger", generation: 1, previousGeneration: null, incarnation: "x", tookMs: 1, sessionsEnded: 0 },
    ],
    failures: [],
  });
  const status = { generation: 2, attempt: 2, owner: owner(2, 2) };
  const plan = decide(aSnapshot({ status, pods: [aPod(2)], lease: aLease(2, 2, { report }) }));
  expect(condition(plan, "FenceRaised")).toMatchObject({ status: "False", reason: "Raising" });
  expect(plan.status.fences).toEqual([]);
});

test("a raised fence is told once, as status, condition and event", () => {
  const report = JSON.stringify({
    generation: 2,
    fences: [
      {
        database: "ledger",
        generation: 2,
        previousGeneration: 1,
        incarnation: "7/1/5/16385",
        tookMs: 38.4,
        sessionsEnded: 1,
      },
    ],
    failures: [],
  });
  const status = { generation: 2, attempt: 2, owner: owner(2, 2) };
  const first = decide(aSnapshot({ status, pods: [aPod(2)], lease: aLease(2, 2, { report }) }));
  expect(first.status).toMatchObject({
    fence: 2,
    fences: [{ database: "ledger", generation: 2, incarnation: "7/1/5/16385" }],
    summary: "Owned",
  });
  expect(first.events).toEqual([
    { type: "Normal", reason: "FenceRaised", message: "ledger: fence 1 → 2 in 38 ms, 1 older session ended" },
  ]);
  const again = decide(aSnapshot({ status: first.status, pods: [aPod(2)], lease: aLease(2, 2, { report }) }));
  expect(again.events).toEqual([]);
  expect(again.status).toEqual(first.status);
});

const failureReport = (failure: object): string =>
  JSON.stringify({
    generation: 1,
    fences: [],
    failures: [
      {
        database: "ledger",
        code: "LF015",
        message: "it does not answer",
        hint: "",
        final: false,
        floor: null,
        ...failure,
      },
    ],
  });

test.each([
  ["LF017", "SecretMissing"],
  ["LF016", "AuthenticationFailed"],
  ["LF015", "DatabaseUnreachable"],
  ["LF013", "DatabaseReadOnly"],
  ["LF011", "SchemaMissing"],
  ["LF012", "MissingRights"],
  ["LF010", "RoleNotFenceable"],
  ["LF004", "RaiseBlocked"],
])("a raise that fails with %s is a condition and one event with reason %s", (code, reason) => {
  const lease = aLease(1, 1, { report: failureReport({ code }) });
  const first = decide(aSnapshot({ status: owned(), pods: [aPod(1)], lease }));
  expect(condition(first, "FenceRaised")).toMatchObject({ status: "False", reason });
  expect(first.events.map((event) => event.reason)).toEqual([reason]);
  expect(first.status.owner?.generation).toBe(1);
  expect(decide(aSnapshot({ status: first.status, pods: [aPod(1)], lease })).events).toEqual([]);
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

test("a floor that would use up the numbers is not believed", () => {
  const lease = aLease(1, 1, { report: failureReport({ code: "LF001", final: true, floor: 2 ** 53 - 1 }) });
  expect(decide(aSnapshot({ status: owned(), pods: [aPod(1)], lease })).status.generation).toBe(1);
});

test("INV-7: a candidate that an edited Lease names is not granted anything any more: it is replaced", () => {
  const status = { generation: 1, attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }] };
  const plan = decide(aSnapshot({ status, pods: [aPod(2)], lease: aLease(2, 5), leaseRemainingMs: 0 }));
  expect(plan.status.owner).toBeUndefined();
  expect(plan.actions).toEqual([
    { kind: "createPod", attempt: 3 },
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

test("standbys that fail at once beside a healthy owner back off too", () => {
  const spec = aSpec({ standbys: { count: 1 } });
  const status = owned({ attempt: 2, candidates: [{ attempt: 2, pod: "run-2" }], failures: 3 });
  const pods = [aPod(1), aPod(2, { phase: "Failed", failure: "OutOfcpu" })];
  const plan = decide(aSnapshot({ spec, status, pods, lease: aLease(1, 1) }));
  expect(plan.status).toMatchObject({ failures: 4, candidates: [] });
  expect(plan.actions).toEqual([]);
  expect(condition(plan, "Owned")?.status).toBe("True");
  expect(plan.requeueAfterMs).toBe(6_000);
  const later = decide(aSnapshot({ spec, status: plan.status, pods, lease: aLease(1, 1), wallMs: WALL_MS + 8_000 }));
  expect(later.actions).toEqual([{ kind: "createPod", attempt: 3 }]);
});

test("a wall clock that was set back delays nothing for longer than the backoff", () => {
  const status = { attempt: 1, failures: 1, lastFailureTime: "2027-11-29T13:00:00Z" };
  const plan = decide(aSnapshot({ status }));
  expect(plan.status.lastFailureTime).toBe("2026-11-29T13:00:00Z");
  expect(plan.requeueAfterMs).toBe(1_000);
});

test("a Lease deleted under its owner is loss: the next pod gets the next generation", () => {
  const plan = decide(aSnapshot({ status: owned(), pods: [aPod(1)], lease: null }));
  expect(plan.status.history[0]).toMatchObject({ reason: "LeaseDeleted" });
  expect(plan.status.owner).toBeUndefined();
  expect(plan.actions).toContainEqual({ kind: "createPod", attempt: 2 });
});

test("a released Lease waits for its pod to tell how it ended", () => {
  const lease = aLease(1, 1, { holder: null });
  const ending = decide(aSnapshot({ status: owned(), pods: [aPod(1, { phase: "Running" })], lease }));
  expect(ending.status.owner?.generation).toBe(1);
  expect(condition(ending, "Owned")?.reason).toBe("Ending");
  const silent = decide(
    aSnapshot({ status: owned(), pods: [aPod(1, { phase: "Running" })], lease, leaseRemainingMs: 0 }),
  );
  expect(silent.status.history[0]?.reason).toBe("Released");
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

test("an invalid template stops new pods, and a running owner goes on", () => {
  const template = { ok: false as const, reason: "InvalidTemplate" as const, message: "no such field" };
  const fresh = decide(aSnapshot({ template }));
  expect(fresh.actions).toEqual([]);
  expect(condition(fresh, "Admitted")).toMatchObject({ status: "False", reason: "InvalidTemplate" });
  expect(fresh.events.map(({ reason }) => reason)).toEqual(["InvalidTemplate"]);
  const running = decide(aSnapshot({ template, status: owned(), pods: [aPod(1)], lease: aLease(1, 1) }));
  expect(running.status.owner?.generation).toBe(1);
  expect(running.actions).toEqual([]);
});

test("an invalid spec touches nothing and says every problem", () => {
  const spec = readSpec({ databases: [], lease: { durationSeconds: "ten" } });
  const plan = decide(aSnapshot({ spec, status: owned(), pods: [aPod(1)], lease: aLease(1, 1) }));
  expect(plan.status.owner?.generation).toBe(1);
  expect(plan.actions).toEqual([]);
  expect(condition(plan, "Admitted")?.message).toMatch(
    /spec\.lease\.durationSeconds.*spec\.databases.*spec\.template/s,
  );
});

test("suspend deletes every pod and says when none is left", () => {
  const spec = aSpec({ suspend: true });
  const stopping = decide(aSnapshot({ spec, status: owned(), pods: [aPod(1)], lease: aLease(1, 1) }));
  expect(stopping.actions).toEqual([{ kind: "deletePod", pod: "run-1", uid: "uid-1" }]);
  expect(condition(stopping, "Suspended")?.status).toBe("False");
  const stopped = decide(aSnapshot({ spec, status: { generation: 1 } }));
  expect(condition(stopped, "Suspended")).toMatchObject({ status: "True", reason: "Stopped" });
});

test("an owner that was stopped by suspend did not fail", () => {
  const spec = aSpec({ suspend: true });
  for (const pods of [[], [aPod(1, { phase: "Failed" })]]) {
    const plan = decide(aSnapshot({ spec, status: owned(), pods, lease: aLease(1, 1) }));
    expect(plan.status.history[0]).toMatchObject({ generation: 1, reason: "Suspended" });
    expect(plan.status.failures).toBe(0);
    expect(plan.events.map(({ type }) => type)).toEqual(["Normal"]);
  }
});

test("a job that is being deleted gets no new pod", () => {
  const job = { name: "run", namespace: "billing", generation: 1, deleting: true };
  expect(decide(aSnapshot({ job })).actions).toEqual([]);
  expect(decide(aSnapshot({ job, status: owned(), pods: [] })).actions).toEqual([]);
});

test("a superseded pod lingers to see the refusal, then is deleted", () => {
  const until = (iso: string) => ({
    generation: 2,
    attempt: 2,
    owner: owner(2, 2),
    history: [
      { generation: 1, pod: "run-1", uid: "uid-1", from: iso, until: iso, reason: "LeaseExpired", rejectedWrites: 0 },
    ],
  });
  const common = { pods: [aPod(1), aPod(2)], lease: aLease(2, 2) };
  expect(decide(aSnapshot({ status: until("2026-11-29T12:59:30Z"), ...common })).actions).toEqual([]);
  expect(decide(aSnapshot({ status: until("2026-11-29T12:58:00Z"), ...common })).actions).toEqual([
    { kind: "deletePod", pod: "run-1", uid: "uid-1" },
  ]);
});

test("refused writes of a superseded pod are counted in its history, once", () => {
  const history = [
    {
      generation: 1,
      pod: "run-1",
      uid: "uid-1",
      from: "2026-11-29T12:58:00Z",
      until: "2026-11-29T12:59:30Z",
      reason: "LeaseExpired",
      rejectedWrites: 0,
    },
  ];
  const pods = [aPod(1, { phase: "Failed", lastWords: { generation: 1, rejectedWrites: 2 } }), aPod(2)];
  const first = decide(
    aSnapshot({ status: { generation: 2, attempt: 2, owner: owner(2, 2), history }, pods, lease: aLease(2, 2) }),
  );
  expect(first.status.history[0]?.rejectedWrites).toBe(2);
  expect(first.events).toContainEqual({
    type: "Warning",
    reason: "WriteRefused",
    message: "2 writes of generation 1 (run-1) refused after its end",
  });
  expect(decide(aSnapshot({ status: first.status, pods, lease: aLease(2, 2) })).events).toEqual([]);
});

test("a pod name taken by somebody else is given up for the next attempt", () => {
  const plan = decide(
    aSnapshot({ status: { attempt: 1, candidates: [{ attempt: 1, pod: "run-1" }] }, burnedAttempts: [1] }),
  );
  expect(plan.status.candidates).toEqual([{ attempt: 2, pod: "run-2" }]);
  expect(plan.actions).toEqual([{ kind: "createPod", attempt: 2 }]);
});

test("activeDeadlineSeconds ends the job, ttlSecondsAfterFinished deletes it", () => {
  const late = decide(
    aSnapshot({
      spec: aSpec({ activeDeadlineSeconds: 60 }),
      status: owned({ startTime: "2026-11-29T12:58:00Z" }),
      pods: [aPod(1)],
      lease: aLease(1, 1),
    }),
  );
  expect(condition(late, "Failed")).toMatchObject({ status: "True", reason: "DeadlineExceeded" });
  const old = decide(
    aSnapshot({ spec: aSpec({ ttlSecondsAfterFinished: 60 }), status: { completionTime: "2026-11-29T12:58:00Z" } }),
  );
  expect(old.actions).toEqual([{ kind: "deleteJob" }]);
});

test("an unchanged world gives an unchanged status: no write, no event, no action", () => {
  const first = decide(aSnapshot({ status: owned(), pods: [aPod(1)], lease: aLease(1, 1) }));
  const second = decide(
    aSnapshot({ status: first.status, pods: [aPod(1)], lease: aLease(1, 1), wallMs: WALL_MS + 3_000 }),
  );
  expect(second.status).toEqual(first.status);
  expect([...second.events, ...second.actions]).toEqual([]);
});

test("a candidate of an older spec is replaced: the change may be what it waits for", () => {
  const status = { attempt: 1, candidates: [{ attempt: 1, pod: "run-1" }] };
  const plan = decide(aSnapshot({ status, pods: [aPod(1, { outdated: true, waitingFor: "ImagePullBackOff" })] }));
  expect(plan.status).toMatchObject({ failures: 0, generation: 0 });
  expect(plan.actions).toEqual([
    { kind: "createPod", attempt: 2 },
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
  const unfit = { ok: false, reason: "InvalidTemplate", message: "x" } as const;
  expect(after({}, unfit).status.owner?.generation).toBe(1);
});

test("a database that comes into the spec of a running owner joins with the next one, and is no fault of this one", () => {
  const fence = { database: "ledger", generation: 1, previousGeneration: null, incarnation: "x" };
  const fences = [{ ...fence, tookMs: 1, sessionsEnded: 0 }];
  const lease = aLease(1, 1, { report: JSON.stringify({ generation: 1, fences, failures: [] }) });
  const databases = ["ledger", "audit"].map((name, i) => ({ name, secretName: name, port: 5432 + i }));
  const pods = [aPod(1, { outdated: true, applicationStarted: true })];
  const plan = decide(aSnapshot({ spec: aSpec({ databases }), status: owned(), pods, lease }));
  expect(condition(plan, "FenceRaised")).toMatchObject({
    status: "True",
    message: "ledger accepts generation 1 only; audit joins with the next owner",
  });
});

test("an owner that was granted a longer duration than the spec has now is not overdue at its own pace", () => {
  const spec = aSpec({
    lease: { durationSeconds: 3, renewIntervalSeconds: 1, requestTimeoutSeconds: 1, marginSeconds: 0 },
  });
  const pods = [aPod(1, { outdated: true, applicationStarted: true })];
  const plan = decide(aSnapshot({ spec, status: owned(), pods, lease: aLease(1, 1), leaseUnchangedMs: 3_500 }));
  expect(plan.actions).toEqual([]);
  expect(condition(plan, "Owned")?.status).toBe("True");
});

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

test("an owner whose application cannot start is no silent one: condition and summary name the container's trouble", () => {
  const fence = { database: "ledger", generation: 1, previousGeneration: null, incarnation: "x" };
  const report = JSON.stringify({ generation: 1, fences: [{ ...fence, tookMs: 1, sessionsEnded: 0 }], failures: [] });
  const trouble = { reason: "ImagePullBackOff", text: "container app: ImagePullBackOff, no such image" };
  const plan = decide(aSnapshot({ status: owned(), pods: [aPod(1, { trouble })], lease: aLease(1, 1, { report }) }));
  expect(plan.status.summary).toBe("Owned, ImagePullBackOff");
  expect(condition(plan, "Owned")).toMatchObject({
    status: "True",
    message: "run-1 owns generation 1: container app: ImagePullBackOff, no such image",
  });
});

test("the active deadline does not run while the job is suspended", () => {
  const status = { generation: 1, attempt: 1, startTime: "2026-11-29T12:00:00Z" };
  const spec = { activeDeadlineSeconds: 60 };
  const suspended = decide(aSnapshot({ spec: aSpec({ ...spec, suspend: true }), status }));
  expect(suspended.status.completionTime).toBeUndefined();
  expect(suspended.status.startTime).toBeUndefined();
});
