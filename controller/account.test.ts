/** When the rights of a job's pods are given, and given again. */
import { expect, test } from "vitest";
import { aCluster, live, SPEC, turn } from "../testing/reconciling.ts";
import { ApiError } from "./kube/errors.ts";

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
