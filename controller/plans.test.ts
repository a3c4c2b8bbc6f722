/**
 * What holds of every plan, whatever the snapshot is: also of those that only an edit of the status, of the Lease or of a pod could bring
 * about. What holds of histories is in sim/.
 */
import fc from "fast-check";
import { expect, test } from "vitest";
import { aLease, aPod, aSnapshot, aSpec, kinds, WALL_MS } from "../testing/snapshots.ts";
import { CONDITION_TYPES, REASONS } from "./api/reasons.ts";
import { readSpec } from "./api/spec.ts";
import { fencedJobStatus, GENERATION_MAX, HISTORY_MAX } from "./api/status.ts";
import { decide } from "./decide.ts";
import type { Plan } from "./draft.ts";
import { isAlive, isClosing, type PodView, type Snapshot } from "./snapshot.ts";

const RUNS = Number(process.env.FENCEDJOB_PLANS ?? 300);
/** The same ones each time, so that a red run is about what was changed; `FENCEDJOB_PLANS_SEED=` for others. */
const SEED = Number(process.env.FENCEDJOB_PLANS_SEED ?? 1);
const ATTEMPTS = [1, 2, 3, 4, 5];

const attempt = fc.constantFrom(...ATTEMPTS);
const generation = fc.oneof(
  { weight: 9, arbitrary: fc.integer({ min: 1, max: 7 }) },
  { weight: 1, arbitrary: fc.constantFrom(5_000_000, GENERATION_MAX - 1, GENERATION_MAX) },
);
const flag = (share = 0.2) => fc.integer({ min: 0, max: 99 }).map((n) => n < share * 100);
const time = fc
  .constantFrom(0, -1, -59, -61, -3_600, -86_400, 3_600)
  .map((seconds) => new Date(WALL_MS + seconds * 1_000).toISOString().replace(".000", ""));
const maybe = <T>(of: fc.Arbitrary<T>) => fc.option(of, { nil: undefined });
const text = fc.oneof(fc.constant("it does not answer"), fc.string({ maxLength: 20 }), fc.constant("💥".repeat(1_500)));
const database = fc.constantFrom("ledger", "audit", "old");

const failure = fc.record({
  database,
  code: fc.constantFrom("LF001", "LF003", "LF004", "LF005", "LF015", "LF017", "XX000"),
  message: text,
  hint: text,
  final: flag(0.3),
  floor: fc.oneof(fc.constant(null), fc.constant(0), generation),
});
const raised = fc.record({
  database,
  generation,
  previousGeneration: fc.oneof(fc.constant(null), generation),
  incarnation: fc.constantFrom("x", "y"),
  tookMs: fc.constant(1),
  sessionsEnded: fc.constantFrom(0, 2),
  closed: flag(),
});
const report = fc
  .record({
    generation,
    fences: fc.array(raised, { maxLength: 3 }),
    failures: fc.array(failure, { maxLength: 2 }),
    unclosed: fc.array(failure, { maxLength: 1 }),
    served: flag(0.5),
  })
  .map((told) => JSON.stringify(told));

const lease = fc
  .record({
    attempt,
    generation,
    change: fc.record(
      {
        holder: fc.constant(null),
        generation: fc.constant(null),
        report: fc.oneof(report, fc.constant("{"), fc.constant("{}")),
        foreign: fc.constant(true),
        durationMs: fc.constantFrom(1_000, 10_000, 10 ** 12),
      },
      { requiredKeys: [] },
    ),
  })
  .map(({ attempt, generation, change }) => aLease(attempt, generation, change));

const pod = (of: number) =>
  fc
    .record({
      phase: fc.constantFrom<PodView["phase"]>("Pending", "Running", "Running", "Succeeded", "Failed", "Unknown"),
      node: maybe(fc.constant("node-1")),
      deleting: flag(),
      outdated: flag(),
      applicationStarted: flag(0.5),
      startedEarly: flag(),
      applicationEnded: flag(),
      sidecarRunning: flag(0.7),
      waitingFor: text,
      trouble: fc.option(text.map((text) => ({ reason: "ImagePullBackOff", text }))),
      failure: text,
      leaving: fc.constantFrom(null, null, null, "Evicted" as const, "NodeLost" as const),
      longRunning: flag(),
      retries: fc.constantFrom(0, 0, 1, 9),
      lastWords: fc.option(fc.record({ generation, rejectedWrites: fc.integer({ min: -1, max: 3 }) })),
    })
    .map(({ node, ...change }) => ({ ...aPod(of, change), node }));

/** As the controller would have left it, with everything that may have happened since. */
const status = fc
  .record({
    generation,
    roles: fc.tuple(...ATTEMPTS.map(() => fc.constantFrom("none", "past", "past", "owner", "candidate", "candidate"))),
    closes: flag(),
    leaseUID: flag(0.8),
    leaving: maybe(fc.constant("Preempted")),
    retries: maybe(fc.constantFrom(1, 5)),
    failures: fc.constantFrom(0, 0, 1, 2, 8),
    lastFailureTime: maybe(time),
    closers: maybe(fc.record({ failures: fc.integer({ min: 0, max: 9 }), lastFailureTime: time })),
    startTime: maybe(time),
    completionTime: fc.oneof({ weight: 5, arbitrary: fc.constant(undefined) }, time),
    failing: fc.oneof(
      { weight: 5, arbitrary: fc.constant(undefined) },
      fc.constant({ reason: "DeadlineExceeded", message: "too late" }),
    ),
    fences: fc.uniqueArray(
      fc.record({
        database,
        generation,
        incarnation: fc.constantFrom("", "x"),
        secretName: fc.constant("secret"),
        closed: flag(0.3),
      }),
      { selector: ({ database }) => database, maxLength: 3 },
    ),
    fence: maybe(generation),
    since: time,
    until: time,
    reason: fc.constantFrom("LeaseExpired", "PodFailed", "SpecChanged", "NodeLost", "PodGone"),
  })
  .map(({ generation, roles, closes, leaseUID, leaving, retries, since, until, reason, ...rest }) => {
    const of = (role: string) => ATTEMPTS.filter((n) => roles[n - 1] === role);
    const named = (n: number) => ({ pod: `run-${n}`, uid: `uid-${n}` });
    const past = of("past").reverse();
    const history = past.map((n, i) => ({
      ...named(n),
      generation: Math.max(1, generation - 1 - i),
      from: since,
      until,
      reason,
      rejectedWrites: 0,
    }));
    const [first] = rest.completionTime ? [] : of("owner");
    const owner = first && {
      ...named(first),
      generation,
      since,
      ...(leaseUID && { leaseUID: "lease-1" }),
      ...(closes && { closes }),
      ...(leaving && { leaving }),
      ...(retries && { retries }),
    };
    const candidates = of("candidate").map((n) => ({ attempt: n, pod: `run-${n}`, ...(closes && { closes }) }));
    const failing = rest.completionTime ? undefined : rest.failing;
    return { ...rest, failing, generation, attempt: ATTEMPTS.length, history, owner, candidates };
  });

const spec = fc
  .record({
    suspend: flag(),
    standbys: fc.record({
      count: fc.integer({ min: 0, max: 3 }),
      application: fc.constantFrom("Started", "NotStarted"),
    }),
    backoffLimit: fc.constantFrom(0, 1, 6),
    activeDeadlineSeconds: maybe(fc.constantFrom(1, 7_200)),
    ttlSecondsAfterFinished: maybe(fc.constantFrom(0, 60)),
    databases: fc.constantFrom(
      [{ name: "ledger", secretName: "a" }],
      [
        { name: "ledger", secretName: "a" },
        { name: "audit", secretName: "b", port: 5433 },
      ],
    ),
  })
  .map((change) => aSpec(JSON.parse(JSON.stringify(change))));

const snapshot: fc.Arbitrary<Snapshot> = fc
  .record({
    status,
    spec: fc.oneof({ weight: 12, arbitrary: spec }, { weight: 1, arbitrary: fc.constant(readSpec({})) }),
    template: fc.oneof(
      { weight: 5, arbitrary: fc.constant({ ok: true as const }) },
      fc.constantFrom("InvalidTemplate" as const, "AdmissionUnavailable" as const).map((reason) => ({
        ok: false as const,
        reason,
        message: "x",
      })),
    ),
    pods: fc.tuple(...ATTEMPTS.map((n) => fc.option(pod(n), { freq: 3 }))),
    burned: fc.uniqueArray(attempt, { maxLength: 1 }),
    creationProblem: fc.option(text),
    creationRestMs: fc.constantFrom(0, 0, 0, 20_000),
    grantProblem: fc.option(text),
    namespaceEnding: flag(0.1),
    lease: fc.option(lease, { freq: 5 }),
    holderElsewhere: flag(),
    deleting: flag(),
    inForeground: flag(0.3),
    finalized: flag(0.9),
    closingMs: fc.constantFrom(0, 61_999, 62_000),
    unchangedMs: fc.constantFrom(0, 5_999, 6_000, 9_999, 10_000, 600_000),
  })
  .map(({ status, pods, burned, lease, deleting, inForeground, finalized, closingMs, unchangedMs, ...rest }) =>
    aSnapshot({
      ...rest,
      job: { ...aSnapshot().job, deleting, inForeground: deleting && inForeground, finalized, closingMs },
      status: JSON.parse(JSON.stringify(status)),
      pods: pods.filter((one) => one !== null),
      burnedAttempts: burned,
      lease,
      leaseUnchangedMs: unchangedMs,
      leaseRemainingMs: lease ? Math.max(0, 10_000 - unchangedMs) : 0,
    }),
  );

const always = (name: string, holds: (snapshot: Snapshot, plan: Plan) => void): void =>
  test(name, () => {
    fc.assert(
      fc.property(snapshot, (of) => {
        holds(of, decide(of));
      }),
      { numRuns: RUNS, seed: SEED },
    );
  });

always("the status is one that the API server takes, with text that fits", (_snapshot, { status, events }) => {
  expect(fencedJobStatus.parse(status)).toEqual(JSON.parse(JSON.stringify(status)));
  expect(status.history.length).toBeLessThanOrEqual(HISTORY_MAX);
  expect(status.conditions.map(({ type }) => type)).toEqual(CONDITION_TYPES);
  for (const { reason, message } of status.conditions) {
    expect(REASONS).toHaveProperty(reason);
    expect(message.length).toBeLessThanOrEqual(1_024);
    expect(message.isWellFormed()).toBe(true);
  }
  expect(status.summary.isWellFormed()).toBe(true);
  for (const { reason } of events) expect(REASONS).toHaveProperty(reason);
});

always(
  "INV-8: no number is taken back but one that the databases call absurd, and what is granted is above all",
  (snapshot, plan) => {
    const { generation, owner } = plan.status;
    const before = snapshot.status;
    if (before.generation <= 1_000_000) expect(generation).toBeGreaterThanOrEqual(before.generation);
    expect(plan.status.attempt).toBeGreaterThanOrEqual(before.attempt);
    if (!owner || owner.uid === before.owner?.uid) return;
    expect(owner.generation).toBe(generation);
    if (before.generation < 1_000_000) expect(owner.generation).toBeGreaterThan(before.generation);
  },
);

always(
  "INV-7: who becomes owner is a living candidate, named by no grant before, and the Lease may be claimed",
  (snapshot, plan) => {
    const { owner } = plan.status;
    const before = snapshot.status;
    expect(kinds(plan).filter((kind) => kind === "grant").length).toBeLessThanOrEqual(owner ? 1 : 0);
    if (!owner || owner.uid === before.owner?.uid) return;
    const pod = snapshot.pods.find(({ uid }) => uid === owner.uid);
    expect(pod).toMatchObject({ deleting: false, sidecarRunning: true });
    if (snapshot.template.ok) expect(pod?.outdated).toBe(false);
    expect(pod && isAlive(pod)).toBe(true);
    expect(before.candidates.map(({ pod }) => pod)).toContain(owner.pod);
    expect(before.history.map(({ uid }) => uid)).not.toContain(owner.uid);
    expect(snapshot.lease?.holder).not.toBe(owner.uid);
    expect(snapshot.lease?.foreign ?? false).toBe(false);
    if (!owner.closes) expect(before.completionTime).toBeUndefined();
    expect(owner.closes ?? false).toBe(isClosing(snapshot));
  },
);

always("INV-9: only the owner in force completes the job", ({ status, pods }, plan) => {
  const isComplete = (at: Snapshot["status"]) =>
    at.conditions.find(({ type }) => type === "Complete")?.status === "True";
  if (!isComplete(plan.status) || isComplete(status) || status.completionTime) return;
  expect(pods.find(({ uid }) => uid === status.owner?.uid)).toMatchObject({ phase: "Succeeded", longRunning: false });
  expect(status.owner?.closes ?? false).toBe(false);
});

always(
  "each pod that is made has a name of its own that was reserved, and no pod that is needed is deleted",
  (snapshot, plan) => {
    const { owner, candidates, attempt } = plan.status;
    const names = [...snapshot.pods.map(({ name }) => name)];
    for (const action of plan.actions) {
      if (action.kind === "createPod") {
        const name = `run-${action.attempt}`;
        expect(names).not.toContain(name);
        names.push(name);
        expect(candidates.map(({ pod }) => pod)).toContain(name);
        expect(action.attempt).toBeLessThanOrEqual(attempt);
      } else if (action.kind === "deletePod") {
        const ends = snapshot.job.deleting || !plan.status.completionTime;
        if (ends && isClosing(snapshot)) continue;
        expect(candidates.map(({ pod }) => pod)).not.toContain(action.pod);
        expect(owner?.uid).not.toBe(action.uid);
      } else if (action.kind === "removeFinalizer") expect(snapshot.job.deleting).toBe(true);
      else if (action.kind === "deleteJob") expect(plan.status.completionTime).toBeDefined();
    }
  },
);

/** What is there once the plan is done and nothing else has happened. */
function done(snapshot: Snapshot, { status, actions }: Plan): Snapshot {
  const after = { ...snapshot, status, pods: [...snapshot.pods] };
  for (const action of actions) {
    if (action.kind === "createPod")
      after.pods.push(aPod(action.attempt, { sidecarRunning: false, waitingFor: "scheduling", failed: false }));
    if (action.kind === "deletePod") {
      after.pods = after.pods.map((pod) => (pod.uid === action.uid ? { ...pod, deleting: true } : pod));
    }
    if (action.kind === "addFinalizer") after.job = { ...after.job, finalized: true };
    if (action.kind === "removeFinalizer") after.job = { ...after.job, finalized: false };
    if (action.kind === "clearLease" && after.lease) after.lease = { ...after.lease, holder: null };
    if (action.kind === "grant" && status.owner) {
      const { uid, pod, generation } = status.owner;
      const granted = { holder: uid, holderPod: pod, generation, report: null, foreign: false, durationMs: 10_000 };
      after.lease = { ...aLease(1, 1), ...snapshot.lease, ...granted };
      Object.assign(after, { leaseUnchangedMs: 0, leaseRemainingMs: 10_000 });
    }
  }
  return after;
}

test("a plan that is done needs no other: within a few looks nothing is written, told or made any more", () => {
  fc.assert(
    fc.property(snapshot, (first) => {
      let at = first;
      for (let looks = 0; ; looks++) {
        const plan = decide(at);
        const next = done(at, plan);
        const quiet = JSON.stringify(plan.status) === JSON.stringify(at.status) && !plan.events.length;
        const idle = plan.actions.every(({ kind }) => kind === "deleteJob" || kind === "removeFinalizer");
        if (quiet && idle) return;
        expect(looks, JSON.stringify({ plan, at }, null, 1)).toBeLessThan(6);
        at = next;
      }
    }),
    { numRuns: RUNS, seed: SEED },
  );
});
