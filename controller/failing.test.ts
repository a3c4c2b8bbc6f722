/** A job that has failed says so when nothing of it can write any more: its pods are stopped, and its fences closed, first (INV-3). */
import { expect, test } from "vitest";
import { aLease, aPod, aSnapshot, aSpec, condition, kinds, owned, owner } from "../testing/snapshots.ts";
import { decide } from "./decide.ts";
import type { Plan } from "./draft.ts";
import type { Snapshot } from "./snapshot.ts";

const spec = aSpec({ activeDeadlineSeconds: 60, backoffLimit: 0, standbys: { count: 1 } });
const fence = { database: "ledger", generation: 1, incarnation: "x", secretName: "ledger-db" };
const startTime = "2026-11-29T12:58:00Z";
const atWork = owned({ startTime, fence: 1, fences: [fence] });
const closedReport = JSON.stringify({
  generation: 1,
  fences: [{ ...fence, previousGeneration: null, tookMs: 1, sessionsEnded: 0, closed: true }],
  failures: [],
});

/** Of the status that a plan leaves behind, as the next reconcile sees it. */
function after(status: object, change: Partial<Snapshot> = {}): Plan {
  return decide(aSnapshot({ spec, status, pods: [aPod(1)], lease: aLease(1, 1), ...change }));
}

const closing = (closingMs: number, change: Partial<Snapshot["job"]> = {}): Pick<Snapshot, "job"> => ({
  job: { ...aSnapshot().job, closingMs, ...change },
});

test("INV-3: past its deadline an owner is stopped in order, and the job has failed when its fence is closed", () => {
  const late = after(atWork);
  expect(late.status).toMatchObject({ owner: { generation: 1 }, failing: { reason: "DeadlineExceeded" } });
  expect(late.events).toMatchObject([{ type: "Warning", reason: "DeadlineExceeded" }]);
  // A standby is neither made nor granted any more.
  expect(late.actions).toEqual([]);
  const stops = after(late.status);
  // Its Lease is left to it: the application has its grace period, and the sidecar closes behind it.
  expect(stops.actions).toEqual([{ kind: "deletePod", pod: "run-1", uid: "uid-1" }]);
  expect(condition(stops, "Failed")).toMatchObject({
    status: "False",
    reason: "DeadlineExceeded",
    message: "the job ran longer than 60 s; run-1 (generation 1) is being stopped",
  });
  expect(after(stops.status, { pods: [aPod(1, { deleting: true })] }).status.completionTime).toBeUndefined();
  const lease = aLease(1, 1, { holder: null, report: closedReport });
  // It ends well, as many do when they are asked to end: that does not take back what was decided.
  const over = after(stops.status, { pods: [aPod(1, { phase: "Succeeded", deleting: true })], lease });
  expect(condition(over, "Failed")).toMatchObject({ status: "True", reason: "DeadlineExceeded" });
  expect(condition(over, "Complete")?.status).toBe("False");
  expect(condition(over, "FenceRaised")?.reason).toBe("FenceClosed");
  expect(over.status).toMatchObject({
    startTime,
    summary: "Failed: DeadlineExceeded",
    history: [{ generation: 1, reason: "DeadlineExceeded" }],
  });
  expect(over.status.failing).toBeUndefined();
});

test("INV-3: the fence of an owner that is out of reach past its deadline is closed by a pod of its own", () => {
  const { status } = after(atWork);
  const expired = { leaseUnchangedMs: 10_000, leaseRemainingMs: 0, lease: aLease(1, 1, { report: "" }) };
  const lost = after(status, { ...expired, pods: [aPod(1, { deleting: true })] });
  expect(lost.actions).toMatchObject([{ kind: "createPod", attempt: 2, closer: true }]);
  expect(condition(lost, "Failed")?.message).toMatch(/the fence of ledger is being closed/);
  const pods = [aPod(1, { deleting: true }), aPod(2)];
  const granted = after(lost.status, { ...expired, pods });
  expect(granted.status.owner).toMatchObject({ pod: "run-2", generation: 2, closes: true });
  const held = { ...granted.status, owner: { ...owner(2, 2), closes: true } };
  const closed = after(held, { lease: aLease(2, 2), pods: [aPod(1), aPod(2, { phase: "Succeeded" })] });
  expect(closed.status.fences).toMatchObject([{ database: "ledger", closed: true }]);
  expect(condition(closed, "Failed")).toMatchObject({ status: "True", reason: "DeadlineExceeded" });
});

test("a deadline is not held up for ever by a database that is gone: a Warning says what stays open", () => {
  const status = { ...atWork, owner: undefined, failing: { reason: "DeadlineExceeded", message: "too late" } };
  const gone = { pods: [], lease: null };
  expect(condition(after(status, { ...gone, ...closing(61_000) }), "Failed")?.status).toBe("False");
  const over = after(status, { ...gone, ...closing(62_000) });
  expect(condition(over, "Failed")).toMatchObject({ status: "True", reason: "DeadlineExceeded" });
  expect(condition(over, "Failed")?.message).toMatch(/^too late; the fence of ledger could not be closed/);
  expect(over.events).toMatchObject([{ reason: "FenceNotClosed" }]);
  expect(over.events[0]?.message).toContain("fencedjob db close --job billing/run --generation 1 ");
  // The FencedJob is kept: only a deletion lets it go, and tries again to close.
  expect(over.actions).toEqual([]);
  expect(over.status.closers).toBeUndefined();
  expect(kinds(after(over.status, { ...gone, ...closing(0, { deleting: true }) }))).toEqual(["createPod"]);
});

test("a closer that is not waited for any longer is stopped: a job that has failed has no pod", () => {
  const failing = { reason: "DeadlineExceeded", message: "too late" };
  const status = { ...atWork, attempt: 2, generation: 2, owner: { ...owner(2, 2), closes: true }, failing };
  const over = after(status, { pods: [aPod(2)], lease: aLease(2, 2), ...closing(62_000) });
  expect(condition(over, "Failed")).toMatchObject({ status: "True", reason: "DeadlineExceeded" });
  expect(over.status.owner).toBeUndefined();
  expect(kinds(over)).toEqual(["clearLease", "deletePod"]);
});

test("a failure too many is one at once where the sidecar has closed, and otherwise when that is done", () => {
  const ended = (change: object): Plan => after(atWork, { pods: [aPod(1, { failed: true, ...change })] });
  const lease = aLease(1, 1, { holder: null, report: closedReport });
  const closed = after(owned({ fences: [fence] }), { pods: [aPod(1, { phase: "Failed" })], lease });
  expect(condition(closed, "Failed")).toMatchObject({ status: "True", reason: "BackoffLimitExceeded" });
  // Its application has ended, and its sidecar, which closes, is about to.
  const ends = ended({ phase: "Failed" });
  expect(ends.status).toMatchObject({ failing: { reason: "BackoffLimitExceeded" }, failures: 1 });
  const pods = [aPod(1, { failed: true })];
  const waits = after(ends.status, { pods, ...closing(0) });
  expect(kinds(waits)).toEqual(["deletePod"]);
  expect(waits.requeueAfterMs).toBe(10_000);
  expect(condition(after(waits.status, { pods, lease, ...closing(1_000) }), "Failed")?.status).toBe("True");
  expect(kinds(after(waits.status, { pods, ...closing(10_000) }))).toContain("createPod");
});

test("a job that is failing is not suspended, resumed or completed any more, but it can be deleted", () => {
  const { status } = after(atWork);
  const suspends = after(status, { spec: aSpec({ activeDeadlineSeconds: 60, suspend: true }) });
  expect(condition(suspends, "Failed")?.reason).toBe("DeadlineExceeded");
  expect(condition(suspends, "Suspended")?.reason).toBe("Pending");
  const longer = after(status, { spec: aSpec({ activeDeadlineSeconds: 6_000 }) });
  expect(longer.status.failing?.reason).toBe("DeadlineExceeded");
  const ended = { pods: [], lease: aLease(1, 1, { holder: null, report: closedReport }) };
  expect(kinds(after(status, { ...ended, ...closing(0, { deleting: true }) }))).toEqual(["removeFinalizer"]);
});
