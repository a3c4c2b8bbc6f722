/**
 * The renewals of a sidecar process while something else takes its time: the application's bytes, a slow or failing API server.
 * Nothing of it may cost the ownership.
 */
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { endsWell } from "../conformance/command.ts";
import { PGBENCH } from "../conformance/pgbench.ts";
import { systemClock } from "../platform/clock.ts";
import { type Fault, type FaultyWay, startFaultyWay } from "../testing/faultyway.ts";
import { inScene } from "../testing/inscene.ts";
import type { PodProcess } from "../testing/podprocess.ts";
import { type PodScene, startPodScene } from "../testing/podscene.ts";
import { Renewals } from "../testing/renewals.ts";

/** Often, so that many renewals fall into a short time. */
const LEASE = { durationSeconds: 10, renewIntervalSeconds: 1, requestTimeoutSeconds: 2, marginSeconds: 1 };
const PSQL = "/usr/bin/psql";

let scene: PodScene;

inScene(startPodScene, (started) => {
  scene = started;
});

/** The largest time from one renewal to the next while `work` goes on; four of five are not larger than `usualMs`. */
async function largestGapMs(
  work: () => Promise<unknown>,
): Promise<{ gapMs: number; usualMs: number; renewals: Renewals }> {
  const renewals = new Renewals();
  const stop = new AbortController();
  const following = renewals.follow(scene.leaseClient(), stop.signal);
  await work();
  stop.abort();
  await following;
  const gapsMs = renewals.gapsMs.toSorted((a, b) => a - b);
  return { gapMs: gapsMs.at(-1) ?? 0, usualMs: gapsMs[Math.floor(0.8 * gapsMs.length)] ?? Infinity, renewals };
}

test.skipIf(!existsSync(PGBENCH) || !existsSync(PSQL))(
  "A18: one result of 200 MB after the other, and 2,000 statements a second beside, hold up no renewals",
  { timeout: 300_000 },
  async () => {
    await scene.createJob({ lease: LEASE });
    const pod = await scene.startOwner(1, 1);
    const { gapMs: restMs } = await largestGapMs(() => systemClock.sleep(10_000));
    const load = await underLoad(pod);
    console.log(`renewals each 1000 ms, largest gap: at rest ${restMs} ms, under load ${load.gapMs} ms (${load.told})`);
    // Not the largest: a pause of the whole machine is none of theirs.
    expect(load.usualMs).toBeLessThan(2 * 1000 * LEASE.renewIntervalSeconds);
    expect(load.renewals.grants.size).toBe(1);
    expect(load.refused).toBe(0);
  },
);

async function underLoad({ port, state }: PodProcess) {
  const dir = mkdtempSync(join(tmpdir(), "fencedjob-load-"));
  const script = join(dir, "script.sql");
  writeFileSync(script, `SELECT 1;\nSELECT 2;\nSELECT 3;\n${scene.writes("load")};\n`);
  const { database, user } = scene.fenced.address;
  const env = { PGHOST: "127.0.0.1", PGPORT: String(port), PGUSER: user, PGDATABASE: database, PGSSLMODE: "disable" };
  const large = "SELECT repeat('x', 1000) FROM generate_series(1, 200000)";
  let results = 0;
  let pgbench = "";
  const loading = async (): Promise<void> => {
    let over = false;
    const small = ["-n", "-M", "extended", "-c", "8", "-T", "20", "--rate", "500", "-f", script];
    await Promise.all([
      endsWell(PGBENCH, small, { env, timeoutMs: 120_000 }).then(({ stdout }) => {
        over = true;
        pgbench = /actually processed: \d+|tps = [\d.]+/.exec(stdout)?.[0] ?? stdout;
      }),
      (async () => {
        for (; !over; results++) {
          await endsWell(PSQL, ["-XAtq", "-o", "/dev/null", "-c", large], { env, timeoutMs: 120_000 });
        }
      })(),
    ]);
  };
  try {
    const measured = await largestGapMs(loading);
    const { rejectedWrites: refused } = await state();
    return { ...measured, refused, told: `${results} results of 200 MB; pgbench, 4 statements each: ${pgbench}` };
  } finally {
    rmSync(dir, { recursive: true });
  }
}

describe("a slow or failing API server", () => {
  /** The defaults of spec.lease, which leave time for three attempts. */
  const DEFAULTS = { durationSeconds: 10, renewIntervalSeconds: 3, requestTimeoutSeconds: 2, marginSeconds: 1 };
  /** Longer than a lease. */
  const LONG_MS = 15_000;

  async function aWay(): Promise<FaultyWay> {
    const way = await startFaultyWay(scene.server);
    onTestFinished(() => way.stop());
    return way;
  }

  /** An owner whose application writes ten times a second for a long time, while the way is as it was made. */
  async function writesOn(way: FaultyWay, fault: () => void, lease = DEFAULTS, forMs = LONG_MS): Promise<void> {
    await scene.createJob({ lease, standbys: { count: 1 } });
    const pod = await scene.startOwner(1, 1, { way });
    await scene.startPod(2);
    const application = await scene.connect(pod);
    fault();
    const { gapMs, renewals } = await largestGapMs(async () => {
      const endMs = systemClock.monoMs() + forMs;
      for (; systemClock.monoMs() < endMs; await systemClock.sleep(100)) await application.query(scene.writes("on"));
    });
    console.log(`largest gap ${gapMs} ms, ${way.passed.length} requests over ${way.connections()} connections`);
    expect(renewals.grants.size).toBe(1);
    expect(await pod.state()).toMatchObject({ state: "owner, generation 1", rejectedWrites: 0 });
    expect((await scene.status()).owner).toMatchObject({ pod: "run-1", generation: 1 });
  }

  test("each answer 1.7 s late, with a request timeout of 2 s", async () => {
    const way = await aWay();
    await writesOn(way, () => {
      way.fault = () => ({ kind: "late", ms: 1_700 });
    });
  });

  test("every other answer a 500", async () => {
    const way = await aWay();
    await writesOn(way, () => {
      way.fault = ({ nth }) => (nth % 2 ? { kind: "instead", status: 500 } : null);
    });
  });

  test("one of two API servers behind a balancer of connections, which answers 500", async () => {
    const way = await aWay();
    await writesOn(way, () => {
      const present = way.connections();
      way.fault = ({ connection }) => ((connection - present) % 2 ? null : { kind: "instead", status: 500 });
    });
  });

  test("answers so late that a new connection does not fit beside one into an attempt", async () => {
    const way = await aWay();
    await writesOn(way, () => {
      way.fault = () => ({ kind: "late", ms: 1_500 });
      way.handshakeMs = 1_000;
      way.cut();
    });
  });

  test("429 with a Retry-After beyond the deadline: it is heeded as far as the permit allows", async () => {
    const way = await aWay();
    // The attempt in time is the last one: a pause of the machine must fit into its timeout.
    const lease = { ...DEFAULTS, durationSeconds: 20, requestTimeoutSeconds: 6 };
    const forMs = 2 * LONG_MS;
    let puts = 0;
    const fault = (): void => {
      way.fault = ({ method }) => {
        if (method !== "PUT" || ++puts % 2 === 0) return null;
        return { kind: "instead", status: 429, headers: { "retry-after": "60" } };
      };
    };
    await writesOn(way, fault, lease, forMs);
    // Two for each permit: one that is refused, one in time.
    expect(puts).toBeLessThanOrEqual(2 * Math.ceil(forMs / 13_000) + 2);
  });

  test.each<[string, (puts: number) => Fault | null]>([
    ["its connection breaks before the answer", () => ({ kind: "unanswered" })],
    ["its answer comes when it was given up", () => ({ kind: "late", ms: 2_500 })],
    ["it arrives twice, and the answer is 409", () => ({ kind: "twice" })],
    ["now and then one arrives when it was given up", (puts) => (puts % 3 ? null : { kind: "behind", ms: 2_500 })],
  ])("a renewal that was done is recognised as our own (INV-6): %s", async (_name, fault) => {
    const way = await aWay();
    let puts = 0;
    await writesOn(way, () => {
      way.fault = ({ method }) => (method === "PUT" ? fault(++puts) : null);
    });
  });
});
