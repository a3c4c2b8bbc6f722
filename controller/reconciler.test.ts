/** One reconcile at a time, in the modelled cluster of the random walks: what is too rare for them to meet. */
import { expect, test } from "vitest";
import { GENERATION_ANNOTATION } from "../lease/record.ts";
import { type Stored, World } from "../testing/modelledcluster.ts";
import { type ModelledController, startController } from "../testing/modelledcontroller.ts";
import { ApiError } from "./kube/errors.ts";
import { FINALIZER } from "./reconciler.ts";

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

test("a webhook that is down is a condition, and keeps nobody from following an owner", async () => {
  const { world, controller } = aCluster();
  refusePods(world, 500, "failed calling webhook", true);
  await turn(world, controller);
  expect(conditionOf(world, "Admitted")).toMatchObject({ status: "False", reason: "AdmissionUnavailable" });
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
