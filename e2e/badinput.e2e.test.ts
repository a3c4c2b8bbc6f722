/**
 * What users get wrong, on a real cluster with real databases: each is a condition and an event that name the cause and
 * the next step, the application does not start, and the controller goes on with the other objects.
 */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { RESOURCES } from "../controller/kube/api.ts";
import type { RawObject } from "../controller/kube/objects.ts";
import { install } from "../fence/client.ts";
import { makeRole } from "../fence/role.ts";
import { addressFromUrl } from "../fence/url.ts";
import { startPostgres, type TestPostgres } from "../testing/postgres.ts";
import { until } from "../testing/until.ts";
import { FOREVER, openScene, type Scene, SETUP_MS_MAX, scriptContainer } from "./scene.ts";

const NAMESPACE = "badinput";
/** The kubelet alone takes up to two minutes until a changed Secret is in a pod. */
const CONDITION_MS_MAX = 4 * 60_000;
const TEST_MS_MAX = 2 * CONDITION_MS_MAX;

const NO_WAY = "pods of this cluster cannot reach servers of this machine";

type DatabaseCase = [
  what: string,
  name: string,
  secret: () => Record<string, string> | undefined,
  reason: string,
  words: RegExp,
];

let scene: Scene;
let server: TestPostgres;
let standby: TestPostgres;

beforeAll(async () => {
  scene = await openScene(NAMESPACE);
  // The servers run on this machine: only the local node's pods can reach them.
  const host = scene.cluster.hostAddress;
  if (host === undefined) return;
  const hba = ["host all postgres all trust", "host all all all scram-sha-256"];
  server = await startPostgres({ host, hba });
  await asAdmin(server, "CREATE DATABASE ledger", "CREATE DATABASE bare", "CREATE ROLE stranger LOGIN PASSWORD 'p'");
  await prepare(server, "ledger");
  standby = await startPostgres({ host, hba });
  await asAdmin(standby, "CREATE DATABASE ledger");
  await prepare(standby, "ledger");
  await standby.stop("fast");
  writeFileSync(join(standby.dataDir, "standby.signal"), "");
  await standby.start();
}, SETUP_MS_MAX);

afterAll(async () => {
  await scene?.close();
  await server?.remove();
  await standby?.remove();
});

async function asAdmin(to: TestPostgres, ...statements: string[]): Promise<void> {
  const client = new pg.Client(to.url());
  await client.connect();
  for (const statement of statements) await client.query(statement);
  await client.end();
}

async function prepare(to: TestPostgres, database: string): Promise<void> {
  const address = addressFromUrl(to.url(database));
  await install(address);
  await makeRole(address, { name: "invoice_app", password: "right" });
}

const uri = (to: TestPostgres, user: string, database = "ledger"): string =>
  `postgres://${user}@${to.host}:${to.port}/${database}?sslmode=disable`;

async function create(name: string, spec: object = {}, secret?: Record<string, string>): Promise<void> {
  if (secret) await putSecret(name, secret);
  const app = scriptContainer(scene.scriptImage, FOREVER);
  await scene.create(name, {
    databases: [{ name: "ledger", secretName: `${name}-db` }],
    // Its first pod is what is looked at: no pause of the machine costs it its place.
    lease: { durationSeconds: 600 },
    template: { spec: { restartPolicy: "Never", terminationGracePeriodSeconds: 1, containers: [app] } },
    ...spec,
  });
}

async function putSecret(name: string, stringData: Record<string, string>): Promise<void> {
  const secret = {
    apiVersion: "v1",
    kind: "Secret",
    metadata: { name: `${name}-db`, namespace: NAMESPACE },
    stringData,
  };
  await scene.cluster.kubectl(["apply", "-f", "-"], JSON.stringify(secret));
}

/** The message of the condition once it has this reason. */
const condition = (name: string, type: string, reason: string): Promise<string> =>
  until(
    async () => {
      const found = await scene.condition(name, type);
      return found?.reason === reason ? found.message : null;
    },
    CONDITION_MS_MAX,
    { what: `${name} says ${type} ${reason}` },
  );

const hasWarning = (name: string, reason: string): Promise<string> =>
  scene.says(name, new RegExp(`Warning +${reason} `));

async function appHasStarted(name: string): Promise<boolean> {
  const pod = await scene.api.get<RawObject>(RESOURCES.pods, { namespace: NAMESPACE, name: `${name}-1` });
  const { containerStatuses } = pod.status as { containerStatuses?: { state?: { running?: object } }[] };
  return containerStatuses?.some(({ state }) => state?.running) ?? false;
}

describe("the database", { timeout: TEST_MS_MAX }, () => {
  test.for<DatabaseCase>([
    [
      "a missing Secret",
      "nosecret",
      () => undefined,
      "SecretMissing",
      /Secret "nosecret-db" in namespace "badinput".*kubectl create secret/s,
    ],
    ["a Secret without an address", "emptysecret", () => ({ user: "x" }), "SecretMissing", /lacks host, dbname/],
    [
      "a wrong password",
      "wrongpassword",
      () => ({ uri: uri(server, "invoice_app:wrong") }),
      "AuthenticationFailed",
      /refuses the password of role "invoice_app".*Secret/s,
    ],
    [
      "an unreachable server",
      "unreachable",
      () => ({ uri: "postgres://a:b@10.245.0.1:9/ledger?sslmode=disable" }),
      "DatabaseUnreachable",
      /10\.245\.0\.1:9 cannot be reached.*ECONNREFUSED/s,
    ],
    [
      "a read-only server",
      "readonly",
      () => ({ uri: uri(standby, "invoice_app:right") }),
      "DatabaseReadOnly",
      /standby.*primary/s,
    ],
    [
      "a missing schema",
      "noschema",
      () => ({ uri: uri(server, "invoice_app:right", "bare") }),
      "SchemaMissing",
      /fencedjob db install/,
    ],
    [
      "missing rights",
      "norights",
      () => ({ uri: uri(server, "stranger:p") }),
      "MissingRights",
      /role "stranger".*fencedjob db role/s,
    ],
    [
      "a superuser",
      "superuser",
      () => ({ uri: uri(server, "postgres") }),
      "RoleNotFenceable",
      /role "postgres" cannot be fenced.*superuser/s,
    ],
  ])("%s", async ([_what, name, secret, reason, words], { skip }) => {
    skip(scene.cluster.hostAddress === undefined, NO_WAY);
    await create(name, {}, secret());
    expect(await condition(name, "FenceRaised", reason)).toMatch(words);
    await hasWarning(name, reason);
    expect(await appHasStarted(name)).toBe(false);
  });

  test("a Secret that is mended is taken up without anybody's help", async ({ skip }) => {
    skip(scene.cluster.hostAddress === undefined, NO_WAY);
    await create("mended", {}, { uri: uri(server, "invoice_app:wrong") });
    await condition("mended", "FenceRaised", "AuthenticationFailed");
    await putSecret("mended", { uri: uri(server, "invoice_app:right") });
    await condition("mended", "FenceRaised", "Raised");
    await until(() => appHasStarted("mended"));
  });
});

describe("the object", { timeout: TEST_MS_MAX }, () => {
  test.each([
    [
      "a template that the API server refuses",
      "badtemplate",
      { template: { spec: { restartPolicy: "Sometimes", containers: [{ name: "app", image: "x" }] } } },
      "InvalidTemplate",
      /restartPolicy/,
    ],
    [
      "hostNetwork",
      "hostnetwork",
      { template: { spec: { hostNetwork: true, containers: [{ name: "app", image: "x" }] } } },
      "HostNetwork",
      /whole node|everything on the node/,
    ],
  ])("%s", async (_what, name, spec, reason, words) => {
    await create(name, spec);
    expect(await condition(name, "Admitted", reason)).toMatch(words);
    await hasWarning(name, reason);
  });

  test("an unsafe timing cannot even be written", async () => {
    await expect(create("unsafe", { lease: { durationSeconds: 4, renewIntervalSeconds: 3 } })).rejects.toThrow(
      /must be below durationSeconds/,
    );
  });
});

test("beside all of them a good job runs to its end", { timeout: TEST_MS_MAX }, async ({ skip }) => {
  skip(scene.cluster.hostAddress === undefined, NO_WAY);
  const app = scriptContainer(scene.scriptImage, "");
  await create(
    "good",
    { template: { spec: { restartPolicy: "Never", containers: [app] } } },
    { uri: uri(server, "invoice_app:right") },
  );
  expect(await condition("good", "Complete", "Completed")).toContain("generation 1 (good-1) completed the job");
});
