/** D07: release and namespace go in either order with a job that runs, and leave nothing that hangs. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { installController, RELEASE, SYSTEM_NAMESPACE } from "./controller.ts";
import { openScene, type Scene, SETUP_MS_MAX } from "./scene.ts";
import { type Ledger, openLedger } from "./takeover/ledger.ts";
import { Stage } from "./takeover/stage.ts";

const NAMESPACE = "uninstall";
/** What hangs does so for ever. How long it took is written down: seconds, on a machine that has nothing else to do. */
const GONE_SECONDS_MAX = 240;
const TEST_MS_MAX = 15 * 60_000;
const NO_WAY = "only on the local node can pods reach a database of this machine";

let scene: Scene;
let ledger: Ledger | undefined;

beforeAll(async () => {
  scene = await openScene(NAMESPACE);
  const { hostAddress } = scene.cluster;
  if (hostAddress !== undefined) ledger = await openLedger(hostAddress);
}, SETUP_MS_MAX);

afterAll(async () => {
  await ledger?.close();
  // As the next test finds it.
  if (scene) await installController(scene.cluster, (line) => console.error(line));
  await scene?.close();
}, SETUP_MS_MAX);

/** A namespace with a job whose application writes; the UID of its pod. */
async function aRunningJob(db: Ledger): Promise<string> {
  const { cluster } = scene;
  await cluster.kubectl(["delete", "namespace", NAMESPACE, "--ignore-not-found"]);
  await cluster.kubectl(["create", "namespace", NAMESPACE]);
  await installController(cluster, (line) => console.error(line));
  const stage = new Stage(scene, db);
  await stage.putSecret();
  await stage.create({ name: "running" });
  return (await stage.owner("running")).uid;
}

const uninstall = (): Promise<string> => scene.cluster.helm(["uninstall", RELEASE, "-n", SYSTEM_NAMESPACE, "--wait"]);
const deleteNamespace = (...more: string[]): Promise<string> =>
  scene.cluster.kubectl(["delete", "namespace", NAMESPACE, ...more]);
async function namespaceIsGone(): Promise<void> {
  const startMs = performance.now();
  await scene.cluster.kubectl(["wait", "--for=delete", `namespace/${NAMESPACE}`, `--timeout=${GONE_SECONDS_MAX}s`]);
  console.error(`the namespace is gone after ${((performance.now() - startMs) / 1000).toFixed(1)} s`);
}

describe("D07: with a job that runs", { timeout: TEST_MS_MAX }, () => {
  test("the release first, then the namespace", async ({ skip }) => {
    if (!ledger) return skip(NO_WAY);
    const uid = await aRunningJob(ledger);
    await uninstall();
    // Nobody is replaced without a controller, but who owns goes on: nothing was lost by removing it.
    const { rows } = await ledger.writes("running", uid, 1, TEST_MS_MAX);
    await ledger.writes("running", uid, rows + 10, TEST_MS_MAX);
    expect(await scene.cluster.kubectl(["get", "fj", "-n", NAMESPACE, "-o", "name"])).toContain("running");
    await deleteNamespace("--wait=false");
    await namespaceIsGone();
  });

  test("the namespace first, then the release", async ({ skip }) => {
    if (!ledger) return skip(NO_WAY);
    await aRunningJob(ledger);
    await deleteNamespace("--wait=false");
    await namespaceIsGone();
    await uninstall();
    // The CRD is kept, so that no FencedJob of another namespace went with the release.
    expect(await scene.cluster.kubectl(["get", "crd", "fencedjobs.fencedjob.dev", "-o", "name"])).toContain(
      "fencedjobs",
    );
  });

  test("both at once", async ({ skip }) => {
    if (!ledger) return skip(NO_WAY);
    await aRunningJob(ledger);
    await deleteNamespace("--wait=false");
    await uninstall();
    await namespaceIsGone();
  });
});
