/** One reconcile at a time, in the modelled cluster of the random walks: what is too rare for them to meet. */
import { expect, test } from "vitest";
import { type ModelledController, type Stored, World } from "../testing/modelledcluster.ts";

const SPEC = {
  databases: [{ name: "ledger", secretName: "s" }],
  template: { spec: { restartPolicy: "Never", containers: [{ name: "app", image: "x" }] } },
};

function aCluster(): { world: World; controller: ModelledController } {
  const world = new World(1);
  world.put("fencedjobs", {
    apiVersion: "fencedjob.dev/v1alpha1",
    kind: "FencedJob",
    metadata: { name: "run", generation: 1 },
    spec: SPEC,
  });
  return { world, controller: world.startController() };
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
