/** What an end counts for, and how a job ends: success, failures, tries in place, deadlines, its time to live. */
import { expect, test } from "vitest";
import { aLease, aPod, aSnapshot, aSpec, condition, kinds, owned, owner, WALL_MS } from "../testing/snapshots.ts";
import { decide } from "./decide.ts";
import type { Plan } from "./draft.ts";
import type { PodView } from "./snapshot.ts";

test("tries in place count as failures, and at the limit no other is let in (C09)", () => {
  const spec = aSpec({ backoffLimit: 3 });
  const after = (retries: number): Plan =>
    decide(aSnapshot({ spec, status: owned({ failures: 1 }), pods: [aPod(1, { retries })], lease: aLease(1, 1) }));
  expect(after(2).status).toMatchObject({ failures: 3, owner: { generation: 1, retries: 2 } });
  const over = after(3);
  expect(over.status.failing?.reason).toBe("BackoffLimitExceeded");
  expect(over.actions).toEqual([]);
  const { status } = over;
  const stops = decide(aSnapshot({ spec, status, pods: [aPod(1, { retries: 4 })], lease: aLease(1, 1) }));
  // At once, not after the time in which a superseded application may see the refusal.
  expect(stops.actions).toEqual([{ kind: "deletePod", pod: "run-1", uid: "uid-1" }]);
  expect(stops.status).toMatchObject({ failures: 4, owner: { generation: 1 } });
});

test("INV-9: tries in place of a candidate whose application is started are not the owner's (C09)", () => {
  const spec = aSpec({ backoffLimit: 3, standbys: { count: 1, application: "Started" } });
  const pod = (retries: number): PodView =>
    aPod(1, { phase: "Running", startedEarly: true, applicationStarted: true, retries });
  const status = { attempt: 1, candidates: [{ attempt: 1, pod: "run-1" }] };
  const granted = decide(aSnapshot({ spec, status, pods: [pod(7)] }));
  expect(kinds(granted)).toContain("grant");
  const after = (retries: number): Plan =>
    decide(aSnapshot({ spec, status: granted.status, pods: [pod(retries)], lease: aLease(1, 1) }));
  expect(after(10).status).toMatchObject({ failures: 3, owner: { generation: 1 } });
  expect(after(11).status.failing?.reason).toBe("BackoffLimitExceeded");
});

test("ten minutes without a try in place make up for the tries before: the seventh of a year is not one too many (C09)", () => {
  const fences = [{ database: "ledger", generation: 1, incarnation: "x" }];
  let status: object = owned({ fence: 1, fences, owner: { ...owner(1, 1), since: "2026-01-01T00:00:00Z" } });
  const at = (retries: number, wallMs: number): Plan => {
    const plan = decide(aSnapshot({ status, pods: [aPod(1, { retries })], lease: aLease(1, 1), wallMs }));
    status = plan.status;
    return plan;
  };
  for (let retries = 1; retries <= 20; retries++) {
    const wallMs = WALL_MS + retries * 86_400_000;
    expect(at(retries, wallMs).status).toMatchObject({ failures: 1, owner: { generation: 1 } });
    // Seen again it is the same one.
    expect(at(retries, wallMs + 599_000).status.failures).toBe(1);
    expect(at(retries, wallMs + 600_000).status.failures).toBe(0);
  }
  const soon = (retries: number) => at(20 + retries, WALL_MS + 30 * 86_400_000 + retries * 1_000);
  for (let retries = 1; retries <= 6; retries++) expect(soon(retries).status.failures).toBe(retries);
  expect(soon(7).status.failing?.reason).toBe("BackoffLimitExceeded");
});

test("ten minutes of one owner with raised fences make up for earlier failures (INV-9)", () => {
  const after = (status: object, wallMs = WALL_MS): number =>
    decide(
      aSnapshot({
        status: owned({ failures: 5, fence: 1, owner: { ...owner(1, 1), since: "2026-11-29T12:50:00Z" }, ...status }),
        pods: [aPod(1)],
        lease: aLease(1, 1),
        wallMs,
      }),
    ).status.failures;
  expect(after({})).toBe(0);
  expect(after({}, WALL_MS - 1)).toBe(5);
  expect(after({ fence: undefined })).toBe(5);
  expect(after({ lastFailureTime: "2026-11-29T12:55:00Z" })).toBe(5);
});

test("INV-9: the owner's success completes the job and its name is taken off the Lease", () => {
  const plan = decide(aSnapshot({ status: owned(), pods: [aPod(1, { phase: "Succeeded" })], lease: aLease(1, 1) }));
  expect(condition(plan, "Complete")).toMatchObject({ status: "True", reason: "Completed" });
  expect(plan.status.summary).toBe("Complete");
  expect(plan.actions).toEqual([{ kind: "clearLease", holder: "uid-1", generation: 1 }]);
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
  expect(condition(late, "Failed")).toMatchObject({ status: "False", reason: "DeadlineExceeded" });
  expect(late.status).toMatchObject({ failing: { reason: "DeadlineExceeded" }, summary: "Failing: DeadlineExceeded" });
  const old = decide(
    aSnapshot({ spec: aSpec({ ttlSecondsAfterFinished: 60 }), status: { completionTime: "2026-11-29T12:58:00Z" } }),
  );
  expect(old.actions).toEqual([{ kind: "deleteJob" }]);
});

test("a time to live of 0 takes the FencedJob away with its end", () => {
  const spec = aSpec({ ttlSecondsAfterFinished: 0 });
  const plan = decide(
    aSnapshot({ spec, status: owned(), pods: [aPod(1, { phase: "Succeeded" })], lease: aLease(1, 1) }),
  );
  expect(condition(plan, "Complete")?.status).toBe("True");
  expect(kinds(plan)).toEqual(["clearLease", "deleteJob"]);
});

test("INV-9: a time that somebody wrote with an offset, as the API server takes it, does not run a job again", () => {
  const after = decide(
    aSnapshot({ status: { generation: 1, attempt: 1, completionTime: "2026-11-29T14:00:00+01:00" } }),
  );
  expect(after.status).toMatchObject({ generation: 1, completionTime: "2026-11-29T14:00:00+01:00" });
  expect(after.actions).toEqual([]);
});

test("INV-9: a job that has ended stays what it is, whatever its spec is changed to", () => {
  const first = decide(aSnapshot({ status: owned(), pods: [aPod(1, { phase: "Succeeded" })], lease: aLease(1, 1) }));
  const template = { ok: false as const, reason: "InvalidTemplate" as const, message: "no such field" };
  for (const change of [{ suspend: true }, { backoffLimit: 0, activeDeadlineSeconds: 1 }, { standbys: { count: 3 } }]) {
    const pods = [aPod(1, { phase: "Succeeded", outdated: true })];
    const parts = { status: first.status, pods, lease: aLease(1, 1, { holder: null }), wallMs: WALL_MS + 60_000 };
    const after = decide(aSnapshot({ ...parts, spec: aSpec(change), template }));
    expect(after.status).toMatchObject({ summary: "Complete", completionTime: "2026-11-29T13:00:00Z", candidates: [] });
    expect(condition(after, "Complete")?.status).toBe("True");
    expect(condition(after, "Failed")?.status).toBe("False");
    expect(after.actions).toEqual([]);
  }
});

test("INV-9: a deadline that has passed while nobody looked takes nothing from an owner that was done in time", () => {
  const spec = aSpec({ activeDeadlineSeconds: 60 });
  const after = (phase: "Succeeded" | "Failed" | "Running"): Plan => {
    const status = owned({ startTime: "2026-11-29T12:00:00Z" });
    return decide(aSnapshot({ spec, status, pods: [aPod(1, { phase })], lease: aLease(1, 1) }));
  };
  expect(condition(after("Succeeded"), "Complete")?.status).toBe("True");
  expect(condition(after("Failed"), "Failed")).toMatchObject({ status: "True", reason: "DeadlineExceeded" });
  expect(after("Running").status.failing?.reason).toBe("DeadlineExceeded");
});

test("the active deadline does not run while the job is suspended", () => {
  const status = { generation: 1, attempt: 1, startTime: "2026-11-29T12:00:00Z" };
  const spec = { activeDeadlineSeconds: 60 };
  const suspended = decide(aSnapshot({ spec: aSpec({ ...spec, suspend: true }), status }));
  expect(suspended.status.completionTime).toBeUndefined();
  expect(suspended.status.startTime).toBeUndefined();
  // Resumed, it counts from the next owner.
  const candidates = [{ attempt: 2, pod: "run-2" }];
  const resumed = { ...suspended.status, attempt: 2, candidates };
  const granted = decide(aSnapshot({ spec: aSpec(spec), status: resumed, pods: [aPod(2)] }));
  expect(granted.status).toMatchObject({ owner: { pod: "run-2" }, startTime: "2026-11-29T13:00:00Z" });
  expect(granted.status.completionTime).toBeUndefined();
});

test("the active deadline counts anew for an owner that is resumed before it was stopped", () => {
  const at = (status: object, suspend: boolean, wallMs = WALL_MS): Plan =>
    decide(
      aSnapshot({
        spec: aSpec({ activeDeadlineSeconds: 60, suspend }),
        status,
        pods: [aPod(1)],
        lease: aLease(1, 1),
        wallMs,
      }),
    );
  const suspended = at(owned({ startTime: "2026-11-29T12:59:30Z" }), true);
  const resumed = at(suspended.status, false);
  expect(resumed.status).toMatchObject({ owner: { generation: 1 }, startTime: "2026-11-29T13:00:00Z" });
  expect(at(resumed.status, false, WALL_MS + 60_000).status.failing?.reason).toBe("DeadlineExceeded");
});

test("the active deadline does not begin with a pod that only closes, where a resumed job's template is not accepted", () => {
  const status = owned({ owner: { ...owner(1, 1), closes: true } });
  const template = { ok: false as const, reason: "AdmissionUnavailable" as const, message: "a webhook is down" };
  const spec = aSpec({ activeDeadlineSeconds: 60 });
  const resumed = decide(aSnapshot({ spec, template, status, pods: [aPod(1)], lease: aLease(1, 1) }));
  expect(resumed.status.owner).toMatchObject({ closes: true });
  expect(resumed.status.startTime).toBeUndefined();
});

test("a deadline and a time to live begin with now, and no later, where the clock is behind their beginning", () => {
  const ahead = "2027-11-29T13:00:00Z";
  const spec = aSpec({ activeDeadlineSeconds: 60, ttlSecondsAfterFinished: 60 });
  const atWork = decide(aSnapshot({ spec, status: owned({ startTime: ahead }), pods: [aPod(1)], lease: aLease(1, 1) }));
  expect(atWork.status.startTime).toBe("2026-11-29T13:00:00Z");
  const complete = decide(aSnapshot({ spec, status: { generation: 1, attempt: 1, completionTime: ahead } }));
  expect(complete.requeueAfterMs).toBe(60_000);
  const over = decide(aSnapshot({ spec, status: complete.status, wallMs: WALL_MS + 60_000 }));
  expect(kinds(over)).toEqual(["deleteJob"]);
});

test("ten minutes without a failure make up for earlier ones, also where the clock is behind the owner's beginning", () => {
  const at = (status: object, wallMs: number): Plan =>
    decide(aSnapshot({ status, pods: [aPod(1, { applicationStarted: true })], lease: aLease(1, 1), wallMs }));
  const ahead = { failures: 2, owner: { ...owner(1, 1), since: "2027-11-29T13:00:00Z" } };
  const now = at(owned(ahead), WALL_MS);
  expect(now.status.failures).toBe(2);
  expect(at(now.status, WALL_MS + 600_000).status.failures).toBe(0);
});
