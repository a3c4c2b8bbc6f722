/** INV-3, INV-6, INV-7, INV-8 on real nodes, when two things happen at once. What was committed, and in which order, the database says. */
import { describe, test } from "vitest";
import { COMBINATIONS, expectOneAfterTheOther } from "./takeover/combinations.ts";
import type { Stage } from "./takeover/stage.ts";
import { inNamespace, inStage } from "./takeover/stages.ts";
import type { PermanenceScenario } from "./takeover/steps.ts";

const OWN_NAMESPACE = "combinations-anew";
const TEST_MS_MAX = 15 * 60_000;
const stages = inStage("combinations");

async function playHere(here: Stage, scenario: PermanenceScenario): Promise<void> {
  await stages.play(here, scenario);
  await expectOneAfterTheOther(here, scenario.id);
}

describe("two things at once", { timeout: TEST_MS_MAX }, () => {
  test.for(COMBINATIONS)("$id: $cause", async (scenario, { skip }) => {
    const stage = stages.on(skip);
    if (!scenario.ownNamespace) return playHere(stage, scenario);
    await inNamespace(stage, OWN_NAMESPACE, async (here) => {
      await here.putSecret();
      await playHere(here, scenario);
    });
  });
});
