/** INV-3, INV-6, INV-7, INV-8 on real nodes, when two things happen at once. What was committed, and in which order, the database says. */
import { afterAll, beforeAll, describe, test } from "vitest";
import { openScene, type Scene, SETUP_MS_MAX } from "./scene.ts";
import { COMBINATIONS, expectOneAfterTheOther } from "./takeover/combinations.ts";
import { play, tell } from "./takeover/play.ts";
import type { Measured } from "./takeover/results.ts";
import type { Stage } from "./takeover/stage.ts";
import { inNamespace, openStage } from "./takeover/stages.ts";
import type { PermanenceScenario } from "./takeover/steps.ts";

const NAMESPACE = "combinations";
const OWN_NAMESPACE = "combinations-anew";
const TEST_MS_MAX = 15 * 60_000;
const NO_WAY = "only on the local node can pods reach a database that no node takes along, and nodes be lost";

let scene: Scene;
let stage: Stage | undefined;
const measured: Measured[] = [];

beforeAll(async () => {
  scene = await openScene(NAMESPACE);
  stage = await openStage(scene);
  await stage?.setUp();
}, SETUP_MS_MAX);

afterAll(async () => {
  tell(measured);
  await stage?.tearDown();
  await stage?.ledger.close();
  await scene?.close();
}, SETUP_MS_MAX);

async function playHere(here: Stage, scenario: PermanenceScenario): Promise<void> {
  measured.push(await play(here, scenario));
  await expectOneAfterTheOther(here, scenario.id);
}

describe("two things at once", { timeout: TEST_MS_MAX }, () => {
  test.for(COMBINATIONS)("$id: $cause", async (scenario, { skip }) => {
    if (!stage) return skip(NO_WAY);
    if (!scenario.ownNamespace) return playHere(stage, scenario);
    await inNamespace(stage, OWN_NAMESPACE, async (here) => {
      await here.putSecret();
      await playHere(here, scenario);
    });
  });
});
