/** One reconcile at a time, in the modelled cluster of the random walks, of the one job `run`. */
import { FINALIZER } from "../controller/finalizer.ts";
import { World } from "./modelledcluster.ts";
import { type ModelledController, startController } from "./modelledcontroller.ts";

export const SPEC = {
  databases: [{ name: "ledger", secretName: "s" }],
  template: { spec: { restartPolicy: "Never", containers: [{ name: "app", image: "x" }] } },
};

export function aCluster(spec: object = {}): { world: World; controller: ModelledController } {
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
export async function turn(world: World, controller: ModelledController): Promise<void> {
  world.nowMs += 1_000;
  controller.watch(1);
  await controller.reconcile();
}

export const conditionOf = (world: World, type: string) => world.status().conditions.find((one) => one.type === type);

/** Everybody goes on for so many turns; no application ends. */
export async function live(world: World, controller: ModelledController, turns: number): Promise<void> {
  for (let i = 0; i < turns; i++) {
    world.live(false);
    for (const sidecar of world.sidecars.values()) sidecar.worksUntilMs = Number.POSITIVE_INFINITY;
    await turn(world, controller);
  }
}
