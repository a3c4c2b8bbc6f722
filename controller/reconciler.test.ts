/** One reconcile at a time: what is too rare for the random walks to meet. */
import { expect, test } from "vitest";
import { GENERATION_ANNOTATION } from "../lease/record.ts";
import type { Stored } from "../testing/modelledcluster.ts";
import { aCluster, conditionOf, live, SPEC, turn } from "../testing/reconciling.ts";
import { ApiError } from "./kube/errors.ts";
import { jobKeysOf } from "./reconciler.ts";

test("an edit of the spec that the watch shows before our own status write is answered is not overlooked", async () => {
  const { world, controller } = aCluster();
  const { update } = world.api;
  world.api.update = async (resource, object, options) => {
    const answer = await update(resource, object, options);
    world.api.update = update;
    const job = world.job() as Stored;
    world.put("fencedjobs", { ...job, metadata: { ...job.metadata, generation: 2 }, spec: { ...SPEC, suspend: true } });
    controller.watch(1);
    return answer;
  };
  await turn(world, controller);
  await turn(world, controller);
  expect(world.status().summary).toMatch(/^Suspend/);
});

test("an owner's pod that was deleted and is gone before anybody looked (--force) was deleted all the same", async () => {
  const { world, controller } = aCluster();
  await live(world, controller, 10);
  const pod = world.objects.pods.get("run-1") as Stored;
  world.put("pods", { ...pod, metadata: { ...pod.metadata, deletionTimestamp: "2026-11-29T13:00:00Z" } });
  world.drop("pods", "run-1");
  await turn(world, controller);
  expect(world.status().history[0]).toMatchObject({ pod: "run-1", reason: "PodDeleted" });
});

test("… and one that an etcd of before brings back, with its containers gone, has failed", async () => {
  const { world, controller } = aCluster();
  await live(world, controller, 10);
  const pod = structuredClone(world.objects.pods.get("run-1") as Stored);
  const deleted = { ...pod, metadata: { ...pod.metadata, deletionTimestamp: "2026-11-29T13:00:00Z" } };
  world.put("pods", deleted);
  world.drop("pods", "run-1");
  world.put("pods", { ...pod, status: { ...(pod.status as object), phase: "Failed" } });
  await turn(world, controller);
  expect(world.status().history[0]).toMatchObject({ pod: "run-1", reason: "PodFailed" });
});

test("a Lease of another program is not taken, and one of an earlier FencedJob only when it has run out", async () => {
  for (const annotations of [{}, { [GENERATION_ANNOTATION]: "4", "fencedjob.dev/holder-pod": "old-1" }]) {
    const { world, controller } = aCluster();
    const elder = world.put("pods", { metadata: { name: "old-1" }, status: { phase: "Running" } });
    const spec = { holderIdentity: elder.metadata.uid, leaseDurationSeconds: 15 };
    world.put("leases", { metadata: { name: "run", annotations }, spec });
    await turn(world, controller);
    await turn(world, controller);
    world.podIs(world.objects.pods.get("run-1") as Stored, "Running");
    for (let i = 0; i < 8; i++) await turn(world, controller);
    expect(world.lease()?.spec.holderIdentity).toBe(elder.metadata.uid);
    expect(conditionOf(world, "Owned")?.reason).toBe(
      GENERATION_ANNOTATION in annotations ? "WaitingForLease" : "LeaseForeign",
    );
    expect(elder.metadata.deletionTimestamp).toBeUndefined();
  }
});

test("a watch of the Lease that fell silent takes nothing from an owner that renews", async () => {
  const { world, controller } = aCluster();
  await turn(world, controller);
  for (let i = 0; i < 90; i++) {
    world.live(false);
    controller.stalledUntilMs.leases = i > 20 ? Number.POSITIVE_INFINITY : 0;
    for (const sidecar of world.sidecars.values()) sidecar.worksUntilMs = Number.POSITIVE_INFINITY;
    await turn(world, controller);
  }
  expect(world.status()).toMatchObject({ generation: 1, owner: { pod: "run-1" }, attempt: 1 });
});

test("INV-11: an owner that is lost behind a watch of the Lease that fell silent is succeeded in time", async () => {
  const { world, controller } = aCluster();
  await live(world, controller, 20);
  controller.stalledUntilMs.leases = Number.POSITIVE_INFINITY;
  await live(world, controller, 20);
  expect(world.status()).toMatchObject({ generation: 1, owner: { pod: "run-1" } });
  for (const sidecar of world.sidecars.values()) sidecar.frozenUntilMs = Number.POSITIVE_INFINITY;
  await live(world, controller, 25);
  expect(world.status()).toMatchObject({ generation: 2, owner: { pod: "run-2" } });
});

test("an outage of the API server costs no owner its job, also with a standby at hand", async () => {
  const { world, controller } = aCluster({ standbys: { count: 1 } });
  const pass = async (turns: number, outage: boolean): Promise<void> => {
    for (let i = 0; i < turns; i++) {
      world.faultShare = outage ? 1 : 0;
      if (!outage) world.live(false);
      for (const sidecar of world.sidecars.values()) sidecar.worksUntilMs = Number.POSITIVE_INFINITY;
      await turn(world, controller);
    }
  };
  await pass(30, false);
  const { owner } = world.status();
  await pass(60, true);
  // The controller is the first to be answered; the owner renews a second later.
  world.faultShare = 0;
  for (let i = 0; i < 3; i++) await turn(world, controller);
  await pass(60, false);
  expect(world.status()).toMatchObject({ generation: 1, owner: { uid: owner?.uid } });
  for (const sidecar of world.sidecars.values()) sidecar.frozenUntilMs = Number.POSITIVE_INFINITY;
  await pass(12, false);
  expect(world.status().generation).toBe(2);
});

test.each([
  ["its label", { labels: { "fencedjob.dev/attempt": "1" } }],
  ["its owner reference", { ownerReferences: [] }],
])("INV-11: a candidate that somebody takes away by %s is replaced, and left to him", async (_what, change) => {
  const { world, controller } = aCluster();
  for (let i = 0; i < 2; i++) await turn(world, controller);
  const pod = world.objects.pods.get("run-1") as Stored;
  world.put("pods", { ...pod, metadata: { ...pod.metadata, ...change } });
  for (let i = 0; i < 4; i++) await turn(world, controller);
  expect(world.status().candidates).toMatchObject([{ pod: "run-2" }]);
  expect(world.objects.pods.get("run-1")?.metadata.deletionTimestamp).toBeUndefined();
  expect(controller.stores.pods.get("n/run-2")).toBeDefined();
});

test("INV-11: a pod's change concerns the job that it has belonged to, too: it has one less", () => {
  const pod = (...names: string[]) => ({
    metadata: {
      name: "run-1",
      namespace: "n",
      ownerReferences: names.map((name) => ({
        apiVersion: "v1",
        kind: "FencedJob",
        name,
        uid: name,
        controller: true,
      })),
    },
  });
  const keys = (before: Stored | undefined, after: Stored | undefined) => jobKeysOf({ key: "n/run-1", before, after });
  expect(keys(pod("run"), pod("run"))).toEqual(["n/run"]);
  expect(keys(pod("run"), pod())).toEqual(["n/run"]);
  expect(keys(undefined, pod("run"))).toEqual(["n/run"]);
  expect(keys(pod("run"), undefined)).toEqual(["n/run"]);
  expect(keys(pod(), pod())).toEqual([]);
  const orphan = { metadata: { name: "run-1", namespace: "n", labels: { "fencedjob.dev/job": "run" } } };
  expect(keys(orphan, undefined)).toEqual(["n/run"]);
});

test("INV-8, INV-11: suspended in the middle of a takeover and resumed at once, the job goes on with the next generation", async () => {
  const { world, controller } = aCluster();
  await live(world, controller, 20);
  const edit = (suspend: boolean): void => {
    const job = world.job() as Stored;
    const { generation = 0 } = job.metadata;
    world.put("fencedjobs", {
      ...job,
      metadata: { ...job.metadata, generation: generation + 1 },
      spec: { ...job.spec, suspend },
    });
  };
  for (const sidecar of world.sidecars.values()) sidecar.frozenUntilMs = Number.POSITIVE_INFINITY;
  for (let i = 0; i < 12 && conditionOf(world, "Owned")?.reason !== "RenewalOverdue"; i++)
    await turn(world, controller);
  expect(world.status().candidates).toHaveLength(1);
  edit(true);
  await turn(world, controller);
  edit(false);
  await live(world, controller, 40);
  expect(world.status()).toMatchObject({ generation: 2, owner: { generation: 2 }, failures: 0, fence: 2 });
  expect(conditionOf(world, "Suspended")?.status).toBe("False");
  // Nobody is left of those that were stopped.
  const { owner, candidates } = world.status();
  const alive = [...world.objects.pods.values()].filter(({ metadata }) => !metadata.deletionTimestamp);
  expect(alive.map(({ metadata }) => metadata.name)).toEqual([owner?.pod, ...candidates.map(({ pod }) => pod)]);
});

test("a template that is changed twice while its pod is made is made once more, of the last change", async () => {
  const { world, controller } = aCluster();
  await turn(world, controller);
  const { create } = world.api;
  const edit = (image: string): void => {
    const job = world.job() as Stored;
    const template = { spec: { restartPolicy: "Never", containers: [{ name: "app", image }] } };
    world.put("fencedjobs", { ...job, spec: { ...job.spec, template } });
  };
  world.api.create = async (...call) => {
    world.api.create = create;
    edit("y");
    const pod = await create(...call);
    edit("z");
    return pod;
  };
  world.drop("pods", "run-1");
  await live(world, controller, 10);
  const { owner } = world.status();
  expect(owner).toMatchObject({ generation: 1 });
  expect(world.objects.pods.get(owner?.pod ?? "")?.spec.containers).toMatchObject([{ image: "z" }]);
});

test("more standbys, another limit or deadline costs none of those that wait their place; what pods are made of does", async () => {
  const { world, controller } = aCluster({ standbys: { count: 1 } });
  await live(world, controller, 20);
  const edit = async (change: object): Promise<unknown> => {
    const job = world.job() as Stored;
    const { generation = 0 } = job.metadata;
    world.put("fencedjobs", {
      ...job,
      metadata: { ...job.metadata, generation: generation + 1 },
      spec: { ...job.spec, ...change },
    });
    await live(world, controller, 4);
    return world.status().candidates.map(({ pod }) => pod);
  };
  expect(await edit({ standbys: { count: 2 } })).toEqual(["run-2", "run-3"]);
  expect(await edit({ backoffLimit: 1, activeDeadlineSeconds: 9_000, ttlSecondsAfterFinished: 9 })).toEqual([
    "run-2",
    "run-3",
  ]);
  expect(await edit({ standbys: { count: 1 } })).toEqual(["run-2"]);
  expect(await edit({ drainSeconds: 7 })).toEqual(["run-4"]);
  expect(await edit({ standbys: { count: 1, application: "Started" } })).toEqual(["run-5"]);
});

test("a time to live that was made longer is heeded by a controller whose watch does not show it", async () => {
  const { world, controller } = aCluster({ ttlSecondsAfterFinished: 5 });
  await turn(world, controller);
  const pod = world.objects.pods.get("run-1") as Stored;
  world.podIs(pod, "Running");
  await turn(world, controller);
  world.podIs(pod, "Succeeded", false);
  await turn(world, controller);
  expect(world.status().completionTime).toBeDefined();
  await turn(world, controller);
  controller.stalledUntilMs.fencedjobs = Number.POSITIVE_INFINITY;
  const job = world.job() as Stored;
  world.put("fencedjobs", { ...job, spec: { ...job.spec, ttlSecondsAfterFinished: 100 } });
  for (let i = 0; i < 10; i++) await turn(world, controller);
  expect(world.job()).toBeDefined();
});

test("INV-11: a version that the server does not know, of an etcd that was put back behind a watch that goes on, is read anew", async () => {
  const { world, controller } = aCluster();
  const job = world.job() as Stored;
  world.put("fencedjobs", job);
  for (let i = 0; i < 2; i++) {
    world.nowMs += 2_000;
    controller.queued = true;
    await controller.reconcile();
  }
  expect(controller.failures).toBe(0);
  expect(world.status().candidates).toMatchObject([{ pod: "run-1" }]);
});

test("INV-11: a Lease that cannot be written is told, by its owner's condition, and is written when it can be", async () => {
  const { world, controller } = aCluster();
  const { create } = world.api;
  world.api.create = async (resource, object, options = {}) => {
    if (resource.plural === "leases") throw new ApiError("create", 403, { message: "exceeded quota: leases" });
    return create(resource, object, options);
  };
  await live(world, controller, 30);
  expect(world.status()).toMatchObject({ owner: { pod: "run-1", generation: 1 }, summary: "Waiting: its Lease" });
  expect(conditionOf(world, "Owned")).toMatchObject({
    status: "False",
    reason: "WaitingForLease",
    message: "run-1 waits for its Lease to be written: create: exceeded quota: leases",
  });
  world.api.create = create;
  await live(world, controller, 60);
  expect(conditionOf(world, "Owned")).toMatchObject({ status: "True", message: "run-1 owns generation 1" });
});

test("pods that somebody takes away as soon as they are made are made anew thirty times a minute at most, and that is told", async () => {
  const { world, controller } = aCluster();
  const { create } = world.api;
  let made = 0;
  world.api.create = async (resource, object, options = {}) => {
    if (resource.plural === "pods" && !options.dryRun) made++;
    return create(resource, object, options);
  };
  for (let i = 0; i < 180; i++) {
    await turn(world, controller);
    for (const name of [...world.objects.pods.keys()]) world.drop("pods", name);
  }
  expect(made).toBeLessThanOrEqual(91);
  expect(conditionOf(world, "Owned")?.message).toMatch(
    / waits for its pod to be created: its pods go as soon .* is made at 2/,
  );
  await live(world, controller, 90);
  expect(conditionOf(world, "Owned")).toMatchObject({ status: "True" });
});

test("INV-11: what the API server does not let the controller do is told as an event, and done once it may be", async () => {
  const { world, controller } = aCluster();
  await live(world, controller, 10);
  const { delete: remove } = world.api;
  world.api.delete = async () => {
    throw new ApiError("delete pods/run-1", 403, { message: 'admission webhook "x" denied the request' });
  };
  const job = world.job() as Stored;
  world.put("fencedjobs", { ...job, metadata: { ...job.metadata, generation: 2 }, spec: { ...SPEC, suspend: true } });
  await live(world, controller, 10);
  expect([...controller.told].filter((note) => note.includes("cannot"))).toEqual([
    'pod run-1 cannot be deleted: delete pods/run-1: admission webhook "x" denied the request; it is tried again',
  ]);
  world.api.delete = remove;
  await live(world, controller, 90);
  expect(world.objects.pods.has("run-1")).toBe(false);
});
