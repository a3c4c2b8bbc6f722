import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { observe, remainingMs, sight } from "./observe.ts";
import { Permit } from "./permit.ts";
import {
  type GrantedLease,
  grantedLease,
  isOurs,
  parseGeneration,
  type RawLease,
  readLease,
  releasedLease,
  renewedLease,
} from "./record.ts";
import { formatReport, parseLastWords, parseReport } from "./report.ts";
import { microTime, nextMicroTime } from "./time.ts";
import { assertTiming, CLOCK_DRIFT_MAX, OBSERVED_DURATION_MS_MAX, overdueMs, permitDeadlineMs } from "./timing.ts";

const WALL = new Date("2026-11-29T13:02:11.123Z");
const TIMING = { durationMs: 10_000, renewIntervalMs: 3_000, requestTimeoutMs: 2_000, marginMs: 1_000 };

const grant: GrantedLease = {
  holder: "uid-1",
  generation: 1,
  name: "run",
  namespace: "billing",
  holderPod: "run-1",
  durationMs: 10_000,
  labels: {},
  ownerReferences: [],
};

/** As the API server would store it. */
function stored(lease: RawLease, resourceVersion: string): RawLease {
  return { ...lease, metadata: { ...lease.metadata, uid: "lease-uid", resourceVersion } };
}

describe("MicroTime", () => {
  test("has exactly six fractional digits (A14)", () => {
    expect(microTime(WALL)).toBe("2026-11-29T13:02:11.123000Z");
  });

  test("two renewals within one millisecond, or under a clock that stands still, differ", () => {
    const first = nextMicroTime(WALL, null);
    const second = nextMicroTime(WALL, first);
    expect(second).not.toBe(first);
    expect(second).toMatch(/\.\d{6}Z$/);
  });
});

describe("generation", () => {
  test.each(["0", "-1", "01", "1e3", "0x7", " 7", "7 ", "9007199254740992", "", "null", undefined])(
    "%s is nobody's",
    (text) => {
      expect(parseGeneration(text)).toBeNull();
    },
  );

  test("every decimal integer from 1 to 2^53-1 is read as itself", () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: Number.MAX_SAFE_INTEGER }), (n) => parseGeneration(String(n)) === n),
    );
  });
});

describe("INV-6: match to touch", () => {
  const lease = stored(grantedLease(null, grant, WALL), "1");

  test.each([
    ["another holder", { holder: "uid-2", generation: 1 }],
    ["another generation", { holder: "uid-1", generation: 2 }],
  ])("renewal and release of %s are refused before anything is sent", (_what, me) => {
    expect(isOurs(readLease(lease), me)).toBe(false);
    expect(() => renewedLease(lease, me, WALL, "")).toThrow(/INV-6/);
    expect(() => releasedLease(lease, me, WALL, "")).toThrow(/INV-6/);
  });

  test("a missing Lease is nobody's", () => {
    expect(isOurs(null, grant)).toBe(false);
  });

  test("a renewal changes the renewal time and the report, nothing else", () => {
    const odd = { ...lease, spec: { ...lease.spec, strategy: "OldestEmulationVersion" } };
    const renewed = renewedLease(odd, grant, new Date(WALL.getTime() + 3_000), "{}");
    const { renewTime, ...rest } = renewed.spec ?? {};
    const { renewTime: before, ...restBefore } = odd.spec;
    expect(rest).toEqual(restBefore);
    expect(renewTime).not.toBe(before);
    expect(renewed.metadata.resourceVersion).toBe("1");
  });

  test("a release clears the holder and keeps the generation, which is never reused", () => {
    const record = readLease(releasedLease(lease, grant, WALL, "{}"));
    expect(record.holder).toBeNull();
    expect(record.generation).toBe(1);
  });

  test("a grant over an older Lease drops the older owner's report and counts a transition for people", () => {
    const old = stored(renewedLease(lease, grant, WALL, "{}"), "2");
    const next = grantedLease(old, { ...grant, holder: "uid-2", generation: 2 }, WALL);
    expect(readLease(next)).toMatchObject({ holder: "uid-2", generation: 2, report: null, resourceVersion: "2" });
    expect(next.spec?.leaseTransitions).toBe(2);
  });

  test("transitions edited to the largest number that the API server takes do not stop the next grant", () => {
    const old = { ...lease, spec: { ...lease.spec, leaseTransitions: 2 ** 31 - 1 } };
    expect(grantedLease(old, grant, WALL).spec?.leaseTransitions).toBe(2 ** 31 - 1);
  });
});

describe("observe, wait, claim", () => {
  const record = readLease(stored(grantedLease(null, grant, WALL), "1"));

  test("waits for the whole duration on the observer's own clock, whatever the record's times say (A07)", () => {
    const future = { ...record, renewTime: "2036-01-01T00:00:00.000000Z" };
    const seen = observe(undefined, future, 1_000);
    expect(remainingMs(seen, future, 10_000, 1_000)).toBe(10_000);
    expect(remainingMs(seen, future, 10_000, 10_999)).toBe(1);
    expect(remainingMs(seen, future, 10_000, 11_000)).toBe(0);
  });

  test("any change of the record starts the wait anew", () => {
    for (const change of [
      { resourceVersion: "2" },
      { uid: "x" },
      { holder: "uid-2" },
      { generation: 2 },
      { renewTime: "y" },
    ]) {
      const seen = observe(observe(undefined, record, 0), { ...record, ...change }, 9_999);
      expect(seen.sinceMs).toBe(9_999);
    }
    expect(observe(observe(undefined, record, 0), { ...record }, 9_999).sinceMs).toBe(0);
  });

  test("time without sight of the record does not count: after an outage its holder gets the time to renew", () => {
    const gapMs = 6_500;
    const before = observe(undefined, record, 0);
    const overdue = sight(before, record, 6_000, gapMs);
    expect(remainingMs(sight(overdue, record, 10_000, gapMs), record, 10_000, 10_000)).toBe(0);
    const blind = sight(before, record, 60_000, gapMs);
    expect(remainingMs(blind, record, 10_000, 60_000)).toBe(3_500);
    expect(remainingMs(sight(blind, record, 63_500, gapMs), record, 10_000, 63_500)).toBe(0);
    // A look at a cache is no sight.
    expect(sight(observe(before, record, 59_000), record, 60_000, gapMs)).toEqual(blind);
  });

  test("the longer of the record's duration and the spec's counts, capped", () => {
    const seen = observe(undefined, record, 0);
    expect(remainingMs(seen, { ...record, durationMs: 30_000 }, 10_000, 0)).toBe(30_000);
    expect(remainingMs(seen, { ...record, durationMs: 1_000 }, 10_000, 0)).toBe(10_000);
    expect(remainingMs(seen, { ...record, durationMs: 10 ** 12 }, 10_000, 0)).toBe(OBSERVED_DURATION_MS_MAX);
  });
});

describe("INV-5: the permit ends before any observer may claim", () => {
  test("for every send time, drift within the bound and observer, the deadline comes before the claim", () => {
    const drift = fc.double({ min: -CLOCK_DRIFT_MAX / 2, max: CLOCK_DRIFT_MAX / 2, noNaN: true });
    fc.assert(
      fc.property(fc.double({ min: 0, max: 1e9, noNaN: true }), drift, drift, (sentMs, holderDrift, observerDrift) => {
        // True time runs from the send; the observer cannot have seen the record before it was sent.
        const permitTrueMs =
          (permitDeadlineMs(sentMs, TIMING.durationMs, TIMING.marginMs) - sentMs) / (1 + holderDrift);
        const claimTrueMs = TIMING.durationMs / (1 + observerDrift);
        expect(permitTrueMs).toBeLessThan(claimTrueMs);
      }),
    );
  });

  test("is compared with the clock at each question, not by a timer", () => {
    const permit = new Permit();
    expect(permit.state(0)).toBe("closed");
    permit.extend(5_000);
    expect(permit.state(0)).toBe("closed");
    permit.open();
    expect(permit.state(4_999)).toBe("valid");
    expect(permit.state(5_000)).toBe("unconfirmed");
    permit.extend(9_000);
    expect(permit.state(5_000)).toBe("valid");
    permit.extend(6_000);
    expect(permit.deadlineMs()).toBe(9_000);
  });

  test("lost is for good: neither a late renewal nor a late raise brings it back (INV-7)", () => {
    const permit = new Permit();
    permit.lose();
    permit.open();
    permit.extend(1e12);
    expect(permit.state(0)).toBe("lost");
  });

  test("another thread sees the same state through the shared memory", () => {
    const permit = new Permit();
    const other = new Permit(permit.memory);
    permit.extend(1_000);
    permit.open();
    expect(other.state(999)).toBe("valid");
  });
});

describe("timing", () => {
  test("the default timing is accepted; a renewal that cannot be repeated in time is not", () => {
    expect(() => assertTiming(TIMING)).not.toThrow();
    expect(() => assertTiming({ ...TIMING, renewIntervalMs: 7_000 })).toThrow(/must be below the duration/);
    expect(() => assertTiming({ ...TIMING, marginMs: Number.NaN })).toThrow(/marginMs/);
  });

  test("a renewal is overdue before the lease runs out", () => {
    expect(overdueMs(TIMING)).toBe(6_000);
    // As rarely as it may be renewed: whoever waits for two intervals would leave the job alone behind the lease's end.
    const rare = { ...TIMING, durationMs: 10_000, renewIntervalMs: 6_000, requestTimeoutMs: 2_000, marginMs: 1_000 };
    expect(() => assertTiming(rare)).not.toThrow();
    expect(overdueMs(rare)).toBe(10_000);
  });
});

describe("report", () => {
  const aFailure = { database: "d", code: "LF001", message: "m", hint: "", final: true, floor: 0 };
  const aFence = {
    database: "d",
    generation: 3,
    previousGeneration: null,
    incarnation: "x",
    tookMs: 1.5,
    sessionsEnded: 0,
    closed: false,
  };

  test("whatever stands in the annotation, reading it does not throw", () => {
    fc.assert(
      fc.property(fc.oneof(fc.string(), fc.json()), (text) => {
        parseReport(text);
        parseLastWords(text);
      }),
    );
  });

  test.each([
    ["a fence that is nothing", { fences: [null] }],
    ["a fence with a generation that is no number", { fences: [{ ...aFence, generation: "7" }] }],
    ["a fence without incarnation", { fences: [{ ...aFence, incarnation: undefined }] }],
    ["an issuer that is no text", { failures: [{ ...aFailure, issuer: 7 }] }],
    ["a failure that is nothing", { failures: [null] }],
    ["a floor that is no integer", { failures: [{ ...aFailure, floor: 1e300 }] }],
    ["a generation below 1", { generation: 0 }],
  ])("%s is no report: it would go into the status, which the API server then refuses for ever", (_what, change) => {
    const report = { generation: 3, fences: [aFence], failures: [aFailure], served: true };
    expect(parseReport(JSON.stringify(report))).toEqual(report);
    expect(parseReport(JSON.stringify({ ...report, ...change }))).toBeNull();
  });

  test("the report of a sidecar that knew nothing of closing is one, and has closed nothing", () => {
    const { closed: _, ...older } = aFence;
    const report = parseReport(JSON.stringify({ generation: 3, fences: [older], failures: [] }));
    expect(report?.fences).toEqual([aFence]);
  });

  test("a report is read as it was written, and stays small enough for an annotation", () => {
    const failure = { database: "d", code: "LF015", message: "m".repeat(40_000), hint: "h", final: false, floor: null };
    const report = { generation: 3, fences: [], failures: [failure], served: false };
    const text = formatReport(report);
    expect(text.length).toBeLessThan(32 * 1024);
    expect(parseReport(text)?.failures[0]?.code).toBe("LF015");
  });
});
