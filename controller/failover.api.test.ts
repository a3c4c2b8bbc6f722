/**
 * Controllers as processes, at a real API server: the leader is killed, stopped in order, paused. Measured times are
 * printed; what is asserted is what they follow from.
 */

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { LeaseClient } from "../lease/client.ts";
import { type RawLease, readLease } from "../lease/record.ts";
import { systemClock } from "../platform/clock.ts";
import { type ControllerProcess, ELECTION_LEASE, startControllerProcess } from "../testing/controllerprocess.ts";
import { type JobServer, startJobServer } from "../testing/jobserver.ts";
import { type ModelledPod, runPod } from "../testing/modelledpod.ts";
import { until } from "../testing/until.ts";
import type { FencedJobStatus } from "./api/status.ts";
import { RESOURCES } from "./kube/api.ts";
import type { KubeObject, RawObject } from "./kube/objects.ts";

/** Where it has to run out; long, as a busy machine takes seconds from it, of which none may look like a failure. */
const ELECTION_SECONDS = 20;
const LEASE_MS = 20_000;
/** What comes has not waited for it: no step of a test takes so long. */
const NEVER_MS = 600_000;
/** Of a start or a turn, on a machine with much else to do. */
const PATIENT_MS = 120_000;
const TIMING = { durationMs: LEASE_MS, renewIntervalMs: 3_000, requestTimeoutMs: 2_000, marginMs: 1_000 };

let jobServer: JobServer;
let namespace: string;
let tests = 0;
const controllers: ControllerProcess[] = [];
const pods: ModelledPod[] = [];

beforeAll(async () => {
  jobServer = await startJobServer();
});

afterAll(() => jobServer?.stop());

beforeEach(async () => {
  namespace = `failover-${++tests}`;
  await jobServer.server.createNamespace(namespace);
});

afterEach(async () => {
  for (const pod of pods.splice(0)) pod.freeze();
  await Promise.all(
    controllers.splice(0).map((controller) => {
      controller.signal("SIGCONT");
      return controller.stop();
    }),
  );
});

async function aController(name: string, electionSeconds: number): Promise<ControllerProcess> {
  const controller = await startControllerProcess({
    server: jobServer.server,
    namespace,
    name,
    ...(electionSeconds && { electionSeconds }),
  });
  controllers.push(controller);
  await until(async () => (await controller.ready()) === "200 ok", PATIENT_MS);
  return controller;
}

interface Pair {
  readonly leader: ControllerProcess;
  readonly standby: ControllerProcess;
}

async function aPair(electionSeconds = NEVER_MS / 1000): Promise<Pair> {
  const [a, b] = await Promise.all([aController("a", electionSeconds), aController("b", electionSeconds)]);
  return until(async () => {
    if (await a.leads()) return { leader: a, standby: b };
    return (await b.leads()) && { leader: b, standby: a };
  }, PATIENT_MS);
}

const leaseNamed = (name: string) => jobServer.api.get<RawLease & KubeObject>(RESOURCES.leases, { namespace, name });
const electionRecord = async () => readLease(await leaseNamed(ELECTION_LEASE));

const statusOf = (name: string): Promise<FencedJobStatus> => jobServer.status({ namespace, name });

async function aJob(name: string, leaseMs = NEVER_MS): Promise<void> {
  const lease = { durationSeconds: leaseMs / 1000 };
  await jobServer.createJob({ namespace, name }, { backoffLimit: 100, standbys: { count: 1 }, lease });
}

/** Runs the pod that was created as this attempt of the job. */
async function podOf(job: string, attempt: number): Promise<ModelledPod> {
  const { api } = jobServer;
  const name = `${job}-${attempt}`;
  const created = await until(() => api.get<RawObject>(RESOURCES.pods, { namespace, name }), PATIENT_MS);
  const pod = await runPod(api, new LeaseClient(jobServer.client, { namespace, name: job }), created, TIMING);
  pods.push(pod);
  return pod;
}

const sinceMs = (startMs: number): number => Math.round(systemClock.monoMs() - startMs);

describe("the leader", () => {
  test("killed hard: the other leads after the Lease of the controllers ran out, under the next generation", {
    timeout: 600_000,
  }, async () => {
    const { leader, standby } = await aPair(ELECTION_SECONDS);
    expect(await electionRecord()).toMatchObject({ generation: 1, holderPod: leader.name });
    expect(await standby.leads()).toBe(false);
    expect(await standby.ready()).toBe("200 ok");
    leader.signal("SIGKILL");
    const startMs = systemClock.monoMs();
    await until(() => standby.leads(), PATIENT_MS);
    console.log(`failover after SIGKILL: ${sinceMs(startMs)} ms`);
    // Its last renewal was a while before its end.
    expect(sinceMs(startMs)).toBeGreaterThan(500 * ELECTION_SECONDS);
    expect(await electionRecord()).toMatchObject({ generation: 2, holderPod: standby.name });
  });

  test("stopped in order gives its Lease back: nobody waits for it to run out", { timeout: 600_000 }, async () => {
    const { leader, standby } = await aPair();
    const holders: (string | null)[] = [];
    const stop = new AbortController();
    const watching = (async () => {
      const lease = new LeaseClient(jobServer.client, { namespace, name: ELECTION_LEASE });
      for await (const news of lease.watch(undefined, stop.signal)) {
        const holder = news.kind === "lease" ? readLease(news.lease).holder : undefined;
        if (holder !== undefined && holder !== holders.at(-1)) holders.push(holder);
      }
    })();
    await until(() => holders.length === 1);
    const startMs = systemClock.monoMs();
    leader.signal("SIGTERM");
    await until(() => standby.leads(), PATIENT_MS, { pollMs: 10 });
    console.log(`failover after SIGTERM: ${sinceMs(startMs)} ms`);
    await until(() => holders.length === 3);
    const podOfHolder = holders.map((holder) => holder?.split("/", 1)[0] ?? null);
    expect(podOfHolder).toEqual([`uid-${leader.name}`, null, `uid-${standby.name}`]);
    stop.abort();
    await watching;
  });

  test("started anew in its pod leads at once: the earlier process is gone", { timeout: 600_000 }, async () => {
    const leader = await aController("a", NEVER_MS / 1000);
    await until(() => leader.leads(), PATIENT_MS);
    leader.signal("SIGKILL");
    const startMs = systemClock.monoMs();
    const again = await aController("a", NEVER_MS / 1000);
    await until(() => again.leads(), PATIENT_MS);
    console.log(`restart in place: ${sinceMs(startMs)} ms`);
    expect(await electionRecord()).toMatchObject({ generation: 2, holderPod: "a" });
  });

  test("paused, and continued when another leads: does nothing, and stands by (INV-9)", {
    timeout: 600_000,
  }, async () => {
    const { leader, standby } = await aPair(ELECTION_SECONDS);
    await aJob("run");
    const first = await podOf("run", 1);
    expect((await first.granted).generation).toBe(1);
    leader.signal("SIGSTOP");
    await until(() => standby.leads(), PATIENT_MS);
    await first.fail();
    const second = await podOf("run", 2);
    expect((await second.granted).generation).toBe(2);
    leader.signal("SIGCONT");
    await until(() => leader.lastWords().includes("leads no longer"), PATIENT_MS);
    await until(() => leader.lastWords().includes("standing by"), PATIENT_MS);
    expect(await leader.leads()).toBe(false);
    expect((await statusOf("run")).owner).toMatchObject({ pod: "run-2", generation: 2 });
    expect(await electionRecord()).toMatchObject({ generation: 2, holderPod: standby.name });
  });
});

describe("a takeover while the leader is dead", () => {
  /** From what happens to the owner until its standby is granted. */
  async function takeover(
    job: string,
    befalls: (owner: ModelledPod) => Promise<void> | void,
    leaseMs = NEVER_MS,
  ): Promise<number> {
    await aJob(job, leaseMs);
    const owner = await podOf(job, 1);
    await owner.granted;
    const next = await podOf(job, 2);
    const startMs = systemClock.monoMs();
    await befalls(owner);
    await next.granted;
    return sinceMs(startMs);
  }

  test("of an owner whose pod is gone does not wait for the election: the standby acts for a leader that has missed a renewal", {
    timeout: 600_000,
  }, async () => {
    const { leader } = await aPair();
    const livingMs = await takeover("living", (owner) => owner.remove());
    const deadMs = await takeover("dead", async (owner) => {
      leader.signal("SIGKILL");
      await owner.remove();
    });
    console.log(`pod gone: ${livingMs} ms; with the leader killed at the same moment: ${deadMs} ms`);
    expect((await statusOf("dead")).history[0]?.generation).toBe(1);
  });

  test("of a frozen owner is not delayed at all: the standby has observed the Lease as long", {
    timeout: 600_000,
  }, async () => {
    const { leader } = await aPair();
    const deadMs = await takeover(
      "frozen",
      (owner) => {
        owner.freeze();
        leader.signal("SIGKILL");
      },
      LEASE_MS,
    );
    console.log(`owner frozen and leader killed at the same moment: ${deadMs} ms, with a lease of ${LEASE_MS} ms`);
    expect(deadMs).toBeLessThan(2 * LEASE_MS);
  });

  test("that dies long after the owner froze is not delayed either: who stands by has looked as often", {
    timeout: 600_000,
  }, async () => {
    const { leader } = await aPair();
    const leaseMs = 2 * LEASE_MS;
    const deadMs = await takeover(
      "later",
      async (owner) => {
        owner.freeze();
        await systemClock.sleep(0.7 * leaseMs);
        leader.signal("SIGKILL");
      },
      leaseMs,
    );
    console.log(`owner frozen, leader killed ${0.7 * leaseMs} ms later: ${deadMs} ms, with a lease of ${leaseMs} ms`);
    // Whoever had begun to look when the leader died would have waited for 1.7.
    expect(deadMs).toBeLessThan(1.5 * leaseMs);
  });
});
