/**
 * Pods as teams have them, each as a FencedJob (`e2e/manifests/`), on a real API server with the real kubectl: stored as
 * written, made into a pod that has all of it, or refused with the reason. They run on nodes elsewhere.
 */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { parseAllDocuments } from "yaml";
import { type FencedJobStatus, readStatus } from "../controller/api/status.ts";
import type { Controller } from "../controller/controller.ts";
import { type KubeApi, RESOURCES } from "../controller/kube/api.ts";
import type { RawObject } from "../controller/kube/objects.ts";
import { SIDECAR_NAME } from "../controller/snapshot.ts";
import type { TestApiServer } from "../testing/apiserver.ts";
import { startTestController } from "../testing/controller.ts";
import { type JobServer, startJobServer } from "../testing/jobserver.ts";
import { until } from "../testing/until.ts";
import { checkout } from "./cluster/paths.ts";

type Json = { [key: string]: Json } | Json[] | string | number | boolean | null | undefined;

interface Container {
  readonly name: string;
  readonly env?: readonly { readonly name: string; readonly value?: string }[];
  readonly volumeMounts?: readonly { readonly name: string }[];
  readonly securityContext?: object;
}

interface Pod {
  readonly metadata: { readonly labels: Record<string, string> };
  readonly spec: { readonly containers: Container[]; readonly initContainers: Container[]; readonly volumes: Json[] };
}

const ADMITTED = [
  "01-shared-processes-own-proxy",
  "02-companion-ended-by-a-file",
  "03-restricted-migration",
  "05-restarted-in-place",
  "07-mounted-script",
  "08-downward-api-and-order",
  "09-spot-and-spread",
];

let jobServer: JobServer;
let server: TestApiServer;
let api: KubeApi;
let controller: Controller;

beforeAll(async () => {
  jobServer = await startJobServer();
  ({ server, api } = jobServer);
  const lease = { namespace: "kube-system", name: "fencedjob-controller" };
  controller = await startTestController({ kube: jobServer.kube, lease });
});

afterAll(async () => {
  await controller?.stop();
  await jobServer?.stop();
});

const pathOf = (file: string): string => join(checkout, "e2e/manifests", `${file}.yaml`);

/** As kubectl reads it: YAML 1.1, in which 0555 is octal (P8). */
function fencedJobIn(file: string): RawObject {
  const documents = parseAllDocuments(readFileSync(pathOf(file), "utf8"), { version: "1.1" });
  const jobs = documents.map((document) => document.toJS() as RawObject).filter(({ kind }) => kind === "FencedJob");
  return jobs[0]!;
}

/** Each in a namespace of its own, held to the strictest profile if it is meant for it. */
async function create(file: string): Promise<{ namespace: string; name: string }> {
  const namespace = `shape-${file.slice(0, 2)}`;
  await server.createNamespace(namespace);
  if (file.includes("restricted")) {
    await server.kubectl(["label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"]);
  }
  await server.kubectl(["create", "-n", namespace, "-f", pathOf(file)]);
  return { namespace, name: fencedJobIn(file).metadata.name };
}

const statusOf = async (key: { namespace: string; name: string }): Promise<FencedJobStatus> =>
  readStatus((await api.get<RawObject>(RESOURCES.fencedJobs, key)).status);

const firstPod = ({ namespace, name }: { namespace: string; name: string }): Promise<Pod> =>
  until(() => api.get(RESOURCES.pods, { namespace, name: `${name}-1` })) as unknown as Promise<Pod>;

/** Until the condition has the reason; its message. */
const told = (key: { namespace: string; name: string }, type: string, reason: string): Promise<string> =>
  until(async () => {
    const found = (await statusOf(key)).conditions.find((condition) => condition.type === type);
    return found?.reason === reason ? found.message : null;
  });

/**
 * Everything of `wanted` is in `found`: each field with its value, each element of a list in its place among its own; what
 * the controller and the API server add may stand before, between and behind. Returns the paths of what is not.
 */
function missing(wanted: Json, found: Json, path = ""): string[] {
  if (Array.isArray(wanted)) {
    const rest = Array.isArray(found) ? [...found] : [];
    return wanted.flatMap((element, index) => {
      const at = rest.findIndex((candidate) => missing(element, candidate).length === 0);
      if (at < 0) return [`${path}[${index}]`];
      rest.splice(0, at + 1);
      return [];
    });
  }
  if (typeof wanted === "object" && wanted !== null) {
    const has = typeof found === "object" && found !== null && !Array.isArray(found) ? found : {};
    return Object.entries(wanted).flatMap(([key, value]) => missing(value, has[key], `${path}.${key}`));
  }
  return Object.is(wanted, found) ? [] : [path];
}

test("what is compared with is compared: a changed text, a lost field and a changed order are told", () => {
  const wanted = { a: ["x", { b: 1 }, "y"], c: { d: true } };
  expect(missing(wanted, { a: ["0", "x", { b: 1, more: 2 }, "y"], c: { d: true, e: 1 } })).toEqual([]);
  expect(missing(wanted, { a: ["x", "y", { b: 1 }], c: { d: true } })).toEqual([".a[2]"]);
  expect(missing(wanted, { a: ["x", { b: 2 }, "y"], c: {} })).toEqual([".a[1]", ".c.d"]);
});

describe("D03: stored as written, and the pod has all of it", () => {
  test.each(ADMITTED)("%s", async (file) => {
    const wanted = fencedJobIn(file).spec as { template: { metadata?: Json; spec: { [key: string]: Json } } };
    const key = await create(file);
    const { spec } = await api.get<RawObject>(RESOURCES.fencedJobs, key);
    expect((spec as typeof wanted).template).toEqual(wanted.template);
    const pod = await firstPod(key);
    expect(missing(wanted.template, pod as unknown as Json)).toEqual([]);
    // Nothing but the sidecar was added, and it starts first (INV-4).
    const names = (containers: Json | Container[]): string[] =>
      ((containers ?? []) as Container[]).map(({ name }) => name);
    expect(names(pod.spec.containers)).toEqual(names(wanted.template.spec.containers));
    expect(names(pod.spec.initContainers)).toEqual([SIDECAR_NAME, ...names(wanted.template.spec.initContainers)]);
    expect((await statusOf(key)).conditions.find(({ type }) => type === "Admitted")?.status).toBe("True");
  });

  const containerOf = async (file: string, name: string): Promise<Container> => {
    const namespace = `shape-${file.slice(0, 2)}`;
    const { spec } = await firstPod({ namespace, name: fencedJobIn(file).metadata.name });
    return [...spec.initContainers, ...spec.containers].find((container) => container.name === name)!;
  };
  const envOf = async (file: string, name: string): Promise<string[]> =>
    ((await containerOf(file, name)).env ?? []).map((entry) => `${entry.name}=${entry.value ?? ""}`);

  test("the application's own PGHOST wins, and is there once; without one it gets ours, in init containers, too (E03)", async () => {
    expect(await envOf("01-shared-processes-own-proxy", "rollup")).toEqual(["PGHOST=127.0.0.1", "PGPORT=5432"]);
    const ours = ["PGHOST=127.0.0.1", "PGPORT=5432", "PGUSER=migrator"];
    expect(await envOf("03-restricted-migration", "precheck")).toEqual(ours);
    expect((await envOf("03-restricted-migration", "migrate")).slice(0, 3)).toEqual(ours);
  });

  test("variables made of earlier ones stay behind them, also behind ours (E03)", async () => {
    const names = (await envOf("08-downward-api-and-order", "seed")).map((entry) => entry.split("=")[0]);
    expect(names).toEqual([
      ...["PGHOST", "PGPORT"],
      ...["NODE", "RUN", "MEMORY", "DB_HOST", "DB_PORT", "DATABASE_URL", "POSTGRES_PORT"],
    ]);
  });

  test("D10, E09: the sidecar is restricted by its own context, whoever the application runs as", async () => {
    expect((await containerOf("03-restricted-migration", SIDECAR_NAME)).securityContext).toMatchObject({
      runAsNonRoot: true,
      runAsUser: 65532,
      readOnlyRootFilesystem: true,
      allowPrivilegeEscalation: false,
      capabilities: { drop: ["ALL"] },
      seccompProfile: { type: "RuntimeDefault" },
    });
  });

  test("D11, D12: no token reaches an application that wants none; one that names its own account keeps what it asked for", async () => {
    const mounts = async (file: string, name: string): Promise<string[]> =>
      ((await containerOf(file, name)).volumeMounts ?? []).map((mount) => mount.name);
    expect(await mounts("03-restricted-migration", "migrate")).toEqual(["tmp"]);
    // No token by default either, where the account is made for the job.
    expect(await mounts("05-restarted-in-place", "import")).toEqual(["kept"]);
    const seed = await mounts("08-downward-api-and-order", "seed");
    expect(seed.map((name) => name.replace(/-\w{5}$/, ""))).toEqual(["facts", "kube-api-access"]);
    expect(await mounts("08-downward-api-and-order", SIDECAR_NAME)).toContain("fencedjob-token");
  });
});

describe("refused, with the reason and without harm to others", () => {
  test("D04: an unquoted number is told on that object only, by the words of the API server; the next one is looked after", async () => {
    const key = await create("12-unquoted-number");
    expect(await told(key, "Admitted", "InvalidTemplate")).toMatch(
      /env.*value.*No new pod is created until this is fixed/s,
    );
    const next = {
      ...fencedJobIn("02-companion-ended-by-a-file"),
      metadata: { name: "beside", namespace: key.namespace },
    };
    await api.create(RESOURCES.fencedJobs, next);
    await firstPod({ namespace: key.namespace, name: "beside" });
    expect((await statusOf(key)).attempt ?? 0).toBe(0);
    // Mended, it goes on by itself.
    const env = [{ name: "PGPORT", value: "5432" }];
    const containers = [{ name: "migrate", image: "example.com/migrate:9", env }];
    await api.patch(RESOURCES.fencedJobs, key, { spec: { template: { spec: { containers } } } });
    await firstPod(key);
  });

  test("E05, A13: hostNetwork", async () => {
    const key = await create("13-host-network");
    expect(await told(key, "Admitted", "HostNetwork")).toMatch(/open to everything on the node/);
  });

  test("E10: several pods at once are several writers: the fields of an indexed Job cannot be written", async () => {
    await expect(create("14-indexed")).rejects.toThrow(
      /unknown field "spec\.completionMode".*"spec\.podFailurePolicy"/s,
    );
  });

  test("E11: the longest name that is admitted has a pod, an account and a Lease", async () => {
    const name = "n".repeat(52);
    await server.createNamespace("shape-long");
    const job = { ...fencedJobIn("02-companion-ended-by-a-file"), metadata: { name, namespace: "shape-long" } };
    await api.create(RESOURCES.fencedJobs, job);
    const pod = await firstPod({ namespace: "shape-long", name });
    expect(pod.metadata.labels["fencedjob.dev/job"]).toBe(name);
    await expect(
      api.create(RESOURCES.fencedJobs, { ...job, metadata: { name: `${name}n`, namespace: "shape-long" } }),
    ).rejects.toThrow(/52 characters/);
  });
});

test("E13: a job that is made suspended has no pod and no Lease; resumed, its pod carries what keeps the mesh away", async () => {
  const key = await create("15-suspended-without-mesh");
  expect(await told(key, "Suspended", "Stopped")).toMatch(/no pod/);
  expect((await api.list(RESOURCES.pods, { namespace: key.namespace })).items).toEqual([]);
  expect((await api.list(RESOURCES.leases, { namespace: key.namespace })).items).toEqual([]);
  await api.patch(RESOURCES.fencedJobs, key, { spec: { suspend: false } });
  const pod = (await firstPod(key)) as unknown as RawObject;
  expect(pod.metadata.labels).toMatchObject({ "sidecar.istio.io/inject": "false" });
  expect(pod.metadata.annotations).toMatchObject({ "linkerd.io/inject": "disabled" });
});
