/** What the application's containers get of their databases. */
import { describe, expect, test } from "vitest";
import type { SidecarConfig } from "../lease/sidecarconfig.ts";
import { readSpec } from "./api/spec.ts";
import { buildPod, controllerReference } from "./pods.ts";
import { APPLICATION_ANNOTATION } from "./snapshot.ts";

interface Container {
  readonly name: string;
  readonly env?: readonly { readonly name: string; readonly value?: string }[];
  readonly volumeMounts?: readonly { readonly name: string; readonly mountPath: string }[];
}

interface Pod {
  readonly metadata: { readonly annotations: Readonly<Record<string, string>> };
  readonly spec: {
    readonly affinity: object;
    readonly containers: readonly Container[];
    readonly initContainers: readonly Container[];
    readonly volumes: readonly { readonly name: string }[];
  };
}

function podOf(databases: readonly object[], spec: object, standbys: object = {}): Pod {
  const verdict = readSpec({ databases, standbys, template: { spec } });
  if (!verdict.ok) throw new Error(verdict.problems.join());
  const meta = { name: "run", namespace: "billing", uid: "u" };
  const sidecar = { image: "i", imagePullPolicy: "Always", resources: {} };
  return buildPod({ meta, spec: verdict.spec, sidecar, issuer: "c" }, 1) as unknown as Pod;
}

/** Of a pod with these databases: the application, an init container, and the sidecar. */
function containersOf(databases: readonly object[], env: Container["env"] = [], standbys: object = {}) {
  const spec = { containers: [{ name: "app", env }], initContainers: [{ name: "migrate" }] };
  const pod = podOf(databases, spec, standbys);
  const [own, migrate] = pod.spec.initContainers;
  const config: SidecarConfig = JSON.parse(own?.env?.find(({ name }) => name === "FENCEDJOB_SIDECAR")?.value ?? "");
  const annotation = pod.metadata.annotations[APPLICATION_ANNOTATION];
  return {
    annotation,
    application: [pod.spec.containers[0]!, migrate!],
    sidecar: own!,
    config,
    volumes: pod.spec.volumes,
  };
}

const ledger = { name: "ledger", secretName: "ledger-db" };
const environment = ({ env = [] }: Container) => Object.fromEntries(env.map(({ name, value }) => [name, value]));
const mounts = ({ volumeMounts = [] }: Container) => volumeMounts.map(({ mountPath }) => mountPath);

test("PGHOST and PGPORT lead to 127.0.0.1, and no volume of the sidecar reaches the application", () => {
  const { application, config } = containersOf([ledger]);
  for (const container of application) {
    expect(environment(container)).toEqual({ PGHOST: "127.0.0.1", PGPORT: "5432" });
    expect(mounts(container)).toEqual([]);
  }
  expect(config.databases[0]).not.toHaveProperty("socketDir");
});

test("a pod keeps away from the job's other pods if it can, and keeps what the template asks for: a node may be lost with its owner", () => {
  const hostname = { topologyKey: "kubernetes.io/hostname" };
  const required = [{ ...hostname, labelSelector: { matchLabels: { app: "run" } } }];
  const theirs = [{ weight: 1, podAffinityTerm: { topologyKey: "zone" } }];
  const affinity = {
    nodeAffinity: {},
    podAntiAffinity: {
      requiredDuringSchedulingIgnoredDuringExecution: required,
      preferredDuringSchedulingIgnoredDuringExecution: theirs,
    },
  };
  const ours = { ...hostname, labelSelector: { matchLabels: { "fencedjob.dev/job": "run" } } };
  const term = { weight: 100, podAffinityTerm: ours };
  expect(podOf([ledger], { containers: [{ name: "app" }], affinity }).spec.affinity).toEqual({
    nodeAffinity: {},
    podAntiAffinity: {
      requiredDuringSchedulingIgnoredDuringExecution: required,
      preferredDuringSchedulingIgnoredDuringExecution: [...theirs, term],
    },
  });
  expect(podOf([ledger], { containers: [{ name: "app" }] }).spec.affinity).toEqual({
    podAntiAffinity: { preferredDuringSchedulingIgnoredDuringExecution: [term] },
  });
});

test("what is made while the FencedJob is being deleted does not block that: in the foreground it would be deleted first", () => {
  const meta = { name: "run", namespace: "billing", uid: "u" };
  expect(controllerReference(meta).blockOwnerDeletion).toBe(true);
  const deleting = { ...meta, deletionTimestamp: "2026-11-29T13:00:00Z" };
  expect(controllerReference(deleting).blockOwnerDeletion).toBe(false);
});

test("sidecar and pod are told whether the application is started early", () => {
  expect(containersOf([ledger])).toMatchObject({ config: { application: "NotStarted" }, annotation: "NotStarted" });
  const early = containersOf([ledger], [], { count: 1, application: "Started" });
  expect(early).toMatchObject({ config: { application: "Started" }, annotation: "Started" });
});

describe("socket: true", () => {
  test("one volume for sidecar and application, and PGHOST names its directory", () => {
    const { application, sidecar, config, volumes } = containersOf([{ ...ledger, socket: true, port: 6432 }]);
    const [{ socketDir } = { socketDir: undefined }] = config.databases;
    expect(socketDir).toMatch(/^\//);
    for (const container of application) {
      expect(environment(container)).toEqual({ PGHOST: socketDir, PGPORT: "6432" });
      expect(mounts(container)).toEqual([socketDir]);
    }
    expect(mounts(sidecar)).toContain(socketDir);
    expect(volumes).toContainEqual({ name: "fencedjob-sockets", emptyDir: {} });
  });

  test("an own PGHOST wins; with two databases the application names them itself", () => {
    const own = containersOf([{ ...ledger, socket: true }], [{ name: "PGHOST", value: "localhost" }]);
    expect(environment(own.application[0]!)).toEqual({ PGHOST: "localhost" });
    const two = containersOf([
      { ...ledger, socket: true },
      { name: "orders", secretName: "o", port: 5433 },
    ]);
    expect(environment(two.application[0]!)).toEqual({});
    expect(mounts(two.application[0]!)).toHaveLength(1);
    expect(two.config.databases.map(({ socketDir }) => socketDir !== undefined)).toEqual([true, false]);
  });
});

test("the account of the template stays the pod's, also by the field's older name, which kubectl still prints", () => {
  const accountOf = (spec: object) =>
    podOf([ledger], { containers: [{ name: "app" }], ...spec }).spec as { serviceAccountName?: string };
  expect(accountOf({ serviceAccount: "billing" })).toMatchObject({ serviceAccountName: "billing" });
  expect(accountOf({ serviceAccount: "billing" })).not.toHaveProperty("automountServiceAccountToken");
  // As the API server reads both.
  expect(accountOf({ serviceAccount: "old", serviceAccountName: "new" }).serviceAccountName).toBe("new");
  expect(accountOf({})).toMatchObject({ serviceAccountName: "run-fencedjob", automountServiceAccountToken: false });
});

test("the fence's name reaches the sidecar as it is written, though the kubelet expands $(…) and $$ in a variable", () => {
  for (const fenceName of ["billing/$$run", "$(POD_NAME)", "$(KUBERNETES_SERVICE_HOST)/run", "a$b"]) {
    const verdict = readSpec({ fenceName, databases: [ledger], template: { spec: { containers: [{ name: "app" }] } } });
    if (!verdict.ok) throw new Error(verdict.problems.join());
    const meta = { name: "run", namespace: "billing", uid: "u" };
    const sidecar = { image: "i", imagePullPolicy: "Always", resources: {} };
    const pod = buildPod({ meta, spec: verdict.spec, sidecar, issuer: "c" }, 1) as unknown as Pod;
    const written = pod.spec.initContainers[0]?.env?.find(({ name }) => name === "FENCEDJOB_SIDECAR")?.value ?? "";
    const expanded = written.replaceAll(/\$(?:(\$)|\(([^)]*)\))/g, (_all, escaped) => escaped ?? "expanded");
    expect(JSON.parse(expanded).fenceName).toBe(fenceName);
  }
});
