/** The demo's story as a test, on a real cluster, and what `kubectl describe` says of it afterwards. */
import { afterAll, beforeAll, expect, test } from "vitest";
import { image } from "./cluster/images.ts";
import { type Cluster, openCluster } from "./cluster/provider.ts";
import { adminApi, installController } from "./controller.ts";
import { type ClusterDatabase, startClusterDatabase } from "./database.ts";
import { playStory } from "./story.ts";

const NAMESPACE = "story";
const SETUP_MS_MAX = 15 * 60_000;
const STORY_MS_MAX = 5 * 60_000;
/** Beyond the lease: candidate, raise, the application's start and its first transaction. */
const TAKEOVER_MS_MAX = 5_000;

let cluster: Cluster;
let database: ClusterDatabase;

beforeAll(async () => {
  const say = (line: string): void => console.error(line);
  cluster = await openCluster("make test", say);
  await cluster.kubectl(["delete", "namespace", NAMESPACE, "--ignore-not-found"]);
  await installController(cluster, say);
  database = await startClusterDatabase(cluster, NAMESPACE, say);
}, SETUP_MS_MAX);

afterAll(async () => {
  await database?.close();
  await cluster?.kubectl(["delete", "namespace", NAMESPACE, "--wait=false"]);
});

test("INV-3, INV-10: a frozen owner's COMMIT and next write are refused with the reason, and its successor's work is whole", {
  timeout: STORY_MS_MAX,
}, async () => {
  const { api, close } = await adminApi(cluster);
  const appImage = await cluster.loadImage(await image("fencedjob-demo-app", console.error));
  const end = await playStory({ cluster, api, database, namespace: NAMESPACE, appImage, tell: () => {} });
  close();
  expect(end).toMatchObject({ staleRows: 0, rows: 3, writesRefused: 2 });
  const over = `LF001: generation 1 of FencedJob "${NAMESPACE}/invoice-run" is over`;
  expect(end.commitRefusal).toContain(over);
  expect(end.nextWriteRefusal).toContain(over);
  expect(end.commitRefusal).toMatch(
    /Pod invoice-run-2 raised the fence to generation 2 at .*; this pod holds generation 1/,
  );
  expect(end.takeoverMs).toBeLessThan(end.leaseMs + TAKEOVER_MS_MAX);
  expect(end.status.history.map(({ generation, pod, reason }) => [generation, pod, reason])).toEqual([
    [2, "invoice-run-2", "PodSucceeded"],
    [1, "invoice-run-1", "LeaseExpired"],
  ]);
  const words = await cluster.kubectl(["describe", "fencedjob", "-n", NAMESPACE, "invoice-run"]);
  expect(words).toMatch(/Warning +LeaseExpired .*did not renew for 10 s; its writes will be refused/);
  expect(words).toMatch(/Normal +FenceRaised .*ledger: fence 1 → 2 in \d+ ms, 1 older session ended/);
  expect(words).toMatch(/Warning +WriteRefused .*2 writes of generation 1 \(invoice-run-1\) refused/);
  // INV-1: the fence outlives the job and its namespace's objects.
  await cluster.kubectl(["delete", "fencedjob", "-n", NAMESPACE, "invoice-run"]);
  expect(await database.query("SELECT generation::int FROM fence.job")).toEqual([{ generation: 2 }]);
});
