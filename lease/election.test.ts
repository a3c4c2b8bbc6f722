/**
 * Elections on a modelled Lease, each process with a clock and a way to the API server of its own. The real API server is
 * in controller/failover.api.test.ts.
 */
import { describe, expect, test } from "vitest";
import type { Clock } from "../platform/clock.ts";
import { silentLogger } from "../platform/log.ts";
import { ManualClock } from "../testing/clocks.ts";
import { ModelledLease } from "../testing/modelledlease.ts";
import { seededRandom } from "../testing/seeded.ts";
import { Election, type Term } from "./election.ts";
import { type RawLease, readLease } from "./record.ts";
import { DEFAULT_ELECTION_TIMING as TIMING } from "./timing.ts";

const WALKS = Number(process.env.FENCEDJOB_WALKS ?? 20);
const STEPS = 150;
const RECOVERED_MS = TIMING.durationMs + TIMING.requestTimeoutMs;

/** Of one machine: drifts, has a wall of its own, and a process on it can be stopped and continued. */
class OwnClock implements Clock {
  wallOffsetMs = 0;
  readonly #true: Clock;
  readonly #rate: number;
  #late: (() => void)[] | null = null;

  constructor(trueClock: Clock, drift = 0) {
    this.#true = trueClock;
    this.#rate = 1 + drift;
  }

  monoMs = (): number => this.#true.monoMs() * this.#rate;
  wall = (): Date => new Date(this.#true.wall().getTime() + this.wallOffsetMs);

  stop(): void {
    this.#late ??= [];
  }

  continue(): void {
    const late = this.#late ?? [];
    this.#late = null;
    for (const fn of late) fn();
  }

  after = (ms: number, fn: () => void): (() => void) => {
    let cancelled = false;
    const fire = (): void => {
      if (this.#late) this.#late.push(fire);
      else if (!cancelled) fn();
    };
    const cancel = this.#true.after(ms / this.#rate, fire);
    return () => {
      cancelled = true;
      cancel();
    };
  };

  sleep = (ms: number, signal?: AbortSignal): Promise<void> => {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const cancel = this.after(ms, resolve);
    const onAbort = (): void => {
      cancel();
      reject(signal?.reason);
    };
    if (signal?.aborted) onAbort();
    else signal?.addEventListener("abort", onAbort, { once: true });
    return promise;
  };
}

interface Candidate {
  readonly podUid: string;
  readonly clock: OwnClock;
  readonly way: ModelledLease;
  readonly election: Election;
  readonly terms: Term[];
  /** Times in which it acts for a leader that is silent. */
  readonly deputies: Term[];
}

class World {
  readonly clock = new ManualClock();
  readonly server = new ModelledLease(this.clock, null);
  readonly processes: Candidate[] = [];

  start(podUid: string, { drift = 0, seed = 1 } = {}): Candidate {
    const clock = new OwnClock(this.clock, drift);
    const way = new ModelledLease(clock, this.server);
    const random = seededRandom(seed);
    const terms: Term[] = [];
    const deputies: Term[] = [];
    const election = new Election({
      api: way,
      clock,
      random,
      log: silentLogger,
      timing: TIMING,
      lease: { namespace: "n", name: "controllers" },
      me: { pod: podUid, podUid, nonce: random.bytes(4).toString("hex") },
      lead: (term) => {
        terms.push(term);
        return async () => {};
      },
      deputize: (term) => {
        deputies.push(term);
        return async () => {};
      },
    });
    const process = { podUid, clock, way, election, terms, deputies };
    this.processes.push(process);
    election.start();
    return process;
  }

  leaders(): string[] {
    return this.processes.filter(({ election }) => election.leads()).map(({ podUid }) => podUid);
  }

  record() {
    return readLease(this.server.lease as RawLease);
  }

  /** Two, of which the first leads. */
  async pair() {
    const first = this.start("a", { seed: 1 });
    await this.clock.advance(500);
    const second = this.start("b", { seed: 2 });
    await this.clock.advance(3_000);
    expect(this.leaders()).toEqual(["a"]);
    return { first, second };
  }
}

describe("a leader", () => {
  test("is whoever comes first, under the first generation, with times that the API server takes (A14)", async () => {
    const world = new World();
    const { second } = await world.pair();
    expect(world.record()).toMatchObject({ generation: 1, durationMs: TIMING.durationMs, holderPod: "a" });
    expect(world.record().renewTime).toMatch(/\.\d{6}Z$/);
    expect(second.terms).toEqual([]);
    await world.clock.advance(60_000);
    expect(world.leaders()).toEqual(["a"]);
    expect(world.record().generation).toBe(1);
    expect(second.deputies).toEqual([]);
  });

  test("that misses a renewal is acted for within a second, until it is heard again", async () => {
    const world = new World();
    const { first, second } = await world.pair();
    first.clock.stop();
    await world.clock.advance(1_000);
    expect(second.deputies.map((term) => term.valid())).toEqual([true]);
    expect(world.leaders()).toEqual(["a"]);
    await world.clock.advance(1_000);
    first.clock.continue();
    // The modelled watch ends and begins; at the latest it is looked.
    await world.clock.advance(3_000);
    expect(second.deputies.map((term) => term.valid())).toEqual([false]);
    expect(world.record().generation).toBe(1);
  });

  test("that is gone is acted for until the other is elected", async () => {
    const world = new World();
    const { first, second } = await world.pair();
    first.clock.stop();
    await world.clock.advance(TIMING.durationMs + 600);
    expect(second.deputies.map((term) => term.valid())).toEqual([false]);
    expect(second.terms.map((term) => term.valid())).toEqual([true]);
  });

  test("that is gone is replaced after the duration since its last renewal, and not before", async () => {
    const world = new World();
    const { first } = await world.pair();
    first.clock.stop();
    await world.clock.advance(TIMING.durationMs - TIMING.renewIntervalMs - 100);
    expect(world.record().generation).toBe(1);
    await world.clock.advance(TIMING.renewIntervalMs + 600);
    expect(world.leaders()).toEqual(["b"]);
    expect(world.record().generation).toBe(2);
  });

  test("that ends gives the Lease back, and the other need not wait", async () => {
    const world = new World();
    const { first } = await world.pair();
    let stopped = false;
    void first.election.stop().then(() => {
      stopped = true;
    });
    await world.clock.advance(2_500);
    expect(stopped).toBe(true);
    expect(world.leaders()).toEqual(["b"]);
    expect(first.terms[0]?.signal.aborted).toBe(true);
  });

  test("has a Lease that is told from a job's, also once it is given back", async () => {
    const world = new World();
    const { first, second } = await world.pair();
    expect(world.record()).toMatchObject({ generation: 1, foreign: true });
    for (const { election } of [second, first]) {
      void election.stop();
      await world.clock.advance(2_500);
    }
    expect(world.record()).toMatchObject({ holder: null, generation: 1, foreign: true });
  });

  test("whose container was started anew leads at once: the earlier process of its pod is gone", async () => {
    const world = new World();
    const { first } = await world.pair();
    first.clock.stop();
    const again = world.start("a", { seed: 9 });
    await world.clock.advance(500);
    expect(again.election.leads()).toBe(true);
    expect(world.record().generation).toBe(2);
  });

  test("that woke up too late finds its permit over before it does anything, and stands by (INV-5)", async () => {
    const world = new World();
    const { first } = await world.pair();
    first.clock.stop();
    await world.clock.advance(20_000);
    expect(first.terms[0]?.valid()).toBe(false);
    first.clock.continue();
    await world.clock.advance(2_000);
    expect(first.terms[0]?.signal.aborted).toBe(true);
    expect(world.leaders()).toEqual(["b"]);
  });

  test("that finds another's name, or no Lease, is over at once; its next term has a generation above all seen", async () => {
    const world = new World();
    const { first } = await world.pair();
    world.server.change({ holderIdentity: "somebody" }, { "fencedjob.dev/generation": "7" });
    await world.clock.advance(1_100);
    expect(first.terms[0]?.signal.aborted).toBe(true);
    await world.clock.advance(RECOVERED_MS);
    expect(world.record().generation).toBe(8);
    world.server.lease = null;
    await world.clock.advance(RECOVERED_MS);
    expect(world.leaders()).toHaveLength(1);
    expect(world.record().generation).toBe(9);
  });
});

test.each(["9007199254740991", "7e3", ""])(
  "a generation edited to %o keeps nobody from being elected",
  async (edited) => {
    const world = new World();
    await world.pair();
    world.server.change({}, { "fencedjob.dev/generation": edited });
    await world.clock.advance(2 * RECOVERED_MS);
    expect(world.leaders()).toHaveLength(1);
  },
);

describe("a claim", () => {
  test.each(["done-unanswered", "lost"] as const)("whose answer is missing (%s) ends in one term", async (fault) => {
    const world = new World();
    const process = world.start("a");
    process.way.fault = fault;
    await world.clock.advance(6_000);
    expect(world.leaders()).toEqual(["a"]);
    expect(process.terms).toHaveLength(1);
    expect(world.record().generation).toBe(1);
  });

  test("over another's Lease whose answer is missing is recognised as our own", async () => {
    const world = new World();
    const { first, second } = await world.pair();
    first.clock.stop();
    await world.clock.advance(4_500);
    second.way.fault = "done-unanswered";
    await world.clock.advance(4_000);
    expect(world.leaders()).toEqual(["b"]);
    expect(world.record().generation).toBe(2);
  });

  test("that the API server refuses is told with its reason, and tried until it is taken (A14, D17)", async () => {
    const world = new World();
    const process = world.start("a");
    process.way.forbidden = true;
    await world.clock.advance(10_000);
    expect(process.election.problem).toBe("Lease n/controllers could not be claimed: no");
    process.way.forbidden = false;
    await world.clock.advance(3_000);
    expect(world.leaders()).toEqual(["a"]);
    expect(process.election.problem).toBeNull();
  });

  test("in a namespace that is not there is told, and is no reason to ask ten times a second (D17)", async () => {
    const world = new World();
    const process = world.start("a");
    process.way.nowhere = true;
    await world.clock.advance(60_000);
    expect(process.election.problem).toBe("Lease n/controllers could not be claimed: there is no namespace n");
    expect(process.way.gets).toBeLessThan(60);
    process.way.nowhere = false;
    await world.clock.advance(2 * TIMING.durationMs);
    expect(world.leaders()).toEqual(["a"]);
    expect(process.election.problem).toBeNull();
  });
});

describe("without an API server", () => {
  test("a leader stops at its deadline, and goes on under its generation if nobody was elected meanwhile", async () => {
    const world = new World();
    const { first, second } = await world.pair();
    for (const { way } of [first, second]) way.down = true;
    await world.clock.advance(TIMING.durationMs);
    expect(world.leaders()).toEqual([]);
    expect(first.terms[0]?.signal.aborted).toBe(true);
    // Whoever could not read for so long can expect nobody to have renewed: the leader is given the time to.
    await world.clock.advance(300_000);
    for (const { way } of [first, second]) way.down = false;
    await world.clock.advance(RECOVERED_MS);
    expect(world.leaders()).toEqual(["a"]);
    expect(world.record().generation).toBe(1);
    expect(first.terms).toHaveLength(2);
  });

  test("for 5 minutes, or with answers after 8 s, somebody leads again within a duration (A11)", async () => {
    for (const trouble of ["down", "slow"]) {
      const world = new World();
      const { first, second } = await world.pair();
      for (const { way } of [first, second]) {
        way.down = trouble === "down";
        if (trouble === "slow") way.latencyMs = 8_000;
      }
      await world.clock.advance(300_000);
      expect(world.leaders()).toEqual([]);
      for (const { way } of [first, second]) Object.assign(way, { down: false, latencyMs: 10 });
      await world.clock.advance(RECOVERED_MS);
      expect(world.leaders()).toHaveLength(1);
    }
  });

  test("for one of two, the other leads, and the first comes back as the one that stands by", async () => {
    const world = new World();
    const { first } = await world.pair();
    first.way.down = true;
    await world.clock.advance(RECOVERED_MS);
    expect(world.leaders()).toEqual(["b"]);
    first.way.down = false;
    await world.clock.advance(RECOVERED_MS);
    expect(world.leaders()).toEqual(["b"]);
  });
});

test("A07: a wall clock set forward or back by an hour changes nothing", async () => {
  const world = new World();
  const { first, second } = await world.pair();
  for (const hours of [1, -1, -3]) {
    first.clock.wallOffsetMs = hours * 3_600_000;
    second.clock.wallOffsetMs = -hours * 3_600_000;
    await world.clock.advance(15_000);
    expect(world.leaders()).toEqual(["a"]);
  }
  expect(world.record().generation).toBe(1);
});

test.each([
  ["a duration that is no whole number of seconds", { ...TIMING, durationMs: 4_500 }],
  ["a renewal that cannot be repeated in time", { ...TIMING, renewIntervalMs: 4_000 }],
])("%s is refused before anything begins", (_what, timing) => {
  expect(() => new Election({ timing } as never)).toThrow(/lease timing/);
});

/** Three processes whose clocks drift, that are stopped, cut off and started anew. */
async function walk(seed: number): Promise<void> {
  const random = seededRandom(seed);
  const chance = (share: number): boolean => random.unit() < share;
  const world = new World();
  const drift = (): number => (random.unit() - 0.5) / 1_000;
  for (const podUid of ["a", "b", "c"]) world.start(podUid, { drift: drift(), seed: seed * 10 + podUid.charCodeAt(0) });
  const stopped = new Set<Candidate>();
  for (let step = 0; step < STEPS; step++) {
    for (const process of world.processes) {
      const { way, clock } = process;
      way.latencyMs = chance(0.8) ? 10 : random.unit() * 2_000;
      way.down = chance(0.1);
      way.forbidden = chance(0.05);
      if (chance(0.1)) way.fault = chance(0.5) ? "lost" : "done-unanswered";
      if (chance(0.05)) clock.wallOffsetMs += (random.unit() - 0.5) * 120_000;
      if (chance(0.05)) {
        clock.stop();
        stopped.add(process);
      } else if (stopped.has(process) && chance(0.2)) {
        stopped.delete(process);
        clock.continue();
      }
    }
    for (let tick = 0; tick < 20; tick++) {
      await world.clock.advance(50);
      expect(world.leaders().length, `seed ${seed}: INV-5: two lead`).toBeLessThan(2);
    }
  }
  for (const { way, clock } of world.processes) {
    Object.assign(way, { latencyMs: 10, down: false, forbidden: false });
    clock.continue();
  }
  await world.clock.advance(RECOVERED_MS + TIMING.durationMs);
  expect(world.leaders(), `seed ${seed}: nobody leads`).toHaveLength(1);
}

test("INV-5: whatever happens to them, no two have a valid permit, and in the end one leads", {
  timeout: 300_000,
}, async () => {
  for (let seed = 1; seed <= WALKS; seed++) await walk(seed);
});
