/** A takeover among 10 and among 100 candidates at a real API server, with every request of controller and candidates counted. */
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { LeaseClient } from "../lease/client.ts";
import { DEFAULT_ELECTION_TIMING } from "../lease/timing.ts";
import { systemClock } from "../platform/clock.ts";
import { type HttpClient, httpClient } from "../platform/http.ts";
import { silentLogger } from "../platform/log.ts";
import { systemRandom } from "../platform/random.ts";
import { startApiServer, type TestApiServer } from "../testing/apiserver.ts";
import { type ModelledPod, runPod } from "../testing/modelledpod.ts";
import { until } from "../testing/until.ts";
import { readStatus } from "./api/status.ts";
import { KubeApi, RESOURCES } from "./kube/api.ts";
import { type KubeConfig, loadKubeConfig } from "./kube/config.ts";
import type { RawObject } from "./kube/objects.ts";
import { type Loops, startLoops } from "./loops.ts";

const TIMING = { durationMs: 10_000, renewIntervalMs: 3_000, requestTimeoutMs: 2_000, marginMs: 1_000 };
/** Renewals that happen to fall into one of the two measurements. */
const RENEWALS = 4;

let server: TestApiServer;
let kube: KubeConfig;
let api: KubeApi;
const clients: HttpClient[] = [];
const pods: ModelledPod[] = [];
let loops: Loops | undefined;

beforeAll(async () => {
  server = await startApiServer();
  kube = await loadKubeConfig({ env: {}, kubeconfigPath: server.kubeconfigPath });
  api = new KubeApi(aClient(), systemClock, "fencedjob-test");
  await server.kubectl(["apply", "-f", "crds/fencedjob.yaml"]);
  await until(() => api.list(RESOURCES.fencedJobs).then(() => true));
});

afterEach(async () => {
  for (const pod of pods.splice(0)) pod.freeze();
  await loops?.stop();
});

afterAll(async () => {
  for (const client of clients) client.close();
  await server?.stop();
});

function aClient(): HttpClient {
  const client = httpClient({ ...kube, clock: systemClock });
  clients.push(client);
  return client;
}

/** Writes down what is asked, but for the election's own Lease. */
function counted(asked: string[]): HttpClient {
  const client = aClient();
  return {
    ...client,
    request: (request) => {
      const [path = ""] = request.path.split("?");
      if (!path.endsWith("/controllers")) asked.push(`${request.method} ${path.replaceAll(/-\d+\b/g, "-N")}`);
      return client.request(request);
    },
    stream: (request) => {
      asked.push(`WATCH ${request.path.split("?")[0]}`);
      return client.stream(request);
    },
  };
}

/** The requests from the owner's end until its successor is granted and a new candidate is there. */
async function takeover(candidates: number): Promise<string[]> {
  const namespace = `herd-${candidates}`;
  await server.createNamespace(namespace);
  const asked: string[] = [];
  loops = startLoops(counted(asked), {
    sidecar: { image: "fencedjob:test", imagePullPolicy: "Never", resources: {} },
    namespace,
    workers: 2,
    election: {
      lease: { namespace, name: "controllers" },
      timing: DEFAULT_ELECTION_TIMING,
      pod: { name: "test", uid: "test" },
    },
    clock: systemClock,
    random: systemRandom,
    log: silentLogger,
  });
  await api.create(RESOURCES.fencedJobs, {
    apiVersion: "fencedjob.dev/v1alpha1",
    kind: "FencedJob",
    metadata: { name: "run", namespace },
    spec: {
      backoffLimit: 100,
      standbys: { count: candidates },
      databases: [{ name: "ledger", secretName: "ledger-db" }],
      template: { spec: { restartPolicy: "Never", containers: [{ name: "app", image: "app" }] } },
    },
  } as RawObject);
  const status = async () =>
    readStatus((await api.get<RawObject>(RESOURCES.fencedJobs, { namespace, name: "run" })).status);
  const podsOfJob = async (): Promise<RawObject[]> => (await api.list<RawObject>(RESOURCES.pods, { namespace })).items;
  const run = async (pod: RawObject): Promise<ModelledPod> => {
    const running = await runPod(api, new LeaseClient(counted(asked), { namespace, name: "run" }), pod, TIMING);
    pods.push(running);
    return running;
  };
  const owner = await run(await until(async () => (await podsOfJob())[0] ?? null, 120_000));
  await owner.granted;
  // They start when the owner has raised.
  const all = await until(async () => {
    const items = await podsOfJob();
    return items.length === candidates + 1 && items;
  }, 120_000);
  for (const pod of all) if (pod.metadata.name !== owner.name) await run(pod);
  await until(async () =>
    (await status()).conditions.some(({ type, reason }) => type === "Owned" && reason === "Granted"),
  );
  const others = pods.filter((pod) => pod !== owner);
  asked.length = 0;
  await owner.remove();
  await Promise.race(others.map((pod) => pod.granted));
  await until(async () => {
    const { owner: next, candidates: waiting } = await status();
    return next?.generation === 2 && waiting.length === candidates && (await podsOfJob()).length === candidates + 1;
  });
  return [...asked];
}

test("a takeover costs as many requests among 100 candidates as among 10: no herd", { timeout: 600_000 }, async () => {
  const few = await takeover(10);
  for (const pod of pods.splice(0)) pod.freeze();
  await loops?.stop();
  const many = await takeover(100);
  const told = (asked: string[]): string => {
    const counts = new Map<string, number>();
    for (const one of asked) counts.set(one, (counts.get(one) ?? 0) + 1);
    return [...counts].map(([what, times]) => `\n    ${times} ${what}`).join("");
  };
  console.log(
    `requests of a takeover: ${few.length} among 10 candidates,${told(few)}\n  ${many.length} among 100${told(many)}`,
  );
  const acting = (asked: string[]): string[] => asked.filter((one) => !one.startsWith("WATCH"));
  expect(acting(many).length).toBeLessThanOrEqual(acting(few).length + RENEWALS);
});
