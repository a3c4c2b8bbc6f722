/**
 * Each way in which an owner is lost, on real nodes: the next one writes, nothing of the old one is committed after it, the
 * status says why, and the time it took is written down (`FENCEDJOB_RECORD=1`: into docs/takeover.md by `npm run generate`).
 */
import { describe, expect, test } from "vitest";
import { RESOURCES } from "../controller/kube/api.ts";
import { until } from "../testing/until.ts";
import { killKubelet } from "./cluster/faults.ts";
import { AFTER_THE_LEASE, AT_ONCE } from "./takeover/scenarios.ts";
import { inStage } from "./takeover/stages.ts";
import { keyOf } from "./takeover/steps.ts";

const TEST_MS_MAX = 15 * 60_000;
const stages = inStage("takeover", { records: true });

describe("at once", { timeout: TEST_MS_MAX }, () => {
  test.for(AT_ONCE)("$id: $cause", async (scenario, { skip }) => {
    await stages.play(stages.on(skip), scenario);
  });
});

describe.concurrent("after the lease", { timeout: TEST_MS_MAX }, () => {
  test.concurrent.for(AFTER_THE_LEASE)("$id: $cause", async (scenario, { skip }) => {
    await stages.play(stages.on(skip), scenario);
  });
});

describe("no takeover", { timeout: TEST_MS_MAX }, () => {
  test("D15: a kubelet that is dead does not make the owner one that is lost: it renews and writes on", async ({
    skip,
  }) => {
    const stage = stages.on(skip);
    const { scene, ledger } = stage;
    await stage.create({ name: "kubelet-dead", waitsForLease: true });
    const owner = await stage.owner("kubelet-dead");
    const start = await killKubelet(owner.node ?? "");
    try {
      // Longer than the lease, by what the owner writes meanwhile.
      const { lastMs } = await ledger.writes("kubelet-dead", owner.uid, 1, TEST_MS_MAX);
      await until(async () => {
        const [writer] = await ledger.writers("kubelet-dead");
        return (writer?.lastMs ?? 0) > lastMs + 15_000;
      }, TEST_MS_MAX);
      expect((await scene.status("kubelet-dead")).owner).toMatchObject({
        uid: owner.uid,
        generation: owner.generation,
      });
    } finally {
      await start();
    }
    await stage.remove("kubelet-dead");
    await until(() => scene.podIsGone(owner.pod), TEST_MS_MAX);
  });

  test("an image that cannot be pulled: the job waits and says so, and goes on with the spec's next version", async ({
    skip,
  }) => {
    const stage = stages.on(skip);
    const { scene, ledger } = stage;
    const name = "never-pulled";
    await stage.create({ name, container: { image: "localhost/nobody-has-this:1" } });
    const key = keyOf(stage, name);
    const words = await until(async () => {
      const owned = await scene.condition(name, "Owned");
      return /ErrImagePull|ImagePullBackOff/.test(owned?.message ?? "") ? owned?.message : null;
    }, TEST_MS_MAX);
    expect(words).toMatch(/container app: /);
    const { template } = (await scene.api.get(RESOURCES.fencedJobs, key)).spec as {
      template: { spec: { containers: { image: string }[] } };
    };
    const containers = template.spec.containers.map((container) => ({ ...container, image: scene.scriptImage }));
    const fixedMs = await ledger.nowMs();
    await scene.api.patch(RESOURCES.fencedJobs, key, { spec: { template: { spec: { containers } } } });
    const [writer] = await until(async () => {
      const writers = await ledger.writers(name);
      return writers.length ? writers : null;
    }, TEST_MS_MAX);
    console.error(
      `first write after the image was mended: ${(((writer?.firstMs ?? 0) - fixedMs) / 1000).toFixed(1)} s`,
    );
    await stage.remove(name);
  });

  test("A05, C06: after SIGTERM the application writes on until it ends, and only then the Lease is given back", async ({
    skip,
  }) => {
    const stage = stages.on(skip);
    const { scene, ledger } = stage;
    const name = "finishes";
    const WRITES_ON_MS = 8_000;
    await stage.create({ name, onSigterm: WRITES_ON_MS, podSpec: { terminationGracePeriodSeconds: 30 } });
    const owner = await stage.owner(name);
    const deletedMs = await ledger.nowMs();
    const taken = await stage.takeover(name, async ({ pod }) => {
      await scene.api.delete(RESOURCES.pods, keyOf(stage, pod));
    });
    expect(taken.from.uid).toBe(owner.uid);
    // It ends with a row that it sends after that time.
    expect(taken.from.lastMs - deletedMs).toBeGreaterThan(WRITES_ON_MS - 1_000);
    expect(taken.staleRows).toBe(0);
    await stage.remove(name);
  });
});
