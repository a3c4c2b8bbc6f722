/** Suspension and deletion: pods are stopped, fences are closed, and only then it is said, or the FencedJob let go (INV-3). */
import { expect, test } from "vitest";
import { aLease, aPod, aSnapshot, aSpec, condition, kinds, owned, owner } from "../testing/snapshots.ts";
import { decide } from "./decide.ts";
import type { Plan } from "./draft.ts";
import type { Snapshot } from "./snapshot.ts";

const suspended = aSpec({ suspend: true });
const deleted: Partial<Snapshot> = { job: { ...aSnapshot().job, deleting: true } };
const aFence = (change: object = {}) => ({
  database: "ledger",
  generation: 1,
  incarnation: "x",
  secretName: "ledger-db",
  ...change,
});
const past = (reason: string, generation = 1) => ({
  generation,
  pod: `run-${generation}`,
  uid: `uid-${generation}`,
  from: "2026-11-29T12:58:00Z",
  until: "2026-11-29T12:59:00Z",
  reason,
  rejectedWrites: 0,
});
const ended = (reason: string, fence: object = aFence()) => ({
  generation: 1,
  attempt: 1,
  fences: [fence],
  history: [past(reason)],
});
const report = (closed: boolean, generation = 1): string =>
  JSON.stringify({
    generation,
    fences: [
      {
        database: "ledger",
        generation,
        previousGeneration: null,
        incarnation: "x",
        tookMs: 1,
        sessionsEnded: 0,
        closed,
      },
    ],
    failures: [],
  });

test("a FencedJob is held before anything is made of it that would have to be closed", () => {
  const plan = decide(aSnapshot({ job: { ...aSnapshot().job, finalized: false } }));
  expect(plan.actions).toEqual([{ kind: "addFinalizer" }]);
  expect(plan.status.candidates).toEqual([]);
});

test("what an owner's sidecar has closed at its end needs no closer", () => {
  const lease = aLease(1, 1, { holder: null, report: report(true) });
  const status = owned({ fences: [aFence()] });
  const after = (change: Partial<Snapshot>): Plan =>
    decide(aSnapshot({ status, lease, pods: [aPod(1, { phase: "Failed", deleting: true })], ...change }));
  const suspends = after({ spec: suspended });
  expect(suspends.status.fences).toMatchObject([{ closed: true }]);
  expect(condition(suspends, "Suspended")).toMatchObject({ status: "True", reason: "Stopped" });
  expect(condition(suspends, "FenceRaised")).toMatchObject({ status: "False", reason: "FenceClosed" });
  expect(kinds(suspends)).toEqual([]);
  expect(kinds(after(deleted))).toEqual(["removeFinalizer"]);
});

test("INV-9: the report of another generation closes nothing", () => {
  const status = { generation: 2, attempt: 2, fences: [aFence({ generation: 2 })], history: [past("PodGone", 2)] };
  const lease = aLease(1, 1, { holder: null, report: report(true) });
  const plan = decide(aSnapshot({ spec: suspended, status, lease }));
  expect(condition(plan, "Suspended")?.status).toBe("False");
});

test.each([
  ["suspended", { spec: suspended }],
  ["deleted", deleted],
])(
  "a fence that is open when the job is %s is closed by a pod of its own, with a generation of its own",
  (_what, change) => {
    const first = decide(aSnapshot({ ...change, status: ended("PodGone"), lease: aLease(1, 1) }));
    const closes = [{ database: "ledger", secretName: "ledger-db" }];
    expect(first.actions).toEqual([{ kind: "createPod", attempt: 2, closer: true, closes }]);
    expect(first.status.candidates).toEqual([{ attempt: 2, pod: "run-2", closes: true }]);
    const granted = decide(aSnapshot({ ...change, status: first.status, lease: aLease(1, 1), pods: [aPod(2)] }));
    expect(granted.actions).toEqual([{ kind: "grant" }]);
    expect(granted.status.owner).toMatchObject({ pod: "run-2", generation: 2, closes: true });
    const working = { ...granted.status, owner: { ...granted.status.owner, leaseUID: "lease-1" } };
    const closing = decide(aSnapshot({ ...change, status: working, lease: aLease(2, 2), pods: [aPod(2)] }));
    expect(closing.actions).toEqual([]);
    expect(condition(closing, "FenceRaised")).toMatchObject({ status: "False", reason: "FenceClosing" });
    const pods = [aPod(2, { phase: "Succeeded" })];
    const closed = decide(
      aSnapshot({ ...change, status: closing.status, lease: aLease(2, 2, { holder: null }), pods }),
    );
    expect(closed.status.fences).toMatchObject([{ database: "ledger", closed: true }]);
    // INV-9: its success is not the job's.
    expect(closed.status.completionTime).toBeUndefined();
    if (change === deleted) expect(kinds(closed)).toEqual(["removeFinalizer"]);
    else expect(condition(closed, "Suspended")?.status).toBe("True");
  },
);

test("an owner that cannot be reached is waited for as long as its Lease lasts, and then closed behind", () => {
  const status = owned({ fences: [aFence()] });
  const pods = [aPod(1, { phase: "Running", deleting: true })];
  const lasting = decide(aSnapshot({ spec: suspended, status, pods, lease: aLease(1, 1), leaseUnchangedMs: 7_000 }));
  expect(lasting.status.owner?.generation).toBe(1);
  expect(kinds(lasting)).toEqual([]);
  const over = decide(
    aSnapshot({
      spec: suspended,
      status,
      pods,
      lease: aLease(1, 1, { report: "" }),
      leaseUnchangedMs: 10_000,
      leaseRemainingMs: 0,
    }),
  );
  expect(over.status.history[0]).toMatchObject({ generation: 1, reason: "LeaseExpired" });
  expect(kinds(over)).toEqual(["createPod"]);
});

test("a grant that is still on its way is taken back", () => {
  const status = { generation: 1, attempt: 1, owner: owner(1, 1, "") };
  const plan = decide(aSnapshot({ spec: suspended, status, pods: [aPod(1)] }));
  expect(plan.status.owner).toBeUndefined();
  expect(plan.status.history[0]).toMatchObject({ generation: 1, reason: "Suspended" });
  expect(kinds(plan)).toEqual(["deletePod"]);
});

test("a closer is nobody's owner once the job is resumed", () => {
  const status = { generation: 2, attempt: 2, owner: { ...owner(2, 2), closes: true }, fences: [aFence()] };
  const plan = decide(aSnapshot({ status, pods: [aPod(2)], lease: aLease(2, 2) }));
  expect(plan.status.history[0]).toMatchObject({ generation: 2, reason: "SpecChanged" });
  expect(kinds(plan)).toEqual(["createPod", "deletePod"]);
});

test("a closer that fails is followed by another after a while, and never fails the job", () => {
  const spec = aSpec({ suspend: true, backoffLimit: 0 });
  const status = { generation: 2, attempt: 2, owner: { ...owner(2, 2), closes: true }, fences: [aFence()] };
  const failed = decide(aSnapshot({ spec, status, pods: [aPod(2, { phase: "Failed" })], lease: aLease(2, 2) }));
  expect(failed.status.completionTime).toBeUndefined();
  expect(condition(failed, "Suspended")?.status).toBe("False");
});

test("a deletion is not held up for ever by a database that is gone: a Warning says what stays open, and how to close it", () => {
  const status = ended("PodGone");
  const at = (closingMs: number, change: Partial<Snapshot> = {}): Plan =>
    decide(aSnapshot({ job: { ...aSnapshot().job, deleting: true, closingMs }, status, ...change }));
  expect(kinds(at(59_000))).toEqual(["createPod"]);
  const over = at(60_000);
  expect(kinds(over)).toEqual(["removeFinalizer"]);
  expect(over.events).toMatchObject([{ type: "Warning", reason: "FenceNotClosed" }]);
  expect(over.events[0]?.message).toContain("fencedjob db close");
  // Nothing can be made in a namespace that is being deleted (D07).
  expect(kinds(at(0, { namespaceEnding: true }))).toEqual(["removeFinalizer"]);
});

test("a spec that cannot be read does not keep its FencedJob from being deleted", () => {
  const spec: Snapshot["spec"] = { ok: false, problems: ["x"] };
  const at = (pods: Snapshot["pods"]): Plan => decide(aSnapshot({ ...deleted, spec, status: ended("PodGone"), pods }));
  expect(kinds(at([aPod(1)]))).toEqual(["deletePod"]);
  expect(kinds(at([]))).toEqual(["removeFinalizer"]);
});

test("a database that has left the spec is closed by the next owner, which raises there without waiting for it", () => {
  const old = { database: "old", generation: 1, incarnation: "y", secretName: "old-db" };
  const status = ended("PodFailed");
  const next = decide(aSnapshot({ status: { ...status, fences: [aFence(), old] } }));
  expect(next.actions).toEqual([
    { kind: "createPod", attempt: 2, closer: false, closes: [{ database: "old", secretName: "old-db" }] },
  ]);
  const owns = (more: object): Plan => {
    const lease = aLease(2, 2, { report: JSON.stringify({ ...JSON.parse(report(false, 2)), ...more }) });
    const owned = { generation: 2, attempt: 2, owner: owner(2, 2), fences: [aFence(), old] };
    return decide(aSnapshot({ status: owned, lease, pods: [aPod(2)] }));
  };
  const failure = {
    database: "old",
    code: "LF015",
    message: "it does not answer",
    hint: "",
    final: false,
    floor: null,
  };
  const waiting = owns({ unclosed: [failure] });
  expect(condition(waiting, "FenceRaised")).toMatchObject({ status: "True", reason: "Raised" });
  expect(condition(waiting, "FenceRaised")?.message).toMatch(
    /old, which has left the spec, still lets generation 1 in .*does not answer/,
  );
  expect(waiting.status).toMatchObject({
    fence: 2,
    fences: [{ database: "ledger" }, { database: "old", generation: 1 }],
  });
  const raised = JSON.parse(report(true, 2)).fences[0];
  const closed = owns({ fences: [...JSON.parse(report(false, 2)).fences, { ...raised, database: "old" }] });
  expect(closed.status.fences).toMatchObject([{ database: "ledger", generation: 2 }]);
  // Somebody else's by now: ours is over there all the same.
  expect(owns({ unclosed: [{ ...failure, code: "LF001", final: true, floor: 9 }] }).status.fences).toHaveLength(1);
});
