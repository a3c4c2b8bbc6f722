/** `make demo`: sets up all it needs, tells the story with its times, and ends with 0 only if all of it is true. */
import { dirname } from "node:path";
import { image } from "./cluster/images.ts";
import { MissingPrerequisites } from "./cluster/prerequisites.ts";
import { type Cluster, openCluster } from "./cluster/provider.ts";
import { adminApi, installController } from "./controller.ts";
import { type ClusterDatabase, DEMO_NAMESPACE, startClusterDatabase } from "./database.ts";
import { playStory, type StoryEnd } from "./story.ts";

/** Beyond the lease, from the freeze to the successor's first committed row. */
const TAKEOVER_MS_MAX = 5_000;

const say = (line: string): void => console.log(`    ${line}`);

async function timed<T>(name: string, what: string, run: () => Promise<T>): Promise<T> {
  const startedMs = performance.now();
  console.log(`  ${name.padEnd(12)} ${what} …`);
  const result = await run();
  console.log(`  ${"".padEnd(12)} ready in ${((performance.now() - startedMs) / 1000).toFixed(1)} s`);
  return result;
}

async function demo(): Promise<boolean> {
  console.log("FencedJob demo: a paused owner cannot damage its successor's work\n");
  const cluster = await timed("cluster", "Kubernetes (slow parts are built once, then cached)", () =>
    openCluster("make demo", say),
  );
  say(cluster.description);
  await forgetLastRun(cluster);
  const database = await timed("database", 'PostgreSQL 18, database "ledger", with the fence schema', () =>
    startClusterDatabase(cluster, DEMO_NAMESPACE, say),
  );
  try {
    await timed("controller", "helm upgrade --install fencedjob charts/fencedjob", () =>
      installController(cluster, say),
    );
    const appImage = await timed("application", "the example's image", async () =>
      cluster.loadImage(await image("fencedjob-demo-app", say)),
    );
    return await tellStory(cluster, database, appImage);
  } finally {
    await database.close();
  }
}

/** A second run tells the same story: it begins with an empty ledger, whose fence has seen nothing. */
async function forgetLastRun(cluster: Cluster): Promise<void> {
  const found = await cluster.kubectl(["get", "namespace", DEMO_NAMESPACE, "--ignore-not-found", "-o", "name"]);
  if (!found) return;
  await timed("last run", `deleting namespace ${DEMO_NAMESPACE} of the last run`, () =>
    cluster.kubectl(["delete", "namespace", DEMO_NAMESPACE, "--timeout=120s"]),
  );
}

async function tellStory(cluster: Cluster, database: ClusterDatabase, appImage: string): Promise<boolean> {
  const { api, close } = await adminApi(cluster);
  console.log("");
  const startedMs = performance.now();
  const tell = (who: string, what: string): void => {
    const seconds = ((performance.now() - startedMs) / 1000).toFixed(1);
    console.log(`${seconds.padStart(6)} s  ${who ? `${who.padEnd(15)} ` : ""}${what}`);
  };
  const show = (command: string, answer: string): void => console.log(`\n$ ${command}\n${answer}`);
  try {
    const end = await playStory({ cluster, api, database, namespace: DEMO_NAMESPACE, appImage, tell, show });
    const described = ["describe", "fencedjob", "-n", DEMO_NAMESPACE, "invoice-run"];
    show(`kubectl ${described.join(" ")}`, await cluster.kubectl(described));
    return summary(cluster, end);
  } finally {
    close();
  }
}

function summary(cluster: Cluster, end: StoryEnd): boolean {
  const takeover = `${(end.takeoverMs / 1000).toFixed(1)} s`;
  const lines: [name: string, value: string, holds: boolean][] = [
    ["stale rows in invoice", String(end.staleRows), end.staleRows === 0],
    ["invoices, each once", `${end.customers} of 3`, end.customers === 3 && end.rows === 3],
    ["writes refused", String(end.writesRefused), end.writesRefused >= 2],
    ["COMMIT refused with", end.commitRefusal.slice(0, 5), end.commitRefusal.startsWith("LF001")],
    ["next write refused with", end.nextWriteRefusal.slice(0, 5), end.nextWriteRefusal.startsWith("LF001")],
    [
      "takeover after freeze",
      `${takeover}   (lease ${end.leaseMs / 1000} s, at most ${(end.leaseMs + TAKEOVER_MS_MAX) / 1000} s)`,
      end.takeoverMs <= end.leaseMs + TAKEOVER_MS_MAX,
    ],
  ];
  for (const [name, value, holds] of lines)
    console.log(`  ${name.padEnd(26)} ${value}${holds ? "" : "   <- NOT AS IT SHOULD BE"}`);
  console.log(
    `\nLook around:   export KUBECONFIG=${cluster.kubeconfigPath} PATH=${dirname(cluster.tools.kubectl)}:$PATH`,
  );
  console.log(`               kubectl describe fencedjob -n ${DEMO_NAMESPACE} invoice-run`);
  console.log("Clean up:      make down");
  return lines.every(([, , holds]) => holds);
}

try {
  process.exitCode = (await demo()) ? 0 : 1;
} catch (error) {
  console.error(error instanceof MissingPrerequisites ? error.message : error);
  process.exitCode = 1;
}
