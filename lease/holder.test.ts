/**
 * The holder against a modelled Lease (versions, conflicts, lost answers) under a clock that the test moves. The real
 * API server is in leaseclient.api.test.ts and in e2e/.
 */
import { describe, expect, test } from "vitest";
import { silentLogger } from "../platform/log.ts";
import { ManualClock } from "../testing/clocks.ts";
import { ModelledLease } from "../testing/modelledlease.ts";
import { Holder } from "./holder.ts";
import { Permit } from "./permit.ts";
import { type RawLease, readLease } from "./record.ts";
import { permitDeadlineMs } from "./timing.ts";

const TIMING = { durationMs: 10_000, renewIntervalMs: 3_000, requestTimeoutMs: 2_000, marginMs: 1_000 };
const ME = { holder: "uid-1", generation: 1 };

function aHolder() {
  const clock = new ManualClock();
  const api = new ModelledLease(clock, ME);
  const permit = new Permit();
  let report = "{}";
  const holder = new Holder({
    api,
    clock,
    random: { unit: () => 0.5, bytes: () => Buffer.alloc(0) },
    log: silentLogger,
    timing: TIMING,
    permit,
    holder: ME.holder,
    report: () => report,
  });
  const stop = new AbortController();
  const result: { lost?: string | null } = {};
  return {
    clock,
    api,
    permit,
    holder,
    result,
    stop,
    tell: (text: string) => {
      report = text;
      holder.renewSoon();
    },
    hold: async () => {
      let granted = false;
      void holder.waitForGrant(stop.signal).then(async (grant) => {
        granted = true;
        permit.open();
        result.lost = await holder.hold(grant, stop.signal);
      });
      await clock.advance(100);
      expect(granted).toBe(true);
    },
  };
}

describe("waiting for a grant", () => {
  test("goes on through watches that end, and takes nothing that names another pod", async () => {
    const { clock, api, holder, stop } = aHolder();
    api.change({ holderIdentity: "uid-9" });
    let grant: unknown;
    void holder.waitForGrant(stop.signal).then((got) => {
      grant = got;
    });
    await clock.advance(5_000);
    expect(grant).toBeUndefined();
    api.change({ holderIdentity: "uid-1" }, { "fencedjob.dev/generation": "4" });
    await clock.advance(2_000);
    expect(grant).toEqual({ holder: "uid-1", generation: 4 });
  });

  test("a watch that has fallen silent is begun anew, so that the grant is seen at last (D01)", async () => {
    const { clock, api, holder, stop } = aHolder();
    api.silent = true;
    api.change({ holderIdentity: "uid-9" });
    let granted = false;
    void holder.waitForGrant(stop.signal).then(() => {
      granted = true;
    });
    await clock.advance(5_000);
    api.change({ holderIdentity: "uid-1" });
    // Within three durations, and not in the two that a takeover may take: it costs no candidate a request.
    await clock.advance(14_000);
    expect(api.watches).toBe(1);
    await clock.advance(11_000);
    expect(granted).toBe(true);
  });

  test("a grant that was taken back while the watch was away is none: each watch begins with the present state", async () => {
    const { clock, api, holder, stop } = aHolder();
    api.change({ holderIdentity: "uid-9" });
    let granted = false;
    void holder.waitForGrant(stop.signal).then(() => {
      granted = true;
    });
    await clock.advance(600);
    api.change({ holderIdentity: "uid-1" }, { "fencedjob.dev/generation": "4" });
    api.change({ holderIdentity: "uid-2" }, { "fencedjob.dev/generation": "5" });
    await clock.advance(60_000);
    expect(granted).toBe(false);
  });

  test("an API server in trouble is asked for less and less watches, and the grant is seen soon after", async () => {
    const { clock, api, holder, stop } = aHolder();
    api.change({ holderIdentity: "uid-9" });
    api.down = true;
    let granted = false;
    void holder.waitForGrant(stop.signal).then(() => {
      granted = true;
    });
    await clock.advance(300_000);
    expect(api.watches).toBeLessThan(45);
    api.down = false;
    api.change({ holderIdentity: "uid-1" });
    await clock.advance(10_000);
    expect(granted).toBe(true);
  });

  test("a generation that is no integer is no grant", async () => {
    const { clock, api, holder, stop } = aHolder();
    api.change({}, { "fencedjob.dev/generation": "1e3" });
    let granted = false;
    void holder.waitForGrant(stop.signal).then(() => {
      granted = true;
    });
    await clock.advance(5_000);
    expect(granted).toBe(false);
  });
});

describe("INV-5: deadline from send", () => {
  test("a slow answer does not lengthen the permit: it counts from the send", async () => {
    const { clock, api, permit, hold } = aHolder();
    await hold();
    api.latencyMs = 1_900;
    const before = permit.deadlineMs();
    await clock.advance(3_000);
    const sendMs = (deadlineMs: number): number => deadlineMs - permitDeadlineMs(0, TIMING.durationMs, TIMING.marginMs);
    await clock.advance(1_950);
    expect(permit.deadlineMs()).toBeGreaterThan(before);
    // Sent one interval after the renewal before, not when its answer came.
    expect(sendMs(permit.deadlineMs()) - sendMs(before)).toBeCloseTo(TIMING.renewIntervalMs, 0);
  });

  test("a renewal that was done but not answered counts from its own send, found by reading", async () => {
    const { clock, api, permit, hold } = aHolder();
    await hold();
    const before = permit.deadlineMs();
    api.fault = "done-unanswered";
    await clock.advance(3_000);
    await clock.advance(2_100);
    expect(permit.deadlineMs() - before).toBeCloseTo(TIMING.renewIntervalMs, 0);
  });

  test("without an answer the permit ends at its deadline, and comes back when ownership is found unchanged", async () => {
    const { clock, api, permit, result, hold } = aHolder();
    await hold();
    api.down = true;
    await clock.advance(8_800);
    expect(permit.state(clock.monoMs())).toBe("valid");
    await clock.advance(300);
    expect(permit.state(clock.monoMs())).toBe("unconfirmed");
    await clock.advance(20_000);
    expect(result.lost).toBeUndefined();
    api.down = false;
    await clock.advance(3_000);
    expect(permit.state(clock.monoMs())).toBe("valid");
  });

  test("a Lease edited to a longer duration does not lengthen the permit, a shorter one shortens it", async () => {
    const { clock, api, permit, hold } = aHolder();
    await hold();
    const leftMs = (): number => permit.deadlineMs() - clock.monoMs();
    api.change({ leaseDurationSeconds: 3_600 });
    await clock.advance(4_000);
    expect(leftMs()).toBeLessThan(9_000);
    const ended = permit.deadlineMs();
    api.change({ leaseDurationSeconds: 5 });
    await clock.advance(3_100);
    // The permit never goes back; a shorter duration only stops lengthening it.
    expect(permit.deadlineMs()).toBeLessThanOrEqual(Math.max(ended, clock.monoMs() + 4_000));
  });

  test("a Lease edited to a duration that ends before the next renewal is loss: else its owner neither works nor is succeeded", async () => {
    const { clock, api, permit, result, hold } = aHolder();
    await hold();
    api.change({ leaseDurationSeconds: 4 });
    await clock.advance(3_100);
    expect(result.lost).toBe("the Lease was edited to 4 s, too short to be renewed");
    expect(permit.state(clock.monoMs())).toBe("lost");
    // It is not renewed any more: a successor need not wait for longer than the lease.
    const { renewTime } = readLease(api.lease as RawLease);
    await clock.advance(30_000);
    expect(readLease(api.lease as RawLease).renewTime).toBe(renewTime);
  });
});

describe("INV-6: match to touch", () => {
  test.each([
    ["names another holder", { holderIdentity: "uid-2" }, {}],
    ["names another generation", {}, { "fencedjob.dev/generation": "2" }],
    ["was released by somebody", { holderIdentity: "" }, {}],
  ])("a Lease that %s is loss for good, and is not written", async (_what, spec, annotations) => {
    const { clock, api, permit, result, hold } = aHolder();
    await hold();
    api.change(spec, annotations);
    const theirs = JSON.stringify(api.lease);
    await clock.advance(3_100);
    expect(result.lost).toMatch(/^the Lease names/);
    expect(permit.state(clock.monoMs())).toBe("lost");
    await clock.advance(30_000);
    expect(JSON.stringify(api.lease)).toBe(theirs);
  });

  test("a missing Lease is loss, and is never created", async () => {
    const { clock, api, permit, result, hold } = aHolder();
    await hold();
    api.lease = null;
    await clock.advance(3_100);
    expect(result.lost).toBe("the Lease no longer exists");
    expect(permit.state(clock.monoMs())).toBe("lost");
    expect(api.lease).toBeNull();
  });

  test("somebody else's edit that leaves holder and generation is no loss", async () => {
    const { clock, api, permit, result, hold } = aHolder();
    await hold();
    api.change({}, { "example.com/note": "x" });
    await clock.advance(6_000);
    expect(result.lost).toBeUndefined();
    expect(permit.state(clock.monoMs())).toBe("valid");
    expect(readLease(api.lease as RawLease).holder).toBe(ME.holder);
  });

  test("release clears the holder only while the Lease is ours", async () => {
    const { clock, api, holder, stop, hold } = aHolder();
    await hold();
    stop.abort();
    const done = holder.release(ME);
    await clock.advance(100);
    await done;
    expect(readLease(api.lease as RawLease)).toMatchObject({ holder: null, generation: 1 });
    api.change({ holderIdentity: "uid-2" }, { "fencedjob.dev/generation": "2" });
    const again = holder.release(ME);
    await clock.advance(100);
    await again;
    expect(readLease(api.lease as RawLease).holder).toBe("uid-2");
  });
});

describe("release", () => {
  test.each([
    ["is lost", "lost"],
    ["is done and not answered", "done-unanswered"],
    ["meets somebody's edit", "edited"],
  ] as const)(
    "one that %s is tried once more: a successor would wait for the Lease to run out",
    async (_what, fault) => {
      const { clock, api, holder, stop, hold } = aHolder();
      await hold();
      stop.abort();
      api.fault = fault;
      const done = holder.release(ME);
      await clock.advance(5_000);
      await done;
      expect(readLease(api.lease as RawLease)).toMatchObject({ holder: null, generation: 1 });
    },
  );

  test("one that is refused is given up after the second try: the pod ends", async () => {
    const { clock, api, holder, stop, hold } = aHolder();
    await hold();
    stop.abort();
    const before = api.replaces;
    api.forbidden = true;
    const done = holder.release(ME);
    await clock.advance(5_000);
    await done;
    expect(api.replaces - before).toBe(2);
  });
});

describe("renewal", () => {
  test("happens every interval and no oftener", async () => {
    const { clock, api, hold } = aHolder();
    await hold();
    const before = api.replaces;
    await clock.advance(60_000);
    expect(api.replaces - before).toBeGreaterThanOrEqual(19);
    expect(api.replaces - before).toBeLessThanOrEqual(21);
  });

  test("one that met somebody else's edit, or was lost, is repeated soon and not an interval later", async () => {
    const { clock, api, permit, hold } = aHolder();
    await hold();
    const sent = (): number => permit.deadlineMs();
    await clock.advance(2_800);
    const first = sent();
    api.change({}, { "example.com/note": "x" });
    await clock.advance(1_000);
    expect(sent() - first).toBeGreaterThan(3_000);
    expect(sent() - first).toBeLessThan(3_800);
    const second = sent();
    api.fault = "lost";
    await clock.advance(3_500);
    expect(sent() - second).toBeLessThan(4_000);
    expect(sent()).toBeGreaterThan(second);
  });

  test("a changed report is told at once", async () => {
    const { clock, api, tell, hold } = aHolder();
    await hold();
    tell('{"generation":1,"fences":[],"failures":[]}');
    await clock.advance(100);
    expect(readLease(api.lease as RawLease).report).toContain('"generation":1');
  });

  test("a refused renewal is tried again and costs no ownership while the Lease names us", async () => {
    const { clock, api, permit, result, hold } = aHolder();
    await hold();
    api.forbidden = true;
    await clock.advance(6_000);
    expect(result.lost).toBeUndefined();
    expect(permit.state(clock.monoMs())).toBe("valid");
    const before = api.replaces;
    await clock.advance(60_000);
    expect(permit.state(clock.monoMs())).toBe("unconfirmed");
    // Ever less often, down to once an interval: an API server in trouble is not hammered.
    expect(api.replaces - before).toBeLessThan(30);
    api.forbidden = false;
    await clock.advance(4_000);
    expect(permit.state(clock.monoMs())).toBe("valid");
  });

  test("too many requests are answered by none until the server's time is over, but for one in front of the deadline", async () => {
    const { clock, api, permit, hold } = aHolder();
    await hold();
    const before = { gets: api.gets, replaces: api.replaces };
    api.throttledMs = 5_000;
    await clock.advance(6_800);
    expect(api.replaces - before.replaces).toBe(1);
    // At 3 s, and two seconds in front of the deadline, not at 8 s.
    await clock.advance(500);
    expect(api.replaces - before.replaces).toBe(2);
    await clock.advance(2_000);
    expect(permit.state(clock.monoMs())).toBe("unconfirmed");
    await clock.advance(60_000);
    expect(api.replaces - before.replaces).toBeLessThan(24);
    expect(api.gets).toBe(before.gets);
    api.throttledMs = null;
    await clock.advance(5_000);
    expect(permit.state(clock.monoMs())).toBe("valid");
  });
});
