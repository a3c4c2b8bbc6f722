/**
 * The sidecar as a process: granted by a real controller, over a real API server and PostgreSQL, ended as a kubelet ends it.
 * The test is the application and the kubelet. Real pods run in e2e/.
 */
import pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type FencedJobStatus, readStatus } from "../controller/api/status.ts";
import type { Controller } from "../controller/controller.ts";
import { KubeApi, RESOURCES } from "../controller/kube/api.ts";
import { loadKubeConfig } from "../controller/kube/config.ts";
import type { KubeObject, RawObject } from "../controller/kube/objects.ts";
import type { RawPod } from "../controller/snapshot.ts";
import { type LeaseRecord, type RawLease, readLease } from "../lease/record.ts";
import { parseReport } from "../lease/report.ts";
import { systemClock } from "../platform/clock.ts";
import { type HttpClient, httpClient } from "../platform/http.ts";
import { startApiServer, type TestApiServer } from "../testing/apiserver.ts";
import { startTestController } from "../testing/controller.ts";
import { APPLICATION_ROLE, type Fenced, failure, startFenced, until as untilSql } from "../testing/fenced.ts";
import { type PodProcess, startPod } from "../testing/podprocess.ts";
import { until } from "../testing/until.ts";

const MS_MAX = 120_000;

let server: TestApiServer;
let fenced: Fenced;
let admin: pg.Client;
let client: HttpClient;
let api: KubeApi;
let controller: Controller;
let namespace: string;
let tests = 0;
const pods: PodProcess[] = [];

beforeAll(async () => {
  [server, fenced] = await Promise.all([startApiServer(), startFenced()]);
  admin = await fenced.connectAdmin();
  await admin.query(
    `CREATE TABLE written (job text, what text); GRANT SELECT, INSERT ON written TO ${APPLICATION_ROLE}`,
  );
  const kube = await loadKubeConfig({ env: {}, kubeconfigPath: server.kubeconfigPath });
  client = httpClient({ ...kube, clock: systemClock });
  api = new KubeApi(client, systemClock, "fencedjob-test");
  await server.kubectl(["apply", "-f", "crds/fencedjob.yaml"]);
  await until(() => api.list(RESOURCES.fencedJobs).then(() => true));
  controller = await startTestController({ kube, lease: { namespace: "default", name: "controllers" } });
});

afterAll(async () => {
  await controller?.stop();
  client?.close();
  await Promise.all([server?.stop(), fenced?.stop()]);
});

beforeEach(async () => {
  namespace = `life-${++tests}`;
  await server.createNamespace(namespace);
});

afterEach(async () => {
  // No successor for the pods that are about to end.
  await server.kubectl(["delete", "fencedjob", "--all", "-n", namespace, "--wait=false"]);
  await Promise.all(pods.splice(0).map((pod) => pod.stop()));
});

async function aJob(spec: object = {}): Promise<void> {
  await api.create<RawObject>(RESOURCES.fencedJobs, {
    apiVersion: "fencedjob.dev/v1alpha1",
    kind: "FencedJob",
    metadata: { name: "run", namespace },
    spec: {
      databases: [{ name: "ledger", secretName: "ledger-db" }],
      template: { spec: { restartPolicy: "Never", containers: [{ name: "app", image: "app" }] } },
      ...spec,
    },
  });
}

/** Starts the job's pod of this attempt once the controller has made it. */
async function aPod(attempt: number): Promise<PodProcess> {
  const name = `run-${attempt}`;
  const made = await until(() => api.get<RawPod & KubeObject>(RESOURCES.pods, { namespace, name }), MS_MAX);
  const pod = await startPod({ server, api, pod: made, address: fenced.address });
  pods.push(pod);
  return pod;
}

const lease = async (): Promise<LeaseRecord> =>
  readLease(await api.get<RawLease & KubeObject>(RESOURCES.leases, { namespace, name: "run" }));
const status = async (): Promise<FencedJobStatus> =>
  readStatus((await api.get<RawObject>(RESOURCES.fencedJobs, { namespace, name: "run" })).status);
const owns = (pod: PodProcess, generation: number) =>
  until(async () => (await pod.state()).state === `owner, generation ${generation}`, MS_MAX);
const writes = (what: string): string => `INSERT INTO written VALUES ('${namespace}', '${what}')`;
const rows = async (): Promise<string[]> =>
  (await admin.query("SELECT what FROM written WHERE job = $1", [namespace])).rows.map(({ what }) => what);

async function connect({ port }: PodProcess): Promise<pg.Client> {
  const application = new pg.Client({ host: "127.0.0.1", port, user: "x", database: fenced.address.database });
  application.on("error", () => {});
  await application.connect();
  return application;
}

describe("the end", () => {
  test("A05, C06: what was committed before SIGTERM stays, what is open is undone, and the Lease is given back behind that", async () => {
    await aJob();
    const pod = await aPod(1);
    await owns(pod, 1);
    await pod.tell("Running", { running: {} });
    const application = await connect(pod);
    await application.query(writes("committed"));
    await application.query("BEGIN");
    await application.query(writes("open"));
    const late = failure(application.query("SELECT pg_sleep(60)"));
    process.kill(pod.sidecar.pid, "SIGTERM");
    expect(await pod.sidecar.ended).toBe(0);
    expect((await late).code).toMatch(/^(57P01|08007|ECONNRESET)$/);
    expect(await rows()).toEqual(["committed"]);
    expect(pod.lastWords()).toEqual({ generation: 1, rejectedWrites: 0 });
    expect(await lease()).toMatchObject({ holder: null, generation: 1 });
  });

  test("C05: while it waits for ownership, SIGTERM ends it at once, and the Lease is as it was", async () => {
    await aJob({ standbys: { count: 1, application: "Started" } });
    const owner = await aPod(1);
    await owns(owner, 1);
    const waiting = await aPod(2);
    const before = await lease();
    process.kill(waiting.sidecar.pid, "SIGTERM");
    expect(await waiting.sidecar.ended).toBe(0);
    expect(await lease()).toMatchObject({ holder: before.holder, generation: 1 });
    expect(waiting.lastWords).toThrow();
  });

  test("E07: a raise that waits for somebody's lock and an API server that is gone do not hold it up", async () => {
    await fenced.job(`${namespace}/run`).raise(1);
    await admin.query("BEGIN");
    await admin.query("SELECT FROM fence.job WHERE name = $1 FOR UPDATE", [`${namespace}/run`]);
    await aJob();
    const pod = await aPod(1);
    await until(async () => (await pod.state()).state.startsWith("raising"), MS_MAX);
    await untilSql(await fenced.connectAdmin(), "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted");
    await server.stopApi();
    const startMs = systemClock.monoMs();
    process.kill(pod.sidecar.pid, "SIGTERM");
    expect(await pod.sidecar.ended).toBe(0);
    expect(systemClock.monoMs() - startMs).toBeLessThan(10_000);
    await admin.query("ROLLBACK");
    await server.startApi();
  });
});

describe("a takeover", () => {
  test("INV-3, INV-4: a standby whose application is started takes over from one that was killed: its held client writes, the other's work is undone", async () => {
    await aJob({ standbys: { count: 1, application: "Started" } });
    const old = await aPod(1);
    await owns(old, 1);
    await old.tell("Running", { running: {} });
    const predecessor = await connect(old);
    await predecessor.query(writes("first"));
    const standby = await aPod(2);
    await until(async () => (await standby.state()).started, MS_MAX);
    await standby.tell("Running", { running: {} });
    const held = connect(standby);
    await until(async () => (await standby.state()).held === 1, MS_MAX);
    await predecessor.query("BEGIN");
    await predecessor.query(writes("undone"));
    const over = failure(predecessor.query("SELECT pg_sleep(600)"));
    // The application ignores SIGTERM: both are killed when its time is over, nothing is given back.
    process.kill(old.sidecar.pid, "SIGKILL");
    await over;
    expect((await lease()).holder).toBe(old.uid);
    await old.tell("Failed", { terminated: { exitCode: 137 } });
    const successor = await held;
    await successor.query(writes("second"));
    expect(await rows()).toEqual(["first", "second"]);
    expect(await lease()).toMatchObject({ holder: standby.uid, generation: 2 });
    await until(async () => parseReport((await lease()).report)?.served, MS_MAX);
    // INV-9: from here on its success is the job's.
    await successor.end();
    process.kill(standby.sidecar.pid, "SIGTERM");
    expect(await standby.sidecar.ended).toBe(0);
    await standby.tell("Succeeded", { terminated: { exitCode: 0 } });
    await until(
      async () => (await status()).conditions.some(({ type, status }) => type === "Complete" && status === "True"),
      MS_MAX,
    );
  });

  test("INV-9: a started standby that ended well without ever having been served has not done the job", async () => {
    await aJob({ standbys: { count: 0, application: "Started" }, backoffLimit: 0 });
    const pod = await aPod(1);
    await owns(pod, 1);
    process.kill(pod.sidecar.pid, "SIGTERM");
    await pod.sidecar.ended;
    await pod.tell("Succeeded", { terminated: { exitCode: 0 } });
    const { history, conditions } = await until(async () => {
      const now = await status();
      return now.completionTime ? now : null;
    }, MS_MAX);
    expect(history[0]?.reason).toBe("EndedUnserved");
    expect(conditions.find(({ type }) => type === "Failed")?.message).toContain("must wait for its first connection");
  });
});
