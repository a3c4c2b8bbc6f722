/**
 * Controllers as processes, at a real API server: the leader is killed, stopped in order, paused. Measured times are
 * printed; what is asserted is what they follow from.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { LeaseClient } from "../lease/client.ts";
import { type RawLease, readLease } from "../lease/record.ts";
import { DEFAULT_ELECTION_TIMING } from "../lease/timing.ts";
import { systemClock } from "../platform/clock.ts";
import { type HttpClient, httpClient } from "../platform/http.ts";
import { startApiServer, type TestApiServer } from "../testing/apiserver.ts";
import { type ControllerProcess, ELECTION_LEASE, startControllerProcess } from "../testing/controllerprocess.ts";
import { type ModelledPod, runPod } from "../testing/modelledpod.ts";
import { until } from "../testing/until.ts";
import { type FencedJobStatus, readStatus } from "./api/status.ts";
import { KubeApi, RESOURCES } from "./kube/api.ts";
import { loadKubeConfig } from "./kube/config.ts";
import type { KubeObject, RawObject } from "./kube/objects.ts";

const ELECTION_MS = DEFAULT_ELECTION_TIMING.durationMs;
const LEASE_MS = 20_000;
/** Of a start or a turn, on a machine with much else to do. */
const PATIENT_MS = 120_000;
const TIMING = { durationMs: LEASE_MS, renewIntervalMs: 3_000, requestTimeoutMs: 2_000, marginMs: 1_000 };

let server: TestApiServer;
let client: HttpClient;
let api: KubeApi;
let namespace: string;
let tests = 0;
const controllers: ControllerProcess[] = [];
const pods: ModelledPod[] = [];

beforeAll(async () => {
  server = await startApiServer();
  const kube = await loadKubeConfig({ env: {}, kubeconfigPath: server.kubeconfigPath });
  client = httpClient({ ...kube, clock: systemClock });
  api = new KubeApi(client, systemClock, "fencedjob-test");
  await server.kubectl(["apply", "-f", "crds/fencedjob.yaml"]);
  await until(() => api.list(RESOURCES.fencedJobs).then(() => true));
});

afterAll(async () => {
  client?.close();
  await server?.stop();
});

beforeEach(async () => {
  namespace = `failover-${++tests}`;
  await server.createNamespace(namespace);
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

async function aController(name: string, electionSeconds?: number): Promise<ControllerProcess> {
  const controller = await startControllerProcess({
    server,
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

async function aPair(electionSeconds?: number): Promise<Pair> {
  const [a, b] = await Promise.all([aController("a", electionSeconds), aController("b", electionSeconds)]);
  return until(async () => {
    if (await a.leads()) return { leader: a, standby: b };
    return (await b.leads()) && { leader: b, standby: a };
  }, PATIENT_MS);
}

const leaseNamed = (name: string) => api.get<RawLease & KubeObject>(RESOURCES.leases, { namespace, name });
const electionRecord = async () => readLease(await leaseNamed(ELECTION_LEASE));

async function statusOf(name: string): Promise<FencedJobStatus> {
  const { status } = await api.get<RawObject>(RESOURCES.fencedJobs, { namespace, name });
  return readStatus(status);
}

async function aJob(name: string): Promise<void> {
  await api.create(RESOURCES.fencedJobs, {
    apiVersion: "fencedjob.dev/v1alpha1",
    kind: "FencedJob",
    metadata: { name, namespace },
    spec: {
      backoffLimit: 100,
      standbys: { count: 1 },
      lease: { durationSeconds: LEASE_MS / 1000 },
      databases: [{ name: "ledger", secretName: "ledger-db" }],
      template: { spec: { restartPolicy: "Never", containers: [{ name: "app", image: "app" }] } },
    },
  } as RawObject);
}

/** Runs the pod that was created as this attempt of the job. */
async function podOf(job: string, attempt: number): Promise<ModelledPod> {
  const name = `${job}-${attempt}`;
  const created = await until(() => api.get<RawObject>(RESOURCES.pods, { namespace, name }), PATIENT_MS);
  const pod = await runPod(api, new LeaseClient(client, { namespace, name: job }), created, TIMING);
  pods.push(pod);
  return pod;
}

const sinceMs = (startMs: number): number => Math.round(systemClock.monoMs() - startMs);

describe("the leader", () => {
  test("killed hard: the other leads after the Lease of the controllers ran out, under the next generation", {
    timeout: 600_000,
  }, async () => {
    const { leader, standby } = await aPair();
    expect(await electionRecord()).toMatchObject({ generation: 1, holderPod: leader.name });
    expect(await standby.leads()).toBe(false);
    expect(await standby.ready()).toBe("200 ok");
    leader.signal("SIGKILL");
    const startMs = systemClock.monoMs();
    await until(() => standby.leads(), PATIENT_MS);
    console.log(`failover after SIGKILL: ${sinceMs(startMs)} ms`);
    expect(sinceMs(startMs)).toBeGreaterThan(ELECTION_MS - DEFAULT_ELECTION_TIMING.renewIntervalMs - 500);
    expect(await electionRecord()).toMatchObject({ generation: 2, holderPod: standby.name });
  });

  test("stopped in order gives its Lease back: nobody waits for it to run out", { timeout: 600_000 }, async () => {
    const { leader, standby } = await aPair();
    const holders: (string | null)[] = [];
    const stop = new AbortController();
    const watching = (async () => {
      const lease = new LeaseClient(client, { namespace, name: ELECTION_LEASE });
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
    const leader = await aController("a");
    await until(() => leader.leads(), PATIENT_MS);
    leader.signal("SIGKILL");
    const startMs = systemClock.monoMs();
    const again = await aController("a");
    await until(() => again.leads(), PATIENT_MS);
    console.log(`restart in place: ${sinceMs(startMs)} ms`);
    expect(await electionRecord()).toMatchObject({ generation: 2, holderPod: "a" });
  });

  test("paused, and continued when another leads: does nothing, and stands by (INV-9)", {
    timeout: 120_000,
  }, async () => {
    const { leader, standby } = await aPair();
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
  async function takeover(job: string, befalls: (owner: ModelledPod) => Promise<void> | void): Promise<number> {
    await aJob(job);
    const owner = await podOf(job, 1);
    await owner.granted;
    const next = await podOf(job, 2);
    const startMs = systemClock.monoMs();
    await befalls(owner);
    await next.granted;
    return sinceMs(startMs);
  }

  test("of an owner whose pod is gone costs the election and no more", { timeout: 600_000 }, async () => {
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
    timeout: 120_000,
  }, async () => {
    const electionMs = 15_000;
    const { leader } = await aPair(electionMs / 1000);
    const deadMs = await takeover("frozen", (owner) => {
      owner.freeze();
      leader.signal("SIGKILL");
    });
    console.log(`owner frozen and leader killed at the same moment: ${deadMs} ms, with a lease of ${LEASE_MS} ms`);
    // An observation that began with the election could not end earlier than this.
    expect(deadMs).toBeLessThan(electionMs - DEFAULT_ELECTION_TIMING.renewIntervalMs + LEASE_MS);
  });
});
