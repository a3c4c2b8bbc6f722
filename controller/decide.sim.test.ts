/**
 * A seeded random walk through the world around the reconciler: two controllers with caches that lag, pods that appear,
 * run, fail and vanish, sidecars that freeze and renew late, answers that get lost, and in the wild walks somebody who
 * edits and deletes. The invariants are asserted by the modelled cluster at each write. A failure names its seed;
 * FENCEDJOB_WALKS walks longer.
 */
import { describe, expect, test } from "vitest";
import { GENERATION_ANNOTATION, REPORT_ANNOTATION } from "../lease/record.ts";
import { PLURALS, type Plural, type Stored, World } from "../testing/modelledcluster.ts";
import { type ModelledController, startController } from "../testing/modelledcontroller.ts";
import { FINALIZER } from "./reconciler.ts";

const WALKS = Number(process.env.FENCEDJOB_WALKS ?? 60);
const STEPS = 400;
const QUIET_MS = 900_000;

function aWorld(seed: number, spec: object): World {
  const world = new World(seed);
  world.put("fencedjobs", {
    apiVersion: "fencedjob.dev/v1alpha1",
    kind: "FencedJob",
    metadata: { name: "run", generation: 1, finalizers: [FINALIZER] },
    spec: {
      databases: [{ name: "ledger", secretName: "s" }],
      backoffLimit: 1000,
      template: { spec: { restartPolicy: "Never", containers: [{ name: "app", image: "x" }] } },
      ...spec,
    },
  });
  startController(world);
  startController(world);
  return world;
}

const pick = <T>(world: World, list: readonly T[]): T | undefined =>
  list[Math.floor(world.random.unit() * list.length)];

/** What happens without anybody's fault. */
function nature(world: World): void {
  const pods = [...world.objects.pods.values()].filter(({ status }) => ["Pending", "Running"].includes(status.phase));
  const pod = pick(world, pods);
  const controller = pick(world, world.controllers) as ModelledController;
  const act = world.random.unit();
  if (act < 0.03 && pod) world.sidecarOf(pod).frozenUntilMs = world.nowMs + world.random.unit() * 60_000;
  else if (act < 0.05 && pod) world.podIs(pod, "Failed", false);
  else if (act < 0.06 && pod) world.drop("pods", pod.metadata.name);
  else if (act < 0.07 && pod)
    world.put("pods", { ...pod, metadata: { ...pod.metadata, deletionTimestamp: "2026-11-29T13:00:00Z" } });
  else if (act < 0.09) {
    world.tell("a controller restarts");
    controller.restart();
  } else if (act < 0.13) {
    const plural = pick(world, PLURALS) as Plural;
    world.tell(`controller ${world.controllers.indexOf(controller)}: watch of ${plural} stalls`);
    controller.stalledUntilMs[plural] = world.nowMs + world.random.unit() * 120_000;
  } else if (act < 0.15) world.faultShare = world.chance(0.7) ? 0 : 0.3;
}

/** What people with rights and no mercy do. */
function mischief(world: World): void {
  const pod = pick(world, [...world.objects.pods.values()]);
  const edit = (change: { metadata?: object; spec?: object }): void => {
    const lease = world.lease();
    if (!lease) return;
    const metadata = { ...lease.metadata, ...change.metadata };
    world.put("leases", { ...lease, metadata, spec: { ...lease.spec, ...change.spec } });
  };
  const annotate = (key: string, values: readonly string[]): void =>
    edit({ metadata: { annotations: { ...world.lease()?.metadata.annotations, [key]: pick(world, values) } } });
  const template = { spec: { restartPolicy: "Never", containers: [{ name: "app", image: `x${world.versions}` }] } };
  const acts: readonly [string, () => void][] = [
    ["deletes the Lease", () => world.drop("leases", "run")],
    ["names another pod", () => edit({ spec: { holderIdentity: pod?.metadata.uid ?? "nobody" } })],
    ["writes a generation", () => annotate(GENERATION_ANNOTATION, ["7", "1e3", "9007199254740991"])],
    ["writes a report", () => annotate(REPORT_ANNOTATION, REPORTS)],
    ["takes the label off", () => edit({ metadata: { labels: {} } })],
    ["counts transitions", () => edit({ spec: { leaseTransitions: 2 ** 31 - 1 } })],
    ["suspends or resumes", () => changeSpec(world, { suspend: !world.job()?.spec.suspend })],
    ["changes the image", () => changeSpec(world, { template })],
  ];
  const [what, act] = pick(world, acts) as (typeof acts)[number];
  world.tell(`somebody ${what}`);
  act();
}

const REPORTS = [
  "x",
  "[]",
  '{"generation":1,"fences":[null],"failures":[null]}',
  '{"generation":1,"fences":[{"database":"ledger"}],"failures":[{"final":true,"floor":"9"}]}',
];

function changeSpec(world: World, change: object): void {
  const job = world.job() as Stored;
  world.put("fencedjobs", {
    ...job,
    metadata: { ...job.metadata, generation: (job.metadata.generation ?? 0) + 1 },
    spec: { ...job.spec, ...change },
  });
}

async function walk(seed: number, wild: boolean): Promise<World> {
  const world = aWorld(seed, { standbys: { count: seed % 3 } });
  world.wild = wild;
  try {
    for (let step = 0; step < STEPS; step++) {
      world.nowMs += 50 + world.random.unit() * 1_000;
      if (world.chance(0.3)) nature(world);
      if (wild && world.chance(0.03)) mischief(world);
      world.live(false);
      for (const controller of world.controllers) {
        controller.watch(0.8);
        if (world.chance(0.8)) await controller.reconcile();
      }
    }
    await calm(world);
  } catch (error) {
    (error as Error).message = `seed ${seed}: ${(error as Error).message}\n${world.story.slice(-40).join("\n")}`;
    throw error;
  }
  return world;
}

/** Nothing goes wrong any more: the job ends, and nothing spins. */
async function calm(world: World): Promise<void> {
  world.faultShare = 0;
  if (world.job()?.spec.suspend) changeSpec(world, { suspend: false });
  for (const sidecar of world.sidecars.values()) sidecar.frozenUntilMs = 0;
  for (const controller of world.controllers) for (const plural of PLURALS) controller.stalledUntilMs[plural] = 0;
  const endMs = world.nowMs + QUIET_MS;
  const before = world.controllers.reduce((sum, { runs }) => sum + runs, 0);
  const startMs = world.nowMs - 1_000;
  while (world.nowMs < endMs && !world.status().completionTime) {
    world.nowMs += 250;
    world.live(true);
    for (const controller of world.controllers) {
      controller.watch(1);
      await controller.reconcile();
    }
  }
  const { completionTime, summary, conditions } = world.status();
  expect(completionTime, `the job never ends: ${summary} ${JSON.stringify(conditions)}`).toBeDefined();
  const runs = world.controllers.reduce((sum, { runs }) => sum + runs, 0) - before;
  expect(runs / ((world.nowMs - startMs) / 1000), "reconciles per second").toBeLessThan(8);
}

describe("random walks", () => {
  test("INV-2, INV-7, INV-8, INV-9: without mischief nothing is granted twice, and no live owner is replaced", async () => {
    for (let seed = 1; seed <= WALKS; seed++) await walk(seed, false);
  });

  test("INV-2, INV-7, INV-8, INV-9: with Leases and specs edited under the controllers; the job still ends", async () => {
    for (let seed = 1001; seed <= 1000 + WALKS; seed++) await walk(seed, true);
  });
});
