/** Suspension and deletion: pods are stopped, fences are closed, and only then it is said, or the FencedJob let go (INV-3). */
import { expect, test } from "vitest";
import { aLease, aPod, aSnapshot, aSpec, condition, failureReport, kinds, owned, owner } from "../testing/snapshots.ts";
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

test("INV-3: a fence whose Secret the status does not know is closed with that of the spec", () => {
  const { secretName, ...unknown } = aFence();
  const plan = decide(aSnapshot({ spec: suspended, status: ended("PodGone", unknown) }));
  const closes = [{ database: "ledger", secretName }];
  expect(plan.actions).toEqual([{ kind: "createPod", attempt: 2, closer: true, closes }]);
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

test.each(["Failed", "Succeeded"] as const)(
  "INV-3: a fence that an owner tells of first when its pod has %s is known to be open",
  (phase) => {
    const before = [aFence({ closed: true })];
    const status = owned({
      generation: 2,
      attempt: 2,
      owner: owner(2, 2),
      fences: before,
      history: [past("Released")],
    });
    const pods = [aPod(2, { phase })];
    const ends = decide(aSnapshot({ status, pods, lease: aLease(2, 2, { report: report(false, 2) }) }));
    expect(ends.status.owner).toBeUndefined();
    expect(ends.status.fences).toMatchObject([{ database: "ledger", generation: 2, secretName: "ledger-db" }]);
    expect(ends.status.fences[0]?.closed).toBeUndefined();
    const over = decide(aSnapshot({ ...deleted, status: ends.status, pods, lease: aLease(2, 2) }));
    expect(kinds(over)).toEqual(["createPod"]);
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

test.each([
  ["had none", []],
  ["had closed it", [aFence({ closed: true })]],
])(
  "INV-3: what an owner out of reach may have raised, unheard, is closed behind it, where the one before %s",
  (_what, fences) => {
    const status = { generation: 2, attempt: 2, owner: owner(2, 2), fences };
    const closes = [
      { kind: "createPod", attempt: 3, closer: true, closes: [{ database: "ledger", secretName: "ledger-db" }] },
    ];
    const after = (change: Partial<Snapshot>): Plan =>
      decide(aSnapshot({ spec: suspended, status, lease: aLease(2, 2, { report: "" }), ...change }));
    const expired = { leaseUnchangedMs: 10_000, leaseRemainingMs: 0 };
    const pods = [aPod(2, { phase: "Running", deleting: true })];
    for (const lost of [after({ pods: [] }), after({ pods, ...expired })]) {
      expect(lost.actions).toEqual(closes);
      expect(condition(lost, "Suspended")?.status).toBe("False");
    }
    // Its sidecar has ended in order, and told what it had raised: nothing.
    const gaveBack = after({ pods: [], lease: aLease(2, 2, { holder: null, report: report(true, 1) }) });
    expect(condition(gaveBack, "Suspended")?.status).toBe("True");
  },
);

test("in the foreground no closer is made that Kubernetes would delete with what the FencedJob owns", () => {
  const at = (closingMs: number, inForeground: boolean): Plan =>
    decide(
      aSnapshot({
        job: { ...aSnapshot().job, deleting: true, inForeground, closingMs },
        status: ended("LeaseDeleted"),
      }),
    );
  expect(kinds(at(0, true))).toEqual([]);
  expect(at(0, true).requeueAfterMs).toBe(10_000);
  expect(kinds(at(0, false))).toEqual(["createPod"]);
  // The pod of a node that is lost stays for as long as that.
  expect(kinds(at(10_000, true))).toEqual(["createPod"]);
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

const counted = (failures: number): object =>
  failures ? { closers: { failures, lastFailureTime: "2026-11-29T13:00:00Z" } } : {};

test.each([
  [
    "fails as owner",
    (failures: number) => ({ generation: 2, owner: { ...owner(2, 2), closes: true }, ...counted(failures) }),
    aLease(2, 2),
  ],
  [
    "ends before it is granted",
    (failures: number) => ({ candidates: [{ attempt: 2, pod: "run-2", closes: true }], ...counted(failures) }),
    aLease(1, 1),
  ],
])(
  "INV-9: a closer that %s is followed by another after a pause that grows, and never fails the job",
  (_, statusOf, lease) => {
    const spec = aSpec({ suspend: true, backoffLimit: 0 });
    const pods = [aPod(2, { phase: "Failed" })];
    const after = (failures: number): Plan =>
      decide(
        aSnapshot({
          spec,
          status: { attempt: 2, ...statusOf(failures), fences: [aFence()] },
          pods,
          lease,
        }),
      );
    // Most failures are the only one.
    expect(after(0).status).toMatchObject({ failures: 0, candidates: [{ attempt: 3 }], closers: { failures: 1 } });
    const often = after(3);
    expect(often.status).toMatchObject({ failures: 0, candidates: [], closers: { failures: 4 } });
    expect(often.status.completionTime).toBeUndefined();
    expect(often.requeueAfterMs).toBe(8_000);
    expect(condition(often, "Suspended")).toMatchObject({
      status: "False",
      message: "the fence of ledger is being closed; 4 failures, the next try begins at 2026-11-29T13:00:08Z",
    });
    const later = decide({
      ...aSnapshot({ spec, status: often.status, pods, lease }),
      wallMs: aSnapshot().wallMs + 8_000,
    });
    expect(kinds(later)).toContain("createPod");
  },
);

test("what the job's own failures put off does not put off its closing, and closers' failures are forgotten when it is resumed", () => {
  const failing = {
    attempt: 1,
    generation: 1,
    failures: 9,
    lastFailureTime: "2026-11-29T13:00:00Z",
    fences: [aFence()],
  };
  const closes = decide(aSnapshot({ spec: aSpec({ suspend: true, backoffLimit: 20 }), status: failing }));
  expect(closes.actions).toMatchObject([{ kind: "createPod", closer: true }]);
  const resumed = decide(aSnapshot({ status: { ...failing, failures: 0, ...counted(5) } }));
  expect(resumed.status.closers).toBeUndefined();
  expect(resumed.actions).toMatchObject([{ kind: "createPod", closer: false }]);
});

test("a deletion is not held up for ever by a database that is gone: a Warning says what stays open, and how to close it", () => {
  const status = ended("PodGone");
  const at = (closingMs: number, change: Partial<Snapshot> = {}): Plan =>
    decide(aSnapshot({ job: { ...aSnapshot().job, deleting: true, closingMs }, status, ...change }));
  expect(kinds(at(61_000))).toEqual(["createPod"]);
  const over = at(62_000);
  expect(kinds(over)).toEqual(["removeFinalizer"]);
  expect(over.events).toMatchObject([{ type: "Warning", reason: "FenceNotClosed" }]);
  // No higher one than ours: whoever made the job anew, here or in another cluster, is not to be closed.
  expect(over.events[0]?.message).toContain(
    `fencedjob db close --job billing/run --generation 1 --database-url "$(kubectl get secret -n billing ledger-db -o jsonpath='{.data.uri}' | base64 -d)"`,
  );
  // Nothing can be made in a namespace that is being deleted (D07).
  expect(kinds(at(0, { namespaceEnding: true }))).toEqual(["removeFinalizer"]);
  // A closer that has closed all, and whose pod is slow to end, leaves nothing open to tell of.
  const closed = {
    ...status,
    generation: 2,
    owner: { ...owner(2, 2), closes: true },
    fences: [{ ...aFence(), closed: true }],
  };
  const pods = [aPod(2, { phase: "Running" })];
  const job = { ...aSnapshot().job, deleting: true, closingMs: 62_000 };
  expect(decide(aSnapshot({ job, status: closed, pods, lease: aLease(2, 2) })).events).toEqual([]);
});

test("a closer has the drain time, in which it waits for an old transaction, behind the time to start and to try", () => {
  const spec = aSpec({ drainSeconds: 120 });
  const at = (closingMs: number): string[] =>
    kinds(
      decide(aSnapshot({ spec, job: { ...aSnapshot().job, deleting: true, closingMs }, status: ended("PodGone") })),
    );
  expect(at(60_000)).toEqual(["createPod"]);
  expect(at(179_000)).toEqual(["createPod"]);
  expect(at(180_000)).toEqual(["removeFinalizer"]);
});

test.each([
  ["suspended", { spec: suspended }],
  ["deleted", deleted],
])(
  "a job that is %s behind another cluster's raise has nothing left to close: nobody tries for ever",
  (_what, change) => {
    const closer = { ...owner(2, 2), closes: true };
    const status = { generation: 2, attempt: 2, owner: closer, fences: [aFence()], history: [past("NodeLost")] };
    const after = (failure: object): Plan => {
      const lease = aLease(2, 2, { report: JSON.stringify({ ...JSON.parse(failureReport(failure)), generation: 2 }) });
      return decide(aSnapshot({ ...change, status, lease, pods: [aPod(2, { phase: "Running" })] }));
    };
    // INV-3: its raise has closed ours, whatever its number is; so has any that is higher.
    for (const over of [
      { code: "LF005", floor: 1 },
      { code: "LF001", floor: 9, final: true },
    ]) {
      const plan = after(over);
      expect(plan.status.fences).toEqual([]);
      expect(plan.status.owner).toBeUndefined();
      expect(plan.actions).toContainEqual({ kind: "deletePod", pod: "run-2", uid: "uid-2" });
      expect(plan.events.map(({ reason }) => reason)).not.toContain("FenceNotClosed");
      const gone = { ...change, status: plan.status, lease: aLease(2, 2) };
      if (change === deleted) expect(kinds(plan)).toContain("removeFinalizer");
      else expect(condition(decide(aSnapshot(gone)), "Suspended")?.status).toBe("True");
    }
    // Nothing is known of a database that does not answer.
    expect(after({ code: "LF015" }).status).toMatchObject({ owner: { pod: "run-2" }, fences: [{ generation: 1 }] });
  },
);

test("a suspension does not wait for a pod that went with its node, whether it was a standby or is forgotten by the history", () => {
  const status = { generation: 1, attempt: 2, fences: [{ ...aFence(), closed: true }] };
  const after = (change: object): Plan =>
    decide(aSnapshot({ spec: suspended, status, pods: [aPod(2, { deleting: true, ...change })] }));
  expect(condition(after({ leaving: "PodDeleted" }), "Suspended")?.status).toBe("False");
  expect(condition(after({ leaving: "NodeLost" }), "Suspended")?.status).toBe("True");
});

test("INV-3: an owner that is refused as another cluster has raised leaves no fence of its predecessor's open", () => {
  const report = JSON.stringify({ ...JSON.parse(failureReport({ code: "LF005", floor: 7 })), generation: 2 });
  const status = { generation: 2, attempt: 2, owner: owner(2, 2), fences: [aFence()], fence: 1 };
  const plan = decide(aSnapshot({ status, lease: aLease(2, 2, { report }), pods: [aPod(2)] }));
  expect(plan.status).toMatchObject({ owner: { pod: "run-2" }, fences: [] });
  expect(plan.status.fence).toBeUndefined();
});

test("the command that closes by hand is there whole, however long the API server's reason is", () => {
  const job = { ...aSnapshot().job, deleting: true, closingMs: 63_000 };
  const plan = decide(aSnapshot({ job, status: ended("PodGone"), creationProblem: "x".repeat(2_000) }));
  expect(plan.events[0]?.message.slice(0, 500)).toMatch(/--job billing\/run --generation 1 .* No pod could be made/);
});

test("the command that closes by hand can be pasted for any name of a fence, and for each of many databases", () => {
  const names = ["ledger", "orders", "stock", "archive", "audit", "reports", "users", "mail"];
  const databases = names.map((name, at) => ({ name, secretName: `the-secret-of-${name}`, port: 5432 + at }));
  const spec = aSpec({ databases, fenceName: "Bob's run; $(id)" });
  const fences = databases.map(({ name, secretName }) => ({ ...aFence(), database: name, secretName }));
  const job = { ...aSnapshot().job, deleting: true, closingMs: 63_000 };
  const { events } = decide(aSnapshot({ spec, job, status: { ...ended("PodGone"), fences } }));
  expect(events).toHaveLength(names.length);
  for (const [at, { message }] of events.entries()) {
    expect(message).toContain(`the fence of ${names[at]} could not be closed`);
    expect(message).toContain(`--job 'Bob'\\''s run; $(id)' --generation 1 `);
    expect(message).toContain(`the-secret-of-${names[at]} -o jsonpath='{.data.uri}' | base64 -d)"`);
    // What the API server takes of an event.
    expect(Buffer.byteLength(message)).toBeLessThanOrEqual(1024);
  }
});

test("a deletion that was given up says so once, though somebody else's finalizer keeps the FencedJob", () => {
  const job = { ...aSnapshot().job, deleting: true, finalized: false, closingMs: 63_000 };
  const plan = decide(aSnapshot({ job, status: ended("PodGone") }));
  expect(plan.events).toEqual([]);
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
  // Set back to a time before ours: it lets in whom it let in then, and the next owner closes it.
  expect(owns({ unclosed: [{ ...failure, code: "LF003", final: true }] }).status.fences).toHaveLength(2);
});

test("INV-3: a fence that was raised in a database out of the spec before anybody looked is known to be open, and closed", () => {
  const books = aSpec({ databases: [{ name: "books", secretName: "books-db" }] });
  const pods = [
    aPod(1, { outdated: true, applicationStarted: true, databases: [{ name: "ledger", secretName: "ledger-db" }] }),
  ];
  const lease = aLease(1, 1, { report: report(false) });
  const looked = decide(aSnapshot({ spec: books, status: owned(), pods, lease }));
  expect(looked.status.fences).toMatchObject([{ database: "ledger", generation: 1, secretName: "ledger-db" }]);
  const lost = decide(aSnapshot({ spec: books, status: looked.status, lease }));
  const closes = [{ database: "ledger", secretName: "ledger-db" }];
  expect(lost.actions).toEqual([{ kind: "createPod", attempt: 2, closer: false, closes }]);
});
