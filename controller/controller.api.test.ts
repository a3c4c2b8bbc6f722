/**
 * The controller against a real API server and etcd. There is no kubelet here: the tests write the pod statuses that one
 * would write, and the Lease renewals of a sidecar. Real pods run in e2e/.
 */
import { readFileSync } from "node:fs";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type RawLease, readLease, renewedLease } from "../lease/record.ts";
import { systemClock } from "../platform/clock.ts";
import { type HttpClient, httpClient } from "../platform/http.ts";
import { startApiServer, type TestApiServer } from "../testing/apiserver.ts";
import { startTestController } from "../testing/controller.ts";
import { until } from "../testing/until.ts";
import { type FencedJobStatus, readStatus } from "./api/status.ts";
import type { Controller } from "./controller.ts";
import { KubeApi, RESOURCES } from "./kube/api.ts";
import { type KubeConfig, loadKubeConfig } from "./kube/config.ts";
import { isNotFound } from "./kube/errors.ts";
import type { KubeObject, RawObject } from "./kube/objects.ts";
import { releaseFencedJobs } from "./release.ts";
import { SIDECAR_NAME } from "./snapshot.ts";

let server: TestApiServer;
let kube: KubeConfig;
let client: HttpClient;
let api: KubeApi;
let namespace: string;
let tests = 0;
const controllers: Controller[] = [];

beforeAll(async () => {
  server = await startApiServer();
  kube = await loadKubeConfig({ env: {}, kubeconfigPath: server.kubeconfigPath });
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
  namespace = `test-${++tests}`;
  await server.createNamespace(namespace);
});

afterEach(async () => {
  for (const controller of controllers.splice(0)) await controller.stop();
});

async function aController(lease = "fencedjob-controller"): Promise<void> {
  const name = `controller-${controllers.length}`;
  controllers.push(await startTestController({ kube, namespace, lease: { namespace, name: lease }, name }));
}

function aJob(name: string, spec: object = {}): RawObject {
  return {
    apiVersion: "fencedjob.dev/v1alpha1",
    kind: "FencedJob",
    metadata: { name, namespace },
    spec: {
      lease: { durationSeconds: 3, renewIntervalSeconds: 1, requestTimeoutSeconds: 1, marginSeconds: 0 },
      databases: [{ name: "ledger", secretName: "ledger-db" }],
      template: { spec: { restartPolicy: "Never", containers: [{ name: "app", image: "app" }] } },
      ...spec,
    },
  };
}

const create = (job: RawObject) => api.create(RESOURCES.fencedJobs, job);

async function statusOf(name: string): Promise<FencedJobStatus> {
  const { status } = await api.get<RawObject>(RESOURCES.fencedJobs, { namespace, name });
  return readStatus(status);
}

const conditionOf = (status: FencedJobStatus, type: string) => status.conditions.find((one) => one.type === type);

/** Writes the status that a kubelet would: the sidecar runs, and the phase. */
async function podIs(name: string, phase: string, sidecar: object = { running: {} }): Promise<RawObject> {
  await until(() => api.get(RESOURCES.pods, { namespace, name }).then(() => true));
  const status = {
    phase,
    initContainerStatuses: [
      { name: SIDECAR_NAME, image: "x", imageID: "x", ready: true, restartCount: 0, state: sidecar },
    ],
  };
  return api.patch(RESOURCES.pods, { namespace, name }, { status }, { subresource: "status" });
}

const leaseOf = (name: string) => api.get<RawLease & KubeObject>(RESOURCES.leases, { namespace, name });

async function renew(name: string, report = ""): Promise<void> {
  const lease = await leaseOf(name);
  const { holder, generation } = readLease(lease);
  await api.update(
    RESOURCES.leases,
    renewedLease(lease, { holder: holder!, generation: generation! }, new Date(), report),
  );
}

const eventsOf = async (name: string): Promise<string> =>
  server.kubectl(["describe", "fencedjob", "-n", namespace, name]);

/** Until the pod owns; returns its generation. */
async function owned(job: string, pod: string): Promise<number> {
  return until(async () => {
    const { owner } = await statusOf(job);
    const lease = owner?.pod === pod && readLease(await leaseOf(job));
    return lease && lease.holder === owner?.uid ? owner.generation : null;
  });
}

const gone = (name: string): Promise<boolean> =>
  until(() => api.get(RESOURCES.fencedJobs, { namespace, name }).then(() => false, isNotFound));

describe("the resource", () => {
  test("the CRD is small enough to be applied twice by client-side apply (D05)", async () => {
    expect(readFileSync("crds/fencedjob.yaml").length).toBeLessThan(64 * 1024);
    expect(await server.kubectl(["apply", "-f", "crds/fencedjob.yaml"])).toMatch(/unchanged/);
  });

  test.each([
    [
      "timing that cannot be kept",
      { lease: { durationSeconds: 5, renewIntervalSeconds: 3, requestTimeoutSeconds: 2 } },
      /must be below durationSeconds/,
    ],
    ["parts of seconds", { lease: { durationSeconds: 10.5 } }, /durationSeconds/],
    [
      "two databases on one port",
      {
        databases: [
          { name: "a", secretName: "x" },
          { name: "b", secretName: "y" },
        ],
      },
      /own name and its own port/,
    ],
    ["no database", { databases: [] }, /should have at least 1 item/],
  ])("%s cannot be written", async (_what, spec, message) => {
    await expect(create(aJob("bad", spec))).rejects.toThrow(message);
  });

  test("a name that would overflow its pods' names is refused at admission (E11), and a fence name cannot be changed (INV-8)", async () => {
    await expect(create(aJob("n".repeat(53)))).rejects.toThrow(/52 characters/);
    await create(aJob("kept", { fenceName: "a/b" }));
    const change = { spec: { fenceName: "c/d" } };
    await expect(api.patch(RESOURCES.fencedJobs, { namespace, name: "kept" }, change)).rejects.toThrow(
      /fenceName cannot be changed/,
    );
  });

  test("defaults come from the schema, and unknown fields of the pod template survive (D03)", async () => {
    const template = {
      metadata: { labels: { team: "a" } },
      spec: { containers: [{ name: "app", someFutureField: 1 }] },
    };
    const stored = await create(aJob("defaults", { lease: {}, template }));
    expect(stored.spec).toMatchObject({ lease: { durationSeconds: 10 }, drainSeconds: 2, template });
  });
});

describe("the story of one job", () => {
  test("candidate, grant, raise, failure, next generation, completion", { timeout: 60_000 }, async () => {
    await aController();
    await create(aJob("run", { backoffLimit: 3 }));
    const pod = await podIs("run-1", "Pending");
    expect((pod.spec as { initContainers: { name: string; restartPolicy: string }[] }).initContainers[0]).toMatchObject(
      {
        name: SIDECAR_NAME,
        restartPolicy: "Always",
      },
    );
    expect(await owned("run", "run-1")).toBe(1);
    const lease = await leaseOf("run");
    expect(lease.spec?.renewTime).toMatch(/\.\d{6}Z$/);
    expect(readLease(lease)).toMatchObject({ holder: pod.metadata.uid, generation: 1, holderPod: "run-1" });
    const fence = {
      database: "ledger",
      generation: 1,
      previousGeneration: null,
      incarnation: "7/1/5/16385",
      tookMs: 6,
      sessionsEnded: 0,
    };
    await renew("run", JSON.stringify({ generation: 1, fences: [fence], failures: [] }));
    await until(async () => conditionOf(await statusOf("run"), "FenceRaised")?.status === "True");
    expect(await server.kubectl(["get", "fj", "-n", namespace])).toMatch(
      /NAME +OWNER +GENERATION +FENCE +STATUS +AGE\nrun +run-1 +1 +1 +Owned/,
    );

    await podIs("run-1", "Failed");
    await podIs("run-2", "Pending");
    expect(await owned("run", "run-2")).toBe(2);
    await podIs("run-2", "Succeeded", { terminated: { exitCode: 0 } });
    await until(async () => conditionOf(await statusOf("run"), "Complete")?.status === "True");
    await until(async () => readLease(await leaseOf("run")).holder === null);
    const words = await eventsOf("run");
    for (const reason of ["Granted", "FenceRaised", "PodFailed", "Completed"]) expect(words).toContain(reason);
    const status = await statusOf("run");
    expect(status.history.map(({ generation, reason }) => [generation, reason])).toEqual([
      [2, "PodSucceeded"],
      [1, "PodFailed"],
    ]);
  });

  test("an owner that does not renew is superseded after its lease; one that renews is not", {
    timeout: 60_000,
  }, async () => {
    await aController();
    await create(aJob("silent"));
    await podIs("silent-1", "Pending");
    expect(await owned("silent", "silent-1")).toBe(1);
    for (let i = 0; i < 5; i++) {
      await renew("silent");
      await systemClock.sleep(1_000);
    }
    expect((await statusOf("silent")).generation).toBe(1);
    const stoppedMs = systemClock.monoMs();
    await podIs("silent-2", "Pending");
    expect(await owned("silent", "silent-2")).toBe(2);
    expect(systemClock.monoMs() - stoppedMs).toBeGreaterThan(1_500);
    expect((await statusOf("silent")).history[0]).toMatchObject({ generation: 1, reason: "LeaseExpired" });
  });

  test("a Lease deleted under its owner is loss, and a new one is made for the next generation (INV-8)", async () => {
    await aController();
    await create(aJob("deleted"));
    await podIs("deleted-1", "Pending");
    await owned("deleted", "deleted-1");
    await until(async () => (await statusOf("deleted")).owner?.leaseUID !== undefined);
    await api.delete(RESOURCES.leases, { namespace, name: "deleted" });
    await podIs("deleted-2", "Pending");
    expect(await owned("deleted", "deleted-2")).toBe(2);
    expect((await statusOf("deleted")).history[0]?.reason).toBe("LeaseDeleted");
  });
});

describe("a job that is created anew under its old name", () => {
  test("is another job: with an account of its own, also when the old account is collected meanwhile", {
    timeout: 60_000,
  }, async () => {
    await aController();
    await create(aJob("again"));
    await podIs("again-1", "Pending");
    const account = { namespace, name: "again-fencedjob" };
    await api.delete(RESOURCES.fencedJobs, { namespace, name: "again" });
    // There is no garbage collector here; what it would do:
    await api.delete(RESOURCES.pods, { namespace, name: "again-1" }, { gracePeriodSeconds: 0 });
    await gone("again");
    await api.delete(RESOURCES.serviceAccounts, account);
    await create(aJob("again"));
    await podIs("again-1", "Pending");
    const { uid } = (await api.get(RESOURCES.fencedJobs, { namespace, name: "again" })).metadata;
    expect((await api.get(RESOURCES.serviceAccounts, account)).metadata.ownerReferences).toMatchObject([{ uid }]);
  });

  test("an account that somebody deletes is made again for the next pod", { timeout: 60_000 }, async () => {
    await aController();
    await create(aJob("account", { backoffLimit: 3 }));
    await podIs("account-1", "Pending");
    await owned("account", "account-1");
    await api.delete(RESOURCES.serviceAccounts, { namespace, name: "account-fencedjob" });
    await podIs("account-1", "Failed");
    await podIs("account-2", "Pending");
    expect(await owned("account", "account-2")).toBe(2);
  });
});

describe("a FencedJob that is deleted", () => {
  const raised = (generation: number): string => {
    const fence = {
      database: "ledger",
      generation,
      previousGeneration: null,
      incarnation: "x",
      tookMs: 1,
      sessionsEnded: 0,
    };
    return JSON.stringify({ generation, fences: [fence], failures: [] });
  };
  async function raisedJob(name: string): Promise<void> {
    await create(aJob(name));
    await podIs(`${name}-1`, "Pending");
    await owned(name, `${name}-1`);
    await renew(name, raised(1));
    await until(async () => (await statusOf(name)).fence === 1);
  }

  test("goes when its fence is closed: here by a pod of its own, as no sidecar did it", {
    timeout: 60_000,
  }, async () => {
    await aController();
    await raisedJob("run");
    await api.delete(RESOURCES.fencedJobs, { namespace, name: "run" });
    const closer = await podIs("run-2", "Running");
    expect((closer.spec as { containers: { name: string }[] }).containers.map(({ name }) => name)).toEqual([
      SIDECAR_NAME,
    ]);
    expect(await owned("run", "run-2")).toBe(2);
    await podIs("run-2", "Succeeded");
    await gone("run");
  });

  test("after the controller was uninstalled is let go (D07)", { timeout: 60_000 }, async () => {
    await aController();
    await raisedJob("run");
    for (const controller of controllers.splice(0)) await controller.stop();
    await api.delete(RESOURCES.fencedJobs, { namespace, name: "run" });
    expect((await api.get(RESOURCES.fencedJobs, { namespace, name: "run" })).metadata.finalizers).toHaveLength(1);
    expect(await releaseFencedJobs(api, namespace)).toBe(1);
    await gone("run");
  });
});

describe("two active controllers, as of two installations that watch one namespace", () => {
  test("INV-8, INV-9: issue each generation to one pod only, and never go back", { timeout: 60_000 }, async () => {
    await aController("one");
    await aController("another");
    const granted = new Map<number, Set<string>>();
    let highest = 0;
    const seen = (status: FencedJobStatus): void => {
      expect(status.generation).toBeGreaterThanOrEqual(highest);
      highest = status.generation;
      const { owner } = status;
      if (owner) granted.set(owner.generation, (granted.get(owner.generation) ?? new Set()).add(owner.uid));
    };
    await create(aJob("pair", { backoffLimit: 20 }));
    for (let attempt = 1; attempt <= 4; attempt++) {
      const name = await until(async () => {
        const status = await statusOf("pair");
        seen(status);
        return status.candidates[0]?.pod ?? null;
      });
      await podIs(name, "Pending");
      await owned("pair", name);
      seen(await statusOf("pair"));
      await podIs(name, "Failed");
      await until(async () => {
        const status = await statusOf("pair");
        seen(status);
        return status.owner === undefined;
      });
    }
    for (const [generation, holders] of granted) expect([generation, holders.size]).toEqual([generation, 1]);
    const pods = await api.list(RESOURCES.pods, { namespace });
    expect(pods.items).toHaveLength((await statusOf("pair")).attempt);
  });
});

describe("what is wrong is said, and stops nobody else", () => {
  test.each([
    [
      "a pod that the API server refuses",
      { spec: { containers: [{ name: "Not A Name", image: "x" }] } },
      "InvalidTemplate",
    ],
    ["a misspelt field", { spec: { containers: [{ name: "app", image: "x", comand: ["x"] }] } }, "InvalidTemplate"],
    [
      "an environment value that is no text (D04)",
      { spec: { containers: [{ name: "app", image: "x", env: [{ name: "A", value: 1 }] }] } },
      "InvalidTemplate",
    ],
    ["hostNetwork", { spec: { hostNetwork: true, containers: [{ name: "app", image: "x" }] } }, "HostNetwork"],
    [
      "a container with the sidecar's name",
      { spec: { containers: [{ name: "fencedjob", image: "x" }] } },
      "ReservedName",
    ],
  ])("%s", async (_what, template, reason) => {
    await aController();
    await create(aJob("wrong", { template }));
    await create(aJob("right"));
    await until(async () => conditionOf(await statusOf("wrong"), "Admitted")?.reason === reason);
    await podIs("right-1", "Pending");
    expect(await owned("right", "right-1")).toBe(1);
    const words = await until(async () => {
      const text = await eventsOf("wrong");
      return text.includes(`Warning  ${reason}`) ? text : null;
    });
    expect(words).toContain(reason);
    expect((await statusOf("wrong")).attempt).toBe(0);
  });

  test("a template that is mended is taken up", async () => {
    await aController();
    const job = aJob("mended", {
      template: { spec: { hostNetwork: true, containers: [{ name: "app", image: "x" }] } },
    });
    await create(job);
    await until(async () => conditionOf(await statusOf("mended"), "Admitted")?.status === "False");
    await api.patch(
      RESOURCES.fencedJobs,
      { namespace, name: "mended" },
      { spec: { template: { spec: { hostNetwork: null } } } },
    );
    await podIs("mended-1", "Pending");
    expect(conditionOf(await statusOf("mended"), "Admitted")?.status).toBe("True");
  });
});

describe("rights of a job's pods (D12)", () => {
  test("the account may get, watch and update its own Lease by name, and nothing else", async () => {
    await aController();
    await create(aJob("mine"));
    await podIs("mine-1", "Pending");
    const as = `--as=system:serviceaccount:${namespace}:mine-fencedjob`;
    const can = async (...what: string[]): Promise<string> =>
      (await server.kubectl(["auth", "can-i", "-n", namespace, as, ...what]).catch((error) => String(error))).includes(
        "yes",
      )
        ? "yes"
        : "no";
    expect(await can("update", "leases/mine")).toBe("yes");
    expect(await can("watch", "leases/mine")).toBe("yes");
    for (const no of [
      ["update", "leases/other"],
      ["list", "leases"],
      ["create", "leases"],
      ["delete", "leases/mine"],
      ["get", "secrets/ledger-db"],
      ["get", "pods"],
      ["update", "fencedjobs/mine"],
    ]) {
      expect([...no, await can(...no)]).toEqual([...no, "no"]);
    }
    const pod = await api.get<RawObject>(RESOURCES.pods, { namespace, name: "mine-1" });
    expect(pod.spec).toMatchObject({ automountServiceAccountToken: false, serviceAccountName: "mine-fencedjob" });
  });
});
