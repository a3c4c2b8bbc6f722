/** What the API server lets no pod be made of, or makes wait: it is told, and costs neither an owner nor a standby its place. */
import { expect, test } from "vitest";
import { HttpError } from "../platform/http.ts";
import type { Stored, World } from "../testing/modelledcluster.ts";
import { aCluster, conditionOf, live, SPEC, turn } from "../testing/reconciling.ts";
import { ApiError } from "./kube/errors.ts";

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

test("a pod that is refused though its dry run was not: the condition says why", async () => {
  const { world, controller } = aCluster();
  refusePods(world, 403, "exceeded quota", false);
  for (let i = 0; i < 4; i++) await turn(world, controller);
  expect(conditionOf(world, "Owned")?.message).toBe("run-1 waits for its pod to be created: create: exceeded quota");
});

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

test("a webhook that hangs since the owner has fallen silent holds up no takeover by a standby that is ready", async () => {
  const { world, controller } = aCluster({ standbys: { count: 1 } });
  await live(world, controller, 20);
  const { create } = world.api;
  world.api.create = async (resource, object, options = {}) => {
    if (resource.plural !== "pods") return create(resource, object, options);
    world.nowMs += 10_000;
    throw new ApiError("create", 500, { message: "failed calling webhook" });
  };
  const [first] = world.sidecars.values();
  if (first) first.frozenUntilMs = Number.POSITIVE_INFINITY;
  const silentMs = world.nowMs;
  while (world.status().generation === 1) await live(world, controller, 1);
  expect(world.status()).toMatchObject({ generation: 2, owner: { pod: "run-2" } });
  expect(world.nowMs - silentMs).toBeLessThan(12_000);
});
