/** Where scenarios are played: on the ledger of this machine, in the namespace of a scene or in one of their own. */
import { type Scene, sceneIn } from "../scene.ts";
import { openLedger } from "./ledger.ts";
import { Stage } from "./stage.ts";

/** Undefined where pods cannot reach this machine. */
export async function openStage(scene: Scene): Promise<Stage | undefined> {
  const { hostAddress } = scene.cluster;
  return hostAddress === undefined ? undefined : new Stage(scene, await openLedger(hostAddress));
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
