/**
 * What users get wrong, on a real cluster with real databases: each is a condition and an event that name the cause and
 * the next step, the application does not start, and the controller goes on with the other objects.
 */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { readStatus } from "../controller/api/status.ts";
import { type KubeApi, RESOURCES } from "../controller/kube/api.ts";
import type { RawObject } from "../controller/kube/objects.ts";
import { install } from "../fence/client.ts";
import { makeRole } from "../fence/role.ts";
import { addressFromUrl } from "../fence/url.ts";
import { startPostgres, type TestPostgres } from "../testing/postgres.ts";
import { until } from "../testing/until.ts";
import { image } from "./cluster/images.ts";
import { type Cluster, openCluster } from "./cluster/provider.ts";
import { adminApi, installController } from "./controller.ts";

const NAMESPACE = "badinput";
const SETUP_MS_MAX = 15 * 60_000;
const SAID_MS_MAX = 60_000;

const NO_WAY = "pods of this cluster cannot reach servers of this machine";

type DatabaseCase = [
  what: string,
  name: string,
  secret: () => Record<string, string> | undefined,
  reason: string,
  words: RegExp,
];

let cluster: Cluster;
let server: TestPostgres;
let standby: TestPostgres;
let api: KubeApi;
let close: () => void;
let base: string;

beforeAll(async () => {
  const say = (line: string): void => console.error(line);
  cluster = await openCluster("make test", say);
  await cluster.kubectl(["delete", "namespace", NAMESPACE, "--ignore-not-found"]);
  await cluster.kubectl(["create", "namespace", NAMESPACE]);
  await installController(cluster, say);
  base = await cluster.loadImage(await image("fencedjob-base", say));
  ({ api, close } = await adminApi(cluster));
}, SETUP_MS_MAX);

afterAll(async () => {
  close?.();
  await cluster?.kubectl(["delete", "namespace", NAMESPACE, "--wait=false"]);
  await server?.stop();
  await standby?.stop();
});

/** The servers run on this machine: only the local node's pods can reach them. */
beforeAll(async () => {
  const host = cluster.hostAddress;
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
  const items: object[] = [
    {
      apiVersion: "fencedjob.dev/v1alpha1",
      kind: "FencedJob",
      metadata: { name, namespace: NAMESPACE },
      spec: {
        databases: [{ name: "ledger", secretName: `${name}-db` }],
        template: {
          spec: {
            restartPolicy: "Never",
            terminationGracePeriodSeconds: 1,
            containers: [
              {
                name: "app",
                image: base,
                imagePullPolicy: "IfNotPresent",
                command: ["/nodejs/bin/node", "-e", "setInterval(() => {}, 1e6)"],
              },
            ],
          },
        },
        ...spec,
      },
    },
  ];
  if (secret)
    items.push({
      apiVersion: "v1",
      kind: "Secret",
      metadata: { name: `${name}-db`, namespace: NAMESPACE },
      stringData: secret,
    });
  await cluster.kubectl(["apply", "-f", "-"], JSON.stringify({ apiVersion: "v1", kind: "List", items }));
}

async function condition(name: string, type: string, reason: string): Promise<string> {
  return until(async () => {
    const { status } = await api.get<RawObject>(RESOURCES.fencedJobs, { namespace: NAMESPACE, name });
    const found = readStatus(status).conditions.find((one) => one.type === type);
    return found?.reason === reason ? found.message : null;
  }, SAID_MS_MAX);
}

async function described(name: string, text: RegExp): Promise<string> {
  return until(async () => {
    const words = await cluster.kubectl(["describe", "fencedjob", "-n", NAMESPACE, name]);
    return text.test(words) ? words : null;
  });
}

async function appHasStarted(name: string): Promise<boolean> {
  const pod = await api.get<RawObject>(RESOURCES.pods, { namespace: NAMESPACE, name: `${name}-1` });
  const { containerStatuses } = pod.status as { containerStatuses?: { state?: { running?: object } }[] };
  return containerStatuses?.some(({ state }) => state?.running) ?? false;
}

describe("the database", () => {
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
  ])("%s", { timeout: 2 * SAID_MS_MAX }, async ([_what, name, secret, reason, words], { skip }) => {
    skip(cluster.hostAddress === undefined, NO_WAY);
    await create(name, {}, secret());
    expect(await condition(name, "FenceRaised", reason)).toMatch(words);
    await described(name, new RegExp(`Warning +${reason} `));
    expect(await appHasStarted(name)).toBe(false);
  });

  test("a Secret that is mended is taken up without anybody's help", { timeout: 4 * SAID_MS_MAX }, async ({ skip }) => {
    skip(cluster.hostAddress === undefined, NO_WAY);
    await create("mended", {}, { uri: uri(server, "invoice_app:wrong") });
    await condition("mended", "FenceRaised", "AuthenticationFailed");
    await create("mended", {}, { uri: uri(server, "invoice_app:right") });
    await until(async () => (await condition("mended", "FenceRaised", "Raised")) !== "", 3 * SAID_MS_MAX);
    await until(() => appHasStarted("mended"));
  });
});

describe("the object", () => {
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
    await described(name, new RegExp(`Warning +${reason} `));
  });

  test("an unsafe timing cannot even be written", async () => {
    await expect(create("unsafe", { lease: { durationSeconds: 4, renewIntervalSeconds: 3 } })).rejects.toThrow(
      /must be below durationSeconds/,
    );
  });
});

test("beside all of them a good job runs to its end", { timeout: 2 * SAID_MS_MAX }, async ({ skip }) => {
  skip(cluster.hostAddress === undefined, NO_WAY);
  const app = { name: "app", image: base, imagePullPolicy: "IfNotPresent", command: ["/nodejs/bin/node", "-e", ""] };
  await create(
    "good",
    { template: { spec: { restartPolicy: "Never", containers: [app] } } },
    { uri: uri(server, "invoice_app:right") },
  );
  expect(await condition("good", "Complete", "Completed")).toContain("generation 1 (good-1) completed the job");
});
