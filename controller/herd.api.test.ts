/** A takeover among 10 and among 100 candidates at a real API server, with every request of controller and candidates counted. */

import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { LeaseClient } from "../lease/client.ts";
import { DEFAULT_ELECTION_TIMING } from "../lease/timing.ts";
import { systemClock } from "../platform/clock.ts";
import { type HttpClient, httpClient } from "../platform/http.ts";
import { silentLogger } from "../platform/log.ts";
import { systemRandom } from "../platform/random.ts";
import { type JobServer, startJobServer } from "../testing/jobserver.ts";
import { type ModelledPod, runPod } from "../testing/modelledpod.ts";
import { until } from "../testing/until.ts";
import { RESOURCES } from "./kube/api.ts";
import type { RawObject } from "./kube/objects.ts";
import { type Loops, startLoops } from "./loops.ts";

/** A write that meets another, or a status that is written in two steps. */
const BY_CHANCE = 4;
/** Long: whoever has a hundred pods to do with in one process may be late, and neither they nor the controller shall lose anything by it. */
const TIMING = { durationMs: 120_000, renewIntervalMs: 3_000, requestTimeoutMs: 2_000, marginMs: 1_000 };
const ELECTION_TIMING = { ...DEFAULT_ELECTION_TIMING, durationMs: 120_000 };

let jobServer: JobServer;
const clients: HttpClient[] = [];
const pods: ModelledPod[] = [];
let loops: Loops | undefined;

beforeAll(async () => {
  jobServer = await startJobServer();
});

afterEach(async () => {
  for (const pod of pods.splice(0)) pod.freeze();
  await loops?.stop();
});

afterAll(async () => {
  for (const client of clients) client.close();
  await jobServer?.stop();
});

/** Writes down what is asked, but for the election's own Lease and for renewals, which fall into a measurement as it lasts. */
function counted(asked: string[], by: "controller" | "pod"): HttpClient {
  const client = httpClient({ ...jobServer.kube, clock: systemClock });
  clients.push(client);
  return {
    ...client,
    request: (request) => {
      const [path = ""] = request.path.split("?");
      const renewal = by === "pod" && request.method === "PUT";
      if (!renewal && !path.endsWith("/controllers")) {
        asked.push(`${request.method} ${path.replaceAll(/-\d+\b/g, "-N")}`);
      }
      return client.request(request);
    },
    stream: (request) => {
      asked.push(`WATCH ${request.path.split("?")[0]}`);
      return client.stream(request);
    },
  };
}

/** The requests from the owner's end until its successor has raised and a new candidate is there. */
async function takeover(candidates: number): Promise<string[]> {
  const { server, api } = jobServer;
  const where = { namespace: `herd-${candidates}`, name: "run" };
  const { namespace } = where;
  await server.createNamespace(namespace);
  const asked: string[] = [];
  loops = startLoops(counted(asked, "controller"), {
    sidecar: { image: "fencedjob:test", imagePullPolicy: "Never", resources: {} },
    namespace,
    workers: 2,
    election: {
      lease: { namespace, name: "controllers" },
      timing: ELECTION_TIMING,
      pod: { name: "test", uid: "test" },
    },
    clock: systemClock,
    random: systemRandom,
    log: silentLogger,
  });
  const lease = { durationSeconds: TIMING.durationMs / 1000 };
  await jobServer.createJob(where, { backoffLimit: 100, standbys: { count: candidates }, lease });
  const status = () => jobServer.status(where);
  const podsOfJob = async (): Promise<RawObject[]> => (await api.list<RawObject>(RESOURCES.pods, { namespace })).items;
  const run = async (pod: RawObject): Promise<ModelledPod> => {
    const running = await runPod(api, new LeaseClient(counted(asked, "pod"), where), pod, TIMING);
    pods.push(running);
    return running;
  };
  const owner = await run(await until(async () => (await podsOfJob())[0] ?? null));
  await owner.granted;
  // They start when the owner has raised.
  const all = await until(async () => {
    const items = await podsOfJob();
    return items.length === candidates + 1 && items;
  });
  for (const pod of all) if (pod.metadata.name !== owner.name) await run(pod);
  await until(async () =>
    (await status()).conditions.some(({ type, reason }) => type === "Owned" && reason === "Granted"),
  );
  const others = pods.filter((pod) => pod !== owner);
  asked.length = 0;
  await owner.remove();
  await Promise.race(others.map((pod) => pod.granted));
  await until(async () => {
    const { owner: next, candidates: waiting, fence } = await status();
    const granted = next?.generation === 2 && fence === 2;
    return granted && waiting.length === candidates && (await podsOfJob()).length === candidates + 1;
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
  // Events are sent when there is time.
  const acting = (asked: string[]): string[] => asked.filter((one) => !/^WATCH|\/events(\/|$)/.test(one));
  expect(acting(many).length).toBeLessThanOrEqual(acting(few).length + BY_CHANCE);
});
