import { expect, test } from "vitest";
import {
  aLease,
  aPod,
  aSnapshot,
  aSpec,
  condition,
  failureReport,
  kinds,
  owned,
  owner,
  WALL_MS,
} from "../testing/snapshots.ts";
import { readSpec } from "./api/spec.ts";
import { decide } from "./decide.ts";
import type { Plan } from "./draft.ts";

/** Generation 1 has lost the job. */
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

test("a new job reserves attempt 1 and creates its pod, and grants nothing", () => {
  const plan = decide(aSnapshot());
  expect(plan.status.attempt).toBe(1);
  expect(plan.actions).toEqual([{ kind: "createPod", attempt: 1, closer: false, closes: [] }]);
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

test("INV-9: a late success of a superseded pod changes nothing", () => {
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

test.each([
  ["LF017", "SecretMissing"],
  ["LF016", "AuthenticationFailed"],
  ["LF015", "DatabaseUnreachable"],
  ["LF013", "DatabaseReadOnly"],
  ["LF011", "SchemaMissing"],
  ["LF012", "MissingRights"],
  ["LF010", "RoleNotFenceable"],
  ["LF004", "RaiseBlocked"],
  ["LF005", "RaisedElsewhere"],
])("a raise that fails with %s is a condition and one event with reason %s", (code, reason) => {
  const lease = aLease(1, 1, { report: failureReport({ code }) });
  const first = decide(aSnapshot({ status: owned(), pods: [aPod(1)], lease }));
  expect(condition(first, "FenceRaised")).toMatchObject({ status: "False", reason });
  expect(first.events.map((event) => event.reason)).toEqual([reason]);
  expect(first.status.owner?.generation).toBe(1);
  expect(decide(aSnapshot({ status: first.status, pods: [aPod(1)], lease })).events).toEqual([]);
});

test.each([
  ["two databases fail", ["it does not answer", "no password"]],
  ["an error is longer than a condition", ["x".repeat(2_000), "no password"]],
])("each failure is an event once, also when %s", (_what, messages) => {
  const spec = aSpec({
    databases: ["a", "b"].map((name, i) => ({ name, secretName: `${name}-db`, port: 5432 + i })),
  });
  const [failure] = JSON.parse(failureReport({})).failures;
  const failures = messages.map((message, i) => ({ ...failure, database: "ab"[i], message }));
  const lease = aLease(1, 1, { report: JSON.stringify({ generation: 1, fences: [], failures }) });
  const first = decide(aSnapshot({ spec, status: owned(), pods: [aPod(1)], lease }));
  expect(first.events).toHaveLength(2);
  const again = decide(aSnapshot({ spec, status: first.status, pods: [aPod(1)], lease }));
  expect(again.events).toEqual([]);
  expect(again.status).toEqual(first.status);
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

test("INV-11: who has lost its owner while its template is not accepted is told to have none", () => {
  const template = { ok: false as const, reason: "InvalidTemplate" as const, message: "no such field" };
  const held = decide(aSnapshot({ status: owned(), pods: [aPod(1)], lease: aLease(1, 1) }));
  expect(condition(held, "Owned")?.status).toBe("True");
  const pods = [aPod(1, { phase: "Failed" })];
  for (const failures of [0, 3]) {
    const lost = decide(aSnapshot({ template, status: { ...held.status, failures }, pods, lease: aLease(1, 1) }));
    expect(lost.status.owner).toBeUndefined();
    expect(condition(lost, "Owned")).toMatchObject({ status: "False", reason: "WaitingForPod" });
    expect(condition(lost, "Owned")?.message).toContain("Admitted");
    expect(lost.status.summary).toBe("Not admitted: InvalidTemplate");
  }
});

test.each(["InvalidTemplate", "AdmissionUnavailable"] as const)(
  "INV-11: a template that is not accepted now (%s) costs no standby its place, and no job its takeover",
  (reason) => {
    const template = { ok: false as const, reason, message: "failed calling webhook" };
    const parts = { template, spec: aSpec({ standbys: { count: 3, application: "NotStarted" } }), lease: aLease(1, 1) };
    const candidates = [2, 3].map((attempt) => ({ attempt, pod: `run-${attempt}` }));
    const fences = [{ database: "ledger", generation: 1, incarnation: "x" }];
    const status = owned({ attempt: 3, fence: 1, fences, candidates });
    const pods = [aPod(1, { applicationStarted: true }), aPod(2, { outdated: reason === "InvalidTemplate" })];
    // The one that is not there yet is not made.
    const waits = decide(aSnapshot({ ...parts, status, pods }));
    expect(waits.status.candidates).toEqual([{ attempt: 2, pod: "run-2" }]);
    expect(waits.actions).toEqual([]);
    const expired = { leaseUnchangedMs: 10_000, leaseRemainingMs: 0 };
    const over = decide(aSnapshot({ ...parts, status: waits.status, pods, ...expired }));
    expect(over.status.owner).toMatchObject({ pod: "run-2", generation: 2 });
  },
);

test.each(["Ledger_DB", "ledger db", "a;reboot", "-ledger"])(
  "a Secret cannot be called %s, and the commands of messages have its name",
  (secretName) => {
    const template = { spec: { containers: [{ name: "app" }] } };
    const problems = [expect.stringContaining("spec.databases.0.secretName")];
    expect(readSpec({ databases: [{ name: "ledger", secretName }], template })).toEqual({ ok: false, problems });
    expect(readSpec({ databases: [{ name: "ledger", secretName: "ledger.db-1" }], template }).ok).toBe(true);
  },
);

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
  const job = { ...aSnapshot().job, deleting: true };
  expect(kinds(decide(aSnapshot({ job })))).toEqual(["removeFinalizer"]);
  const neverSeen = owned({ owner: owner(1, 1, "") });
  expect(kinds(decide(aSnapshot({ job, status: neverSeen, pods: [] })))).toEqual(["removeFinalizer"]);
});

test("refused writes of a superseded pod are counted in its history, once", () => {
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

test("an unchanged world gives an unchanged status: no write, no event, no action", () => {
  const first = decide(aSnapshot({ status: owned(), pods: [aPod(1)], lease: aLease(1, 1) }));
  const second = decide(
    aSnapshot({ status: first.status, pods: [aPod(1)], lease: aLease(1, 1), wallMs: WALL_MS + 3_000 }),
  );
  expect(second.status).toEqual(first.status);
  expect([...second.events, ...second.actions]).toEqual([]);
});

test("… also where a report has half a character, which the API server stores as another one", () => {
  const fence = { database: "ledger", generation: 1, previousGeneration: null, incarnation: "x\ud83d" };
  const report = JSON.stringify({ generation: 1, fences: [{ ...fence, tookMs: 1, sessionsEnded: 0 }], failures: [] });
  const after = (status: object): Plan =>
    decide(aSnapshot({ status, pods: [aPod(1)], lease: aLease(1, 1, { report }) }));
  const first = after(owned()).status;
  const stored = JSON.parse(JSON.stringify(first).replaceAll("\\ud83d", "\ufffd"));
  expect(after(stored).status).toEqual(stored);
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

test("another cluster on this fence name is a condition of its own until it is taken over (no silent duel)", () => {
  const lease = aLease(1, 1, {
    report: failureReport({ code: "LF005", message: "cluster-2 has it.", hint: "kubectl patch …", floor: 7 }),
  });
  const foreign = decide(aSnapshot({ status: owned(), pods: [aPod(1)], lease }));
  expect(condition(foreign, "ForeignIssuer")).toMatchObject({ status: "True", reason: "RaisedElsewhere" });
  expect(condition(foreign, "ForeignIssuer")?.message).toContain("kubectl patch");
  expect(foreign.status.owner).toMatchObject({ generation: 1 });
  const spec = aSpec({ takeOver: { issuer: "cluster-2", generation: 7 } });
  const pods = [aPod(1, { outdated: true }), aPod(2)];
  const taken = decide(aSnapshot({ spec, status: foreign.status, pods: pods.slice(0, 1), lease }));
  expect(taken.status.history[0]).toMatchObject({ reason: "SpecChanged" });
  // INV-8: above what the other one has raised.
  const next = decide(aSnapshot({ spec, status: taken.status, pods, lease, leaseRemainingMs: 0 }));
  expect(next.status.owner).toMatchObject({ pod: "run-2", generation: 8 });
});
