/** One reconcile at a time, in the modelled cluster of the random walks: what is too rare for them to meet. */
import { expect, test } from "vitest";
import { GENERATION_ANNOTATION } from "../lease/record.ts";
import { HttpError } from "../platform/http.ts";
import { type Stored, World } from "../testing/modelledcluster.ts";
import { type ModelledController, startController } from "../testing/modelledcontroller.ts";
import { FINALIZER } from "./finalizer.ts";
import { ApiError } from "./kube/errors.ts";
import { jobKeysOf } from "./reconciler.ts";

const SPEC = {
  databases: [{ name: "ledger", secretName: "s" }],
  template: { spec: { restartPolicy: "Never", containers: [{ name: "app", image: "x" }] } },
};

function aCluster(spec: object = {}): { world: World; controller: ModelledController } {
  const world = new World(1);
  world.put("fencedjobs", {
    apiVersion: "fencedjob.dev/v1alpha1",
    kind: "FencedJob",
    metadata: { name: "run", generation: 1, finalizers: [FINALIZER] },
    spec: { ...SPEC, ...spec },
  });
  return { world, controller: startController(world) };
}

/** Brings every watch up to date and reconciles what has changed. */
async function turn(world: World, controller: ModelledController): Promise<void> {
  world.nowMs += 1_000;
  controller.watch(1);
  await controller.reconcile();
}

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

const conditionOf = (world: World, type: string) => world.status().conditions.find((one) => one.type === type);

/** The API server refuses each creation of a pod, or of one in a dry run. */
function refusePods(world: World, status: number, message: string, dryRun: boolean): void {
  const { create } = world.api;
  world.api.create = async (resource, object, options = {}) => {
    if (resource.plural === "pods" && (options.dryRun ?? false) === dryRun)
      throw new ApiError("create", status, { message });
    return create(resource, object, options);
  };
}

test.each([
  ["is down", new ApiError("create", 500, { message: "failed calling webhook" })],
  ["hangs", new HttpError("timeout", "no answer within 10000 ms", true)],
])("a webhook that %s is a condition, and keeps nobody from following an owner", async (_what, error) => {
  const { world, controller } = aCluster();
  await live(world, controller, 10);
  const { create } = world.api;
  world.api.create = async (resource, object, options = {}) => {
    if (options.dryRun) throw error;
    return create(resource, object, options);
  };
  const job = world.job() as Stored;
  world.put("fencedjobs", { ...job, metadata: { ...job.metadata, generation: 2 } });
  const pod = world.objects.pods.get("run-1") as Stored;
  world.podIs(pod, "Succeeded", false);
  await turn(world, controller);
  expect(conditionOf(world, "Admitted")).toMatchObject({ status: "False", reason: "AdmissionUnavailable" });
  expect(conditionOf(world, "Complete")?.status).toBe("True");
  world.api.create = create;
  for (let i = 0; i < 12; i++) await turn(world, controller);
  expect(conditionOf(world, "Admitted")?.status).toBe("True");
});

test.each([
  ["volumes", { volumes: [null] }],
  ["initContainers", { initContainers: [{ name: "migrate" }, null] }],
  ["env", { containers: [{ name: "app", image: "x", env: [null] }] }],
])(
  "a dash without an item in %s is a condition, and keeps nobody from following an owner (D04)",
  async (where, slip) => {
    const { world, controller } = aCluster();
    await live(world, controller, 10);
    const job = world.job() as Stored;
    const template = { spec: { ...SPEC.template.spec, ...slip } };
    world.put("fencedjobs", { ...job, metadata: { ...job.metadata, generation: 2 }, spec: { ...SPEC, template } });
    world.podIs(world.objects.pods.get("run-1") as Stored, "Succeeded", false);
    await turn(world, controller);
    expect(conditionOf(world, "Admitted")).toMatchObject({ status: "False", reason: "InvalidTemplate" });
    expect(conditionOf(world, "Admitted")?.message).toContain(where);
    expect(conditionOf(world, "Complete")?.status).toBe("True");
  },
);

test.each([
  [401, "pods is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"],
  [409, 'admission webhook "w" denied the request: no'],
])("a denial with the code %i is a condition, and keeps nobody from following an owner", async (code, message) => {
  const { world, controller } = aCluster();
  await live(world, controller, 10);
  refusePods(world, code, message, true);
  const job = world.job() as Stored;
  world.put("fencedjobs", { ...job, metadata: { ...job.metadata, generation: 2 } });
  world.podIs(world.objects.pods.get("run-1") as Stored, "Succeeded", false);
  await turn(world, controller);
  expect(conditionOf(world, "Admitted")).toMatchObject({
    status: "False",
    reason: "InvalidTemplate",
    message: expect.stringContaining(message),
  });
  expect(conditionOf(world, "Complete")?.status).toBe("True");
});

test("a webhook that takes no part in dry runs does not keep the job from running", async () => {
  const { world, controller } = aCluster();
  refusePods(world, 400, 'admission webhook "x" does not support dry run', true);
  await turn(world, controller);
  expect([...world.objects.pods.keys()]).toEqual(["run-1"]);
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

test("a pod that is refused though its dry run was not: the condition says why", async () => {
  const { world, controller } = aCluster();
  refusePods(world, 403, "exceeded quota", false);
  for (let i = 0; i < 4; i++) await turn(world, controller);
  expect(conditionOf(world, "Owned")?.message).toBe("run-1 waits for its pod to be created: create: exceeded quota");
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

/** Everybody goes on for so many turns; no application ends. */
async function live(world: World, controller: ModelledController, turns: number): Promise<void> {
  for (let i = 0; i < turns; i++) {
    world.live(false);
    for (const sidecar of world.sidecars.values()) sidecar.worksUntilMs = Number.POSITIVE_INFINITY;
    await turn(world, controller);
  }
}

test("a full quota is no fault of the template: what is there keeps its place, and what is missing is told", async () => {
  const { world, controller } = aCluster({ standbys: { count: 2 } });
  await live(world, controller, 20);
  expect(world.status().candidates).toEqual([
    { attempt: 2, pod: "run-2" },
    { attempt: 3, pod: "run-3" },
  ]);
  for (const dryRun of [true, false]) refusePods(world, 403, "exceeded quota", dryRun);
  world.drop("pods", "run-3");
  await live(world, controller, 40);
  expect([...world.objects.pods.keys()]).toEqual(["run-1", "run-2"]);
  expect(conditionOf(world, "Owned")?.message).toBe(
    "run-1 owns generation 1; run-3 waits for its pod to be created: create: exceeded quota",
  );
});

test("a quota that has no room for the role of a job's pods is told, and the role is made once there is room", async () => {
  const { world, controller } = aCluster();
  const applied: string[] = [];
  let full = true;
  world.api.apply = async (resource, object) => {
    const { plural } = resource as { plural: string };
    if (full && plural === "roles") throw new ApiError("apply", 403, { message: "exceeded quota: roles" });
    applied.push(plural);
    return object;
  };
  await live(world, controller, 5);
  expect(conditionOf(world, "Admitted")).toMatchObject({
    status: "False",
    message: expect.stringContaining("exceeded quota: roles"),
  });
  expect(world.objects.pods.size).toBe(0);
  full = false;
  await live(world, controller, 60);
  expect(applied).toContain("rolebindings");
  expect(world.status()).toMatchObject({ generation: 1, owner: { pod: "run-1" } });
});

test("INV-11: a webhook that is down when a standby is lost costs the other one nothing, and it takes over", async () => {
  const { world, controller } = aCluster({ standbys: { count: 2 } });
  await live(world, controller, 20);
  for (const dryRun of [true, false]) refusePods(world, 500, "failed calling webhook", dryRun);
  world.drop("pods", "run-3");
  await live(world, controller, 40);
  expect(conditionOf(world, "Admitted")).toMatchObject({ status: "False", reason: "AdmissionUnavailable" });
  const [first] = world.sidecars.values();
  if (first) first.frozenUntilMs = Number.POSITIVE_INFINITY;
  await live(world, controller, 20);
  expect(world.status()).toMatchObject({ generation: 2, owner: { pod: "run-2" } });
});

test("a standby that cannot be created does not keep an owner's silence from being seen: the other one takes over in time", async () => {
  const { world, controller } = aCluster({ standbys: { count: 2 } });
  await live(world, controller, 20);
  refusePods(world, 403, "exceeded quota", false);
  world.drop("pods", "run-3");
  await live(world, controller, 200);
  expect(world.status()).toMatchObject({ generation: 1 });
  const [first] = world.sidecars.values();
  if (first) first.frozenUntilMs = Number.POSITIVE_INFINITY;
  await live(world, controller, 20);
  expect(world.status()).toMatchObject({ generation: 2, owner: { pod: "run-2" } });
});

test("a webhook that hangs at each standby's creation holds up no takeover, and its own job for one answer at most", async () => {
  const { world, controller } = aCluster({ standbys: { count: 3 } });
  await live(world, controller, 20);
  const { create } = world.api;
  const asked: string[] = [];
  world.api.create = async (resource, object, options = {}) => {
    if (resource.plural !== "pods" || options.dryRun) return create(resource, object, options);
    world.nowMs += 10_000;
    asked.push(
      `${object.metadata.name} with owner ${world.lease()?.metadata.annotations?.["fencedjob.dev/holder-pod"]}`,
    );
    throw new ApiError("create", 500, { message: "failed calling webhook" });
  };
  for (const lost of ["run-1", "run-3", "run-4"]) world.drop("pods", lost);
  await turn(world, controller);
  expect(asked).toEqual(["run-3 with owner run-2"]);
});

test("the first pod that a controller makes of a job has its rights corrected, though the template was accepted before its time", async () => {
  const { world, controller } = aCluster();
  await turn(world, controller);
  const applied: string[] = [];
  world.api.apply = async (resource, object) => {
    applied.push((resource as { plural: string }).plural);
    return object;
  };
  controller.restart();
  world.drop("pods", "run-1");
  for (let i = 0; i < 3; i++) await turn(world, controller);
  expect([...world.objects.pods.keys()]).toEqual(["run-1"]);
  expect(applied).toEqual(["serviceaccounts", "roles", "rolebindings"]);
});

test("INV-11: a webhook that is down where rights are given keeps no successor from a job that has them", async () => {
  const { world, controller } = aCluster();
  await live(world, controller, 20);
  const [first] = world.sidecars.values();
  if (first) first.frozenUntilMs = Number.POSITIVE_INFINITY;
  await live(world, controller, 30);
  expect(world.status()).toMatchObject({ owner: { pod: "run-2" }, history: [{ reason: "LeaseExpired" }] });
  world.api.apply = async () => {
    throw new ApiError("apply", 500, { message: "failed calling webhook" });
  };
  world.drop("pods", "run-2");
  await live(world, controller, 20);
  expect(world.status()).toMatchObject({ generation: 3, owner: { pod: "run-3" } });
});

test("an owner that was made with the account of ours keeps its Lease when the template is read to name another", async () => {
  // As a controller before this one made it: serviceAccount was not read.
  const { world, controller } = aCluster({
    template: { spec: { ...SPEC.template.spec, serviceAccount: "billing" } },
    standbys: { count: 1 },
  });
  const subjects: unknown[] = [];
  world.api.apply = async (resource, object) => {
    if ((resource as { plural: string }).plural === "rolebindings") subjects.push(object.subjects);
    return object;
  };
  await live(world, controller, 20);
  const names = [{ name: "billing" }, { name: "run-fencedjob" }];
  for (const bound of subjects) expect(bound).toMatchObject(names);
  expect(subjects).not.toEqual([]);
});

test("rights that somebody has taken away are given again before the job has failed for it", async () => {
  const { world, controller } = aCluster({ backoffLimit: 0 });
  await live(world, controller, 20);
  const applied: string[] = [];
  world.api.apply = async (resource, object) => {
    applied.push((resource as { plural: string }).plural);
    return object;
  };
  // Without the role no sidecar reaches its Lease.
  for (let i = 0; i < 60 && !applied.includes("roles"); i++) {
    for (const pod of world.objects.pods.values()) world.sidecarOf(pod).frozenUntilMs = Number.POSITIVE_INFINITY;
    await live(world, controller, 1);
  }
  expect(applied).toContain("roles");
  for (const sidecar of world.sidecars.values()) sidecar.frozenUntilMs = 0;
  await live(world, controller, 30);
  expect(world.status()).toMatchObject({ generation: 2, owner: { pod: "run-2" } });
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
