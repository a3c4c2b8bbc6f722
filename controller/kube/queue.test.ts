import { describe, expect, test } from "vitest";
import { silentLogger } from "../../platform/log.ts";
import type { Random } from "../../platform/random.ts";
import { ManualClock, settle } from "../../testing/clocks.ts";
import { ApiError } from "./errors.ts";
import { type Outcome, type Reconcile, WorkQueue } from "./queue.ts";

const middle: Random = { unit: () => 0.5, bytes: (length) => Buffer.alloc(length) };
const done: Outcome = { kind: "done" };

function queueOf(reconcile: Reconcile, workers = 2) {
  const clock = new ManualClock();
  const queue = new WorkQueue({ reconcile, workers, clock, random: middle, log: silentLogger });
  return { clock, queue };
}

/** Runs that end when the test says so. */
function heldRuns() {
  const runs: { key: string; end: (outcome?: Outcome | Error) => void; signal: AbortSignal }[] = [];
  const reconcile: Reconcile = (key, signal) => {
    const { promise, resolve, reject } = Promise.withResolvers<Outcome>();
    runs.push({
      key,
      signal,
      end: (outcome = done) => (outcome instanceof Error ? reject(outcome) : resolve(outcome)),
    });
    return promise;
  };
  return { runs, reconcile, keys: () => runs.map(({ key }) => key) };
}

/** The times at which the key ran, while `ms` pass. */
async function timesOf(outcome: (nth: number) => Outcome | Error, ms: number, meanwhile?: (queue: WorkQueue) => void) {
  const atMs: number[] = [];
  const { clock, queue } = queueOf(async () => {
    atMs.push(Math.round(clock.monoMs()));
    const result = outcome(atMs.length);
    if (result instanceof Error) throw result;
    return result;
  });
  queue.start();
  queue.add("a");
  await clock.advance(1);
  meanwhile?.(queue);
  await clock.advance(ms - 1);
  return atMs;
}

describe("the work queue", () => {
  test("waits for start, then runs each key once however often it was added, N at a time, in order", async () => {
    const { runs, reconcile, keys } = heldRuns();
    const { queue } = queueOf(reconcile);
    for (const key of ["a", "b", "a", "c", "b"]) queue.add(key);
    await settle();
    expect(keys()).toEqual([]);
    queue.start();
    await settle();
    expect(keys()).toEqual(["a", "b"]);
    expect(queue.depth()).toEqual({ ready: 1, running: 2, waiting: 0 });
    runs[1]?.end();
    await settle();
    expect(keys()).toEqual(["a", "b", "c"]);
  });

  test("a run that hangs lends its place to the next after a second, up to a bound, and takes it back when it ends", async () => {
    const { runs, reconcile, keys } = heldRuns();
    const { clock, queue } = queueOf(reconcile);
    queue.start();
    for (let i = 0; i < 200; i++) queue.add(`hangs-${i}`);
    await clock.advance(999);
    expect(keys()).toHaveLength(2);
    await clock.advance(1);
    expect(keys()).toHaveLength(4);
    await clock.advance(40_000);
    expect(queue.depth()).toMatchObject({ running: 2 + 64 });
    for (const { end } of runs.splice(0, 10)) end();
    await settle();
    // The two workers' own, beside those that still hang.
    expect(queue.depth()).toMatchObject({ running: 2 + 56 });
  });

  test("never runs a key twice at once: what is added meanwhile runs once more after it", async () => {
    const { runs, reconcile, keys } = heldRuns();
    const { queue } = queueOf(reconcile);
    queue.start();
    for (let i = 0; i < 3; i++) queue.add("a");
    queue.add("a");
    await settle();
    expect(keys()).toEqual(["a"]);
    runs[0]?.end();
    await settle();
    expect(keys()).toEqual(["a", "a"]);
    runs[1]?.end();
    await settle();
    expect(keys()).toEqual(["a", "a"]);
    expect(queue.depth()).toEqual({ ready: 0, running: 0, waiting: 0 });
  });

  test("runs again when the outcome asks, and not when it is done or terminal", async () => {
    expect(await timesOf((nth) => (nth < 3 ? { kind: "requeueAfter", ms: 1000 } : done), 60_000)).toEqual([
      0, 1000, 2000,
    ]);
    expect(await timesOf(() => ({ kind: "terminal", reason: "InvalidSpec" }), 60_000)).toEqual([0]);
  });

  test("an event before the asked time runs at once, and that run decides anew", async () => {
    const times = await timesOf(
      (nth) => (nth === 1 ? { kind: "requeueAfter", ms: 1000 } : done),
      60_000,
      (queue) => queue.add("a"),
    );
    expect(times).toEqual([0, 1]);
  });

  test("backs off exponentially up to a cap, and from the beginning after a success", async () => {
    const times = await timesOf((nth) => (nth === 14 ? done : new Error("down")), 400_000, undefined);
    const gaps = times.slice(1).map((ms, i) => ms - (times[i] ?? 0));
    expect(gaps).toEqual([50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200, 60_000, 60_000]);
    const again = await timesOf((nth) => (nth === 3 ? { kind: "requeueAfter", ms: 5 } : new Error("down")), 400);
    expect(again).toEqual([0, 50, 150, 155, 205, 305]);
  });

  test("a failing key that its own writes keep adding runs once a second, not in circles", async () => {
    let queue: WorkQueue | undefined;
    const times = await timesOf(
      () => {
        queue?.add("a");
        return new Error("down");
      },
      20_000,
      (running) => {
        queue = running;
      },
    );
    // Backoff while that is shorter, then once a second.
    expect(times.slice(0, 6)).toEqual([0, 50, 150, 350, 750, 1550]);
    expect(times.slice(6)).toEqual(Array.from({ length: 18 }, (_, i) => 2550 + 1000 * i));
  });

  test("what is to be looked at soon is not put off by something else that fails", async () => {
    const failed: Outcome = { kind: "failed", error: new Error("quota"), ms: 5_000 };
    const atMs = await timesOf(() => failed, 120_000);
    const gapsMs = atMs.slice(1).map((ms, i) => ms - (atMs[i] ?? 0));
    expect(Math.max(...gapsMs)).toBe(5_000);
    expect(gapsMs.slice(0, 4)).toEqual([50, 100, 200, 400]);
  });

  test("waits as long as a throttling server asks; a conflict is counted apart from failures", async () => {
    const throttled = new ApiError("GET", 429, { details: { retryAfterSeconds: 7 } });
    expect(await timesOf((nth) => (nth === 1 ? throttled : done), 60_000)).toEqual([0, 7000]);
    const { clock, queue } = queueOf(async () => {
      throw new ApiError("PUT", 409, { reason: "Conflict" });
    });
    queue.start();
    queue.add("a");
    await clock.advance(10);
    expect(queue.counters).toEqual({ runs: 1, failures: 0, conflicts: 1 });
  });

  test("a failing key does not hold up the others", async () => {
    const { runs, reconcile, keys } = heldRuns();
    const { queue } = queueOf(reconcile, 1);
    queue.start();
    queue.add("bad");
    queue.add("good");
    await settle();
    runs[0]?.end(new Error("down"));
    await settle();
    expect(keys()).toEqual(["bad", "good"]);
  });

  test("aborts a run that takes too long", async () => {
    const { runs, reconcile } = heldRuns();
    const { clock, queue } = queueOf(reconcile);
    queue.start();
    queue.add("a");
    await clock.advance(59_000);
    expect(runs[0]?.signal.aborted).toBe(false);
    await clock.advance(2000);
    expect(runs[0]?.signal.aborted).toBe(true);
  });

  test("a drain lets runs end, begins none, and leaves no timer", async () => {
    const { runs, reconcile, keys } = heldRuns();
    const { clock, queue } = queueOf(reconcile, 1);
    queue.start();
    queue.add("a");
    queue.add("b");
    queue.addAfter("c", 1000);
    await settle();
    const drained = queue.drain(5000);
    queue.add("d");
    queue.add("a");
    await clock.advance(2000);
    expect(runs[0]?.signal.aborted).toBe(false);
    runs[0]?.end({ kind: "requeueAfter", ms: 10 });
    expect(await drained).toEqual([]);
    await clock.advance(60_000);
    expect(keys()).toEqual(["a"]);
    expect(clock.pending).toBe(0);
  });

  test("a drain aborts what does not end, and names what ends not even then", async () => {
    const { runs, reconcile } = heldRuns();
    const { clock, queue } = queueOf(reconcile);
    queue.start();
    queue.add("obedient");
    queue.add("stuck");
    await settle();
    runs[0]?.signal.addEventListener("abort", () => runs[0]?.end(new Error("aborted")));
    const drained = queue.drain(5000);
    await clock.advance(4000);
    expect(runs.map(({ signal }) => signal.aborted)).toEqual([false, false]);
    await clock.advance(3000);
    expect(await drained).toEqual(["stuck"]);
  });
});
