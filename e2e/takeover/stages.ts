/** Where scenarios are played: on the stage of a file of tests, begun before them and ended behind them, or in a namespace of its own. */
import { afterAll, beforeAll, type TestContext } from "vitest";
import { openScene, type Scene, SETUP_MS_MAX, sceneIn } from "../scene.ts";
import { openLedger } from "./ledger.ts";
import { play } from "./play.ts";
import { type Measured, record } from "./results.ts";
import type { Scenario } from "./scenarios.ts";
import { Stage } from "./stage.ts";

const NO_WAY = "only on the local node can pods reach a database that no node takes along, and nodes be lost";

export interface StageOfTests {
  /** Of this test; skips it where there can be none. */
  on(skip: TestContext["skip"]): Stage;
  /** On this stage, or on one that was made of it. */
  play(here: Stage, scenario: Scenario): Promise<void>;
}

/** `records`: what is played here goes into docs/takeover.md, with `FENCEDJOB_RECORD=1` and by `npm run generate`. */
export function inStage(namespace: string, { records = false } = {}): StageOfTests {
  let scene: Scene | undefined;
  let stage: Stage | undefined;
  const measured: Measured[] = [];
  beforeAll(async () => {
    scene = await openScene(namespace);
    const { hostAddress } = scene.cluster;
    if (hostAddress === undefined) return;
    stage = new Stage(scene, await openLedger(hostAddress));
    await stage.setUp();
  }, SETUP_MS_MAX);
  afterAll(async () => {
    for (const one of measured) tell(one);
    if (records && process.env.FENCEDJOB_RECORD === "1" && measured.length) record(measured);
    await stage?.tearDown();
    await stage?.ledger.close();
    await scene?.close();
  }, SETUP_MS_MAX);
  return {
    on: (skip) => stage ?? skip(NO_WAY),
    play: async (here, scenario) => void measured.push(await play(here, scenario)),
  };
}

/** For people. */
function tell({ id, takeoverMs, silentMs }: Measured): void {
  const seconds = (ms: number): string => (ms / 1000).toFixed(2).padStart(6);
  console.error(`${id.padEnd(22)} ${seconds(takeoverMs)} s, ${seconds(silentMs)} s without a write`);
}

/** In a namespace that is made for it, and that it may delete. */
export async function inNamespace(
  { scene, ledger }: Stage,
  namespace: string,
  act: (here: Stage) => Promise<void>,
): Promise<void> {
  const { kubectl } = scene.cluster;
  await kubectl(["delete", "namespace", namespace, "--ignore-not-found"]);
  await kubectl(["create", "namespace", namespace]);
  const own = sceneIn(scene, namespace);
  try {
    await act(new Stage(own, ledger));
  } finally {
    await own.close();
  }
}
