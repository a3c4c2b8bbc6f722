/**
 * INV-1, INV-8 on real nodes: what is taken away behind FencedJob's back, and the next owner's first write after it. Written down
 * as `takeover.e2e.test.ts` does (`FENCEDJOB_RECORD=1`).
 */
import { describe, expect, test } from "vitest";
import { RESOURCES } from "../controller/kube/api.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { until } from "../testing/until.ts";
import { openLedger } from "./takeover/ledger.ts";
import { CLUSTER, OBJECTS } from "./takeover/permanence.ts";
import { DATABASES } from "./takeover/restores.ts";
import { Stage } from "./takeover/stage.ts";
import { inNamespace, inStage } from "./takeover/stages.ts";
import { fenceRow, keyOf, type PermanenceScenario } from "./takeover/steps.ts";

const OWN_NAMESPACE = "permanence-anew";
const TEST_MS_MAX = 15 * 60_000;
const stages = inStage("permanence", { records: true });

async function playHere(here: Stage, scenario: PermanenceScenario): Promise<void> {
  await here.putSecret();
  await stages.play(here, scenario);
}

describe("objects", { timeout: TEST_MS_MAX }, () => {
  test.for(OBJECTS)("$id: $cause", async (scenario, { skip }) => {
    const stage = stages.on(skip);
    if (!scenario.ownNamespace) return playHere(stage, scenario);
    await inNamespace(stage, OWN_NAMESPACE, (here) => playHere(here, scenario));
  });
});

describe("databases", { timeout: TEST_MS_MAX }, () => {
  test.for(DATABASES)("$id: $cause", async (scenario, { skip }) => {
    const { scene } = stages.on(skip);
    const { version = 18 } = scenario.database ?? {};
    skip(!postgresVersions().found.includes(version), `PostgreSQL ${version} is not installed`);
    const ledger = await openLedger(scene.cluster.hostAddress as string, scenario.database);
    try {
      await playHere(new Stage(scene, ledger, scenario.id), scenario);
      // It closes its fence, for which it needs the database.
      await until(() => scene.jobIsGone(scenario.id), TEST_MS_MAX);
    } finally {
      await ledger.close();
    }
  });
});

describe("no takeover", { timeout: TEST_MS_MAX }, () => {
  test("INV-1: the database crashes right after a raise, with synchronous_commit=off: the owner goes on, and nobody before it", async ({
    skip,
  }) => {
    const { scene } = stages.on(skip);
    const name = "crash-of-database";
    const ledger = await openLedger(scene.cluster.hostAddress as string);
    try {
      await ledger.query("ALTER SYSTEM SET synchronous_commit = off");
      await ledger.query("ALTER SYSTEM SET wal_writer_delay = '10s'");
      await ledger.query("SELECT pg_reload_conf()");
      const here = new Stage(scene, ledger, name);
      await here.putSecret();
      await here.create({ name });
      await here.owner(name);
      const first = (await scene.status(name)).owner;
      await scene.api.delete(RESOURCES.pods, keyOf(here, first?.pod ?? ""));
      const { uid } = await scene.owner(name, 2, TEST_MS_MAX);
      await ledger.server.crash();
      const crashedMs = await ledger.nowMs();
      await until(async () => (await ledger.writers(name)).some((one) => one.uid === uid && one.lastMs > crashedMs));
      expect((await scene.status(name)).owner).toMatchObject({ uid, generation: 2 });
      expect((await fenceRow(here, name)).holder).toBe(uid);
      await here.remove(name);
      await until(() => scene.jobIsGone(name), TEST_MS_MAX);
    } finally {
      await ledger.close();
    }
  });
});

// The last one: it takes everything back that the others did to the cluster since.
describe("the cluster", { timeout: TEST_MS_MAX }, () => {
  test.for(CLUSTER)("$id: $cause", async (scenario, { skip }) => {
    await playHere(stages.on(skip), scenario);
  });
});
