/** INV-3 on real nodes where nobody follows: a job that has failed, or is gone, lets no generation in, wherever its pods still run. */
import { describe, expect, test } from "vitest";
import { RESOURCES } from "../controller/kube/api.ts";
import type { RawObject } from "../controller/kube/objects.ts";
import { until } from "../testing/until.ts";
import { cutNode } from "./cluster/faults.ts";
import { STEP_MS_MAX, type Stage } from "./takeover/stage.ts";
import { inStage } from "./takeover/stages.ts";
import { fenceRow, isTrue, keyOf, patchJob } from "./takeover/steps.ts";

const TEST_MS_MAX = 10 * 60_000;
const stages = inStage("ends");

/** Nothing was committed since, and the database says why: its fence is closed. */
async function expectOver(stage: Stage, name: string, sinceMs: number): Promise<void> {
  expect((await fenceRow(stage, name)).closedAt).not.toBe("");
  for (const { lastMs } of await stage.ledger.writers(name)) expect(lastMs).toBeLessThan(sinceMs);
}

const seconds = (ms: number): string => `${(ms / 1000).toFixed(1)} s`;

/**
 * The active deadline of a job that is at work, so that it passes after so many seconds from now: how long its start takes on a busy
 * machine is not what is tried. Returns when it passes, in ms.
 */
async function deadlineIn(stage: Stage, name: string, leftSeconds: number): Promise<number> {
  const startMs = Date.parse((await stage.scene.status(name)).startTime ?? "");
  const ranSeconds = Math.ceil(((await stage.ledger.nowMs()) - startMs) / 1000);
  const activeDeadlineSeconds = ranSeconds + leftSeconds;
  await patchJob(stage, name, { spec: { activeDeadlineSeconds } });
  return startMs + 1000 * activeDeadlineSeconds;
}

describe("a job that ends without a success", { timeout: TEST_MS_MAX }, () => {
  test("past its deadline: the application has its grace period, and Failed comes when the fence is closed", async ({
    skip,
  }) => {
    const stage = stages.on(skip);
    const name = "late";
    await stage.create({ name, onSigterm: 2_000 });
    const { pod, generation } = await stage.owner(name);
    const deadlineMs = await deadlineIn(stage, name, 5);
    expect((await isTrue(stage, name, "Failed")).reason).toBe("DeadlineExceeded");
    const endedMs = await stage.ledger.nowMs();
    const { history, failing } = await stage.scene.status(name);
    console.error(`past its deadline: failed ${seconds(endedMs - deadlineMs)} after it`);
    // Not a closer's: its own sidecar has closed.
    expect(history).toMatchObject([{ pod, generation, reason: "DeadlineExceeded" }]);
    expect(failing).toBeUndefined();
    await expectOver(stage, name, endedMs);
    await stage.remove(name);
  });

  test("past its deadline on a node that is cut off: a pod of its own closes behind it, and what still runs writes no more", async ({
    skip,
  }) => {
    const here = stages.on(skip);
    const { scene } = here;
    const name = "late-cut-off";
    await here.createWhereItMayBeLost({ name, waitsForLease: true });
    await here.owner(name);
    const mend = await cutNode(here.goes);
    let endedMs: number;
    try {
      // Before the Lease runs out: nobody follows it.
      const deadlineMs = await deadlineIn(here, name, 1);
      expect((await isTrue(here, name, "Failed")).reason).toBe("DeadlineExceeded");
      endedMs = await here.ledger.nowMs();
      const { history } = await scene.status(name);
      console.error(`cut off: failed ${seconds(endedMs - deadlineMs)} after its deadline`);
      expect(history.map(({ generation, reason }) => [generation, reason])).toEqual([
        [2, expect.any(String)],
        [1, "LeaseExpired"],
      ]);
      expect(await here.ledger.writers(name)).toHaveLength(1);
    } finally {
      await mend();
    }
    await until(() => scene.podIsGone(`${name}-1`), STEP_MS_MAX);
    await expectOver(here, name, endedMs);
    await here.remove(name);
  });

  test.for(["exit", "ignore"] as const)(
    "deleted in the foreground while its application would %s on SIGTERM: Kubernetes takes Lease, account and pods first, and the fence is closed",
    async (onSigterm, { skip }) => {
      const stage = stages.on(skip);
      const name = `foreground-${onSigterm}`;
      await stage.create({ name, onSigterm });
      await stage.owner(name);
      await deleteInForeground(stage, name);
    },
  );

  test("deleted in the foreground with its pod on a node that is cut off, which Kubernetes waits for: the fence is closed meanwhile", async ({
    skip,
  }) => {
    const here = stages.on(skip);
    const { scene } = here;
    const name = "foreground-cut-off";
    await here.createWhereItMayBeLost({ name, waitsForLease: true });
    await here.owner(name);
    const mend = await cutNode(here.goes);
    try {
      await scene.api.delete(RESOURCES.fencedJobs, keyOf(here, name), { propagationPolicy: "Foreground" });
      const closed = async (): Promise<boolean> => (await fenceRow(here, name)).closedAt !== "";
      await until(closed, STEP_MS_MAX, { what: `the fence of ${name} is closed` });
    } finally {
      await mend();
    }
    await until(() => scene.jobIsGone(name), STEP_MS_MAX);
    await expectNoneLeftOpen(here);
  });
});

async function deleteInForeground(stage: Stage, name: string): Promise<void> {
  const { scene } = stage;
  const startMs = performance.now();
  await scene.api.delete(RESOURCES.fencedJobs, keyOf(stage, name), { propagationPolicy: "Foreground" });
  await until(() => scene.jobIsGone(name), STEP_MS_MAX);
  const goneMs = await stage.ledger.nowMs();
  console.error(`${name}: gone after ${seconds(performance.now() - startMs)}`);
  await expectOver(stage, name, goneMs);
  await expectNoneLeftOpen(stage);
}

async function expectNoneLeftOpen({ scene }: Stage): Promise<void> {
  const { items } = await scene.api.list<RawObject & { reason?: string }>(RESOURCES.events, {
    namespace: scene.namespace,
  });
  expect(items.length).toBeGreaterThan(0);
  expect(items.filter(({ reason }) => reason === "FenceNotClosed")).toEqual([]);
}
