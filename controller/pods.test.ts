/** What the application's containers get of their databases. */
import { describe, expect, test } from "vitest";
import type { SidecarConfig } from "../lease/sidecarconfig.ts";
import { readSpec } from "./api/spec.ts";
import { buildPod } from "./pods.ts";

interface Container {
  readonly name: string;
  readonly env?: readonly { readonly name: string; readonly value?: string }[];
  readonly volumeMounts?: readonly { readonly name: string; readonly mountPath: string }[];
}

interface Pod {
  readonly spec: {
    readonly containers: readonly Container[];
    readonly initContainers: readonly Container[];
    readonly volumes: readonly { readonly name: string }[];
  };
}

/** The pod of a job with these databases; the application, an init container, and the sidecar. */
function containersOf(databases: readonly object[], env: Container["env"] = []) {
  const verdict = readSpec({
    databases,
    template: { spec: { containers: [{ name: "app", env }], initContainers: [{ name: "migrate" }] } },
  });
  if (!verdict.ok) throw new Error(verdict.problems.join());
  const meta = { name: "run", namespace: "billing", uid: "u" };
  const sidecar = { image: "i", imagePullPolicy: "Always", resources: {} };
  const pod = buildPod({ meta, spec: verdict.spec, sidecar, issuer: "c" }, 1) as unknown as Pod;
  const [own, migrate] = pod.spec.initContainers;
  const config: SidecarConfig = JSON.parse(own?.env?.find(({ name }) => name === "FENCEDJOB_SIDECAR")?.value ?? "");
  return { application: [pod.spec.containers[0]!, migrate!], sidecar: own!, config, volumes: pod.spec.volumes };
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
