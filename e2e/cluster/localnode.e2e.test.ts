import { createServer, type Server } from "node:http";
import { afterAll, beforeAll, expect, test } from "vitest";
import { until } from "../../testing/until.ts";
import { NODES_MIN } from "../scene.ts";
import { image } from "./images.ts";
import { type Cluster, openCluster } from "./provider.ts";

const NAMESPACE = "localnode-test";
const BUILD_MS_MAX = 900_000;

let cluster: Cluster;
let base: string;

const kubectl = (...args: string[]): Promise<string> => cluster.kubectl(["-n", NAMESPACE, ...args]);
const create = (...items: object[]): Promise<string> =>
  cluster.kubectl(["create", "-n", NAMESPACE, "-f", "-"], JSON.stringify({ apiVersion: "v1", kind: "List", items }));
const phaseIs = (pod: string, phase: string) => async (): Promise<boolean> =>
  (await kubectl("get", "pod", pod, "-o", "jsonpath={.status.phase}")) === phase;

const script = (name: string, code: string): object => ({
  name,
  image: base,
  imagePullPolicy: "IfNotPresent",
  command: ["/nodejs/bin/node", "-e", code],
});
const pod = (name: string, spec: object): object => ({
  apiVersion: "v1",
  kind: "Pod",
  metadata: { name, labels: { app: name } },
  spec: { restartPolicy: "Never", terminationGracePeriodSeconds: 1, ...spec },
});

beforeAll(async () => {
  const say = (line: string): void => console.error(line);
  cluster = await openCluster("this test", say, NODES_MIN);
  base = await cluster.loadImage(await image("fencedjob-base", say));
  await cluster.kubectl(["delete", "namespace", NAMESPACE, "--ignore-not-found"]);
  await cluster.kubectl(["create", "namespace", NAMESPACE]);
  await until(async () => (await kubectl("get", "sa", "-o", "name")) !== "");
}, BUILD_MS_MAX);

// The cluster stays up: the next run finds it. Only what this file made goes.
afterAll(() => cluster?.kubectl(["delete", "namespace", NAMESPACE, "--wait=false"]));

test("the application starts when its native sidecar has, and the pod succeeds when the application ends", async () => {
  const sidecar = {
    ...script("sidecar", "process.on('SIGTERM', () => process.exit(0)); require('net').createServer().listen(8080)"),
    restartPolicy: "Always",
    startupProbe: { tcpSocket: { port: 8080 }, periodSeconds: 1 },
  };
  const app = script(
    "app",
    "require('net').connect(8080, '127.0.0.1', () => { console.log('reached'); process.exit(0) })",
  );
  await create(pod("with-sidecar", { initContainers: [sidecar], containers: [app] }));
  await until(phaseIs("with-sidecar", "Succeeded"));
  expect(await kubectl("logs", "with-sidecar", "-c", "app")).toBe("reached\n");
});

test("a service is reached by its name, and by a pod through exec", { timeout: BUILD_MS_MAX }, async () => {
  const server = script("server", "require('http').createServer((_, answer) => answer.end('hello')).listen(8080)");
  const service = {
    apiVersion: "v1",
    kind: "Service",
    metadata: { name: "greeter" },
    spec: { selector: { app: "server" }, ports: [{ port: 80, targetPort: 8080 }] },
  };
  await create(
    service,
    pod("server", { containers: [{ ...server, readinessProbe: { tcpSocket: { port: 8080 }, periodSeconds: 1 } }] }),
  );
  await kubectl("wait", "--for=condition=Ready", "pod/server", "--timeout=300s");
  const ask = `fetch('http://greeter.${NAMESPACE}.svc').then((r) => r.text()).then(console.log)`;
  // The service's rules follow its endpoints, which follow the pod's readiness.
  await until(() =>
    kubectl("exec", "server", "--", "/nodejs/bin/node", "-e", ask).then(
      (said) => said === "hello\n",
      () => false,
    ),
  );
});

test("a frozen pod stands still, and goes on where it was when thawed", async () => {
  const STILL_MS = 1_000;
  // With its time, by its own clock: a line may come into the log after the pod has been frozen.
  const count = "let n = 0; setInterval(() => console.log(++n, performance.now()), 20)";
  await create(pod("counter", { containers: [script("counter", count)] }));
  const lines = async (): Promise<number[][]> =>
    (await kubectl("logs", "counter"))
      .trim()
      .split("\n")
      .map((line) => line.split(" ").map(Number));
  await until(async () => (await lines()).length > 3);
  const uid = await kubectl("get", "pod", "counter", "-o", "jsonpath={.metadata.uid}");

  const startedMs = performance.now();
  await cluster.freeze(uid);
  console.error(`frozen in ${Math.round(performance.now() - startedMs)} ms`);
  await new Promise((resolve) => setTimeout(resolve, STILL_MS)); // the time in which nothing may happen: not a wait for something
  await cluster.thaw(uid);

  const stoodStill = ([, atMs = 0]: number[], index: number, all: number[][]): boolean =>
    index > 0 && atMs - (all[index - 1]?.[1] ?? 0) >= STILL_MS;
  const counted = await until(async () => {
    const all = await lines();
    return all.some(stoodStill) ? all : null;
  });
  expect(counted.map(([n]) => n)).toEqual(counted.map((_, index) => index + 1));
});

test("pods reach a server of this machine, where the provider says at which address", async (context) => {
  const { hostAddress } = cluster;
  if (hostAddress === undefined) return context.skip(`${cluster.description} gives pods no address of this machine`);
  const server: Server = createServer((_, answer) => answer.end("from the host"));
  await new Promise<void>((resolve) => server.listen(0, hostAddress, resolve));
  const { port } = server.address() as { port: number };
  await create(
    pod("visitor", {
      containers: [script("visitor", `fetch('http://${hostAddress}:${port}').then((r) => r.text()).then(console.log)`)],
    }),
  );
  await until(phaseIs("visitor", "Succeeded"));
  server.close();
  expect(await kubectl("logs", "visitor")).toBe("from the host\n");
});

test("PostgreSQL runs as a pod with a password, and keeps its data when the container restarts", {
  timeout: BUILD_MS_MAX,
}, async () => {
  const ref = await cluster.loadImage(await image("fencedjob-demo-postgres", (line) => console.error(line)));
  const env = Object.entries({ POSTGRES_PASSWORD: "o'secret", POSTGRES_DB: "ledger" }).map(([name, value]) => ({
    name,
    value,
  }));
  const server = {
    name: "postgres",
    image: ref,
    imagePullPolicy: "IfNotPresent",
    env,
    readinessProbe: { tcpSocket: { port: 5432 }, periodSeconds: 1 },
  };
  const data = {
    volumes: [{ name: "data", emptyDir: {} }],
    containers: [{ ...server, volumeMounts: [{ name: "data", mountPath: "/data" }] }],
  };
  await create(pod("database", { ...data, restartPolicy: "Always" }));
  await kubectl("wait", "--for=condition=Ready", "pod/database", "--timeout=300s");
  // Its port is open a moment before it says so.
  const started = "database system is ready to accept connections";
  await until(async () => (await kubectl("logs", "database")).includes(started));
  await kubectl("exec", "database", "--", "/bin/sh", "-c", "kill -INT 1");
  await until(
    async () =>
      (await kubectl("get", "pod", "database", "-o", "jsonpath={.status.containerStatuses[0].restartCount}")) === "1",
  );
  await kubectl("wait", "--for=condition=Ready", "pod/database", "--timeout=300s");
  expect(await kubectl("logs", "database")).not.toContain("initdb");
});
