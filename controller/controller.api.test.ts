/** The story of jobs, as the controller plays it at a real API server. */
import { describe, expect, test } from "vitest";
import { readLease } from "../lease/record.ts";
import { systemClock } from "../platform/clock.ts";
import { ControllerScene } from "../testing/controllerscene.ts";
import { inScene } from "../testing/inscene.ts";
import { until } from "../testing/until.ts";
import type { FencedJobStatus } from "./api/status.ts";
import { type KubeApi, RESOURCES } from "./kube/api.ts";
import { ifThere, isNotFound } from "./kube/errors.ts";
import type { RawObject } from "./kube/objects.ts";
import { releaseFencedJobs } from "./release.ts";
import { ATTEMPT_LABEL, SIDECAR_NAME } from "./snapshot.ts";

let scene: ControllerScene;
let api: KubeApi;

inScene(ControllerScene.start, (started) => {
  scene = started;
  ({ api } = scene.jobs);
});

describe("the story of one job", () => {
  test("candidate, grant, raise, failure, next generation, completion", async () => {
    await scene.controller();
    await scene.create("run", { backoffLimit: 3 });
    const pod = await scene.podIs("run-1", "Pending");
    expect((pod.spec as { initContainers: { name: string; restartPolicy: string }[] }).initContainers[0]).toMatchObject(
      {
        name: SIDECAR_NAME,
        restartPolicy: "Always",
      },
    );
    expect(await scene.owned("run", "run-1")).toBe(1);
    const lease = await scene.lease("run");
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
    await scene.renew("run", JSON.stringify({ generation: 1, fences: [fence], failures: [] }));
    await until(async () => (await scene.condition("run", "FenceRaised"))?.status === "True");
    expect(await scene.jobs.server.kubectl(["get", "fj", "-n", scene.namespace])).toMatch(
      /NAME +OWNER +GENERATION +FENCE +STATUS +AGE\nrun +run-1 +1 +1 +Owned/,
    );

    await scene.podIs("run-1", "Failed");
    await scene.podIs("run-2", "Pending");
    expect(await scene.owned("run", "run-2")).toBe(2);
    await scene.podIs("run-2", "Succeeded", { terminated: { exitCode: 0 } });
    await until(async () => (await scene.condition("run", "Complete"))?.status === "True");
    await until(async () => readLease(await scene.lease("run")).holder === null);
    // An event is stored a moment after the status that it tells of.
    for (const reason of ["Granted", "FenceRaised", "PodFailed", "Completed"]) {
      await until(async () => (await scene.described("run")).includes(reason));
    }
    const status = await scene.status("run");
    expect(status.history.map(({ generation, reason }) => [generation, reason])).toEqual([
      [2, "PodSucceeded"],
      [1, "PodFailed"],
    ]);
  });

  test("an owner that does not renew is superseded after its lease; one that renews is not", async () => {
    await scene.controller();
    const durationSeconds = 8;
    await scene.create("silent", { lease: { durationSeconds } });
    await scene.podIs("silent-1", "Pending");
    expect(await scene.owned("silent", "silent-1")).toBe(1);
    let renewedMs = 0;
    for (let i = 0; i < durationSeconds + 2; i++) {
      renewedMs = systemClock.monoMs();
      await scene.renew("silent");
      await systemClock.sleep(1_000);
    }
    expect((await scene.status("silent")).generation).toBe(1);
    await scene.podIs("silent-2", "Pending");
    expect(await scene.owned("silent", "silent-2")).toBe(2);
    expect(systemClock.monoMs() - renewedMs).toBeGreaterThan(1000 * durationSeconds);
    expect((await scene.status("silent")).history[0]).toMatchObject({ generation: 1, reason: "LeaseExpired" });
  });

  test("A01: a second pod that somebody makes with the job's labels and owner reference owns nothing and is told; the first goes on", async () => {
    await scene.controller();
    await scene.create("run");
    const { metadata, spec } = await scene.podIs("run-1", "Running");
    const generation = await scene.owned("run", "run-1");
    const { labels, annotations, ownerReferences } = metadata;
    for (const name of ["run-copy", "run-7"]) {
      const copied = { ...labels, [ATTEMPT_LABEL]: name === "run-7" ? "7" : "1" };
      const copy = { name, namespace: scene.namespace, labels: copied, annotations, ownerReferences };
      const { nodeName: _, ...unplaced } = spec as { nodeName?: string };
      await api.create(RESOURCES.pods, { apiVersion: "v1", kind: "Pod", metadata: copy, spec: unplaced } as RawObject);
      await until(() => api.get(RESOURCES.pods, scene.at(name)).then(() => false, isNotFound));
      await until(async () =>
        (await scene.described("run")).includes(
          `pod ${name} is not one that this job has made: it is deleted; the owner is run-1 (generation ${generation})`,
        ),
      );
    }
    expect(await scene.status("run")).toMatchObject({ generation, owner: { pod: "run-1", generation }, history: [] });
    expect((await api.get(RESOURCES.pods, scene.at("run-1"))).metadata.deletionTimestamp).toBeUndefined();
  });

  test("a Lease deleted under its owner is loss, and a new one is made for the next generation (INV-8)", async () => {
    await scene.controller();
    await scene.create("deleted");
    await scene.podIs("deleted-1", "Pending");
    await scene.owned("deleted", "deleted-1");
    await until(async () => (await scene.status("deleted")).owner?.leaseUID !== undefined);
    await api.delete(RESOURCES.leases, scene.at("deleted"));
    await scene.podIs("deleted-2", "Pending");
    expect(await scene.owned("deleted", "deleted-2")).toBe(2);
    expect((await scene.status("deleted")).history[0]?.reason).toBe("LeaseDeleted");
  });
});

describe("a job that is created anew under its old name", () => {
  test("is another job: with an account of its own, also when the old account is collected meanwhile", async () => {
    await scene.controller();
    await scene.create("again");
    await scene.podIs("again-1", "Pending");
    const account = scene.at("again-fencedjob");
    await api.delete(RESOURCES.fencedJobs, scene.at("again"));
    // There is no garbage collector here; what it would do, unless the controller has been quicker:
    await ifThere(api.delete(RESOURCES.pods, scene.at("again-1"), { gracePeriodSeconds: 0 }));
    await scene.gone("again");
    await api.delete(RESOURCES.serviceAccounts, account);
    await scene.create("again");
    await scene.podIs("again-1", "Pending");
    const { uid } = (await api.get(RESOURCES.fencedJobs, scene.at("again"))).metadata;
    expect((await api.get(RESOURCES.serviceAccounts, account)).metadata.ownerReferences).toMatchObject([{ uid }]);
  });

  test("an account that somebody deletes is made again for the next pod", async () => {
    await scene.controller();
    await scene.create("account", { backoffLimit: 3 });
    await scene.podIs("account-1", "Pending");
    await scene.owned("account", "account-1");
    await api.delete(RESOURCES.serviceAccounts, scene.at("account-fencedjob"));
    await scene.podIs("account-1", "Failed");
    await scene.podIs("account-2", "Pending");
    expect(await scene.owned("account", "account-2")).toBe(2);
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
    await scene.create(name);
    await scene.podIs(`${name}-1`, "Pending");
    await scene.owned(name, `${name}-1`);
    await scene.renew(name, raised(1));
    await until(async () => (await scene.status(name)).fence === 1);
  }

  test("goes when its fence is closed: here by a pod of its own, as no sidecar did it", async () => {
    await scene.controller();
    await raisedJob("run");
    await api.delete(RESOURCES.fencedJobs, scene.at("run"));
    const closer = await scene.podIs("run-2", "Running");
    expect((closer.spec as { containers: { name: string }[] }).containers.map(({ name }) => name)).toEqual([
      SIDECAR_NAME,
    ]);
    expect(await scene.owned("run", "run-2")).toBe(2);
    await scene.podIs("run-2", "Succeeded");
    await scene.gone("run");
  });

  test("after the controller was uninstalled is let go (D07)", async () => {
    await scene.controller();
    await raisedJob("run");
    await scene.end();
    await api.delete(RESOURCES.fencedJobs, scene.at("run"));
    expect((await api.get(RESOURCES.fencedJobs, scene.at("run"))).metadata.finalizers).toHaveLength(1);
    expect(await releaseFencedJobs(api, scene.namespace)).toBe(1);
    await scene.gone("run");
  });
});

describe("two active controllers, as of two installations that watch one namespace", () => {
  test("INV-8, INV-9: issue each generation to one pod only, and never go back", async () => {
    await scene.controller("one");
    await scene.controller("another");
    const granted = new Map<number, Set<string>>();
    let highest = 0;
    const seen = (status: FencedJobStatus): void => {
      expect(status.generation).toBeGreaterThanOrEqual(highest);
      highest = status.generation;
      const { owner } = status;
      if (owner) granted.set(owner.generation, (granted.get(owner.generation) ?? new Set()).add(owner.uid));
    };
    await scene.create("pair", { backoffLimit: 20 });
    for (let attempt = 1; attempt <= 4; attempt++) {
      const name = await until(async () => {
        const status = await scene.status("pair");
        seen(status);
        return status.candidates[0]?.pod ?? null;
      });
      await scene.podIs(name, "Pending");
      await scene.owned("pair", name);
      seen(await scene.status("pair"));
      await scene.podIs(name, "Failed");
      await until(async () => {
        const status = await scene.status("pair");
        seen(status);
        return status.owner === undefined;
      });
    }
    for (const [generation, holders] of granted) expect([generation, holders.size]).toEqual([generation, 1]);
    const pods = await api.list(RESOURCES.pods, { namespace: scene.namespace });
    expect(pods.items).toHaveLength((await scene.status("pair")).attempt);
  });
});
