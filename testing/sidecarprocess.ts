/** `fencedjob sidecar` as a process of its own, for a pod that a controller has created where no kubelet is. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RawObject } from "../controller/kube/objects.ts";
import type { RawPod } from "../controller/snapshot.ts";
import type { SidecarConfig } from "../lease/sidecarconfig.ts";
import type { TestApiServer } from "./apiserver.ts";
import { givenConfig } from "./givenconfig.ts";
import { freePort } from "./postgres.ts";
import { type Serving, startServing } from "./serving.ts";
import { until } from "./until.ts";

export interface SidecarProcessOptions {
  readonly server: TestApiServer;
  readonly pod: RawObject;
  /** What the Secret of each database would hold. */
  readonly uri: string;
}

const STARTED_MS_MAX = 120_000;
const FENCEDJOB = join(import.meta.dirname, "..", "cli", "fencedjob.ts");

/** Resolves when it serves; the pod must be granted meanwhile. With the token of the pod's own account, bound to it. */
export async function startSidecarProcess({ server, pod, uri }: SidecarProcessOptions): Promise<Serving> {
  const { name, namespace = "", uid = "" } = pod.metadata;
  const { serviceAccountName } = pod.spec as { serviceAccountName: string };
  const given = givenConfig(pod as RawPod);
  const dir = mkdtempSync(join(tmpdir(), "fencedjob-sidecar-"));
  const bound = ["--bound-object-kind", "Pod", "--bound-object-name", name, "--bound-object-uid", uid];
  const token = await server.kubectl([
    "create",
    "token",
    "-n",
    namespace,
    serviceAccountName,
    ...bound,
    "--duration=8h",
  ]);
  writeFileSync(join(dir, "token"), token);
  writeFileSync(join(dir, "ca.crt"), server.caPem);
  const databases = given.databases.map((database) => {
    const files = join(dir, database.name);
    mkdirSync(files);
    writeFileSync(join(files, "uri"), uri);
    return { ...database, dir: files };
  });
  const config: SidecarConfig = { ...given, databases, tokenDir: dir, httpPort: await freePort() };
  const { hostname, port } = new URL(server.url);
  const serving = await startServing(process.execPath, [FENCEDJOB, "sidecar"], {
    ready: /"fence raised"/,
    env: {
      FENCEDJOB_SIDECAR: JSON.stringify(config),
      POD_NAME: name,
      POD_UID: uid,
      KUBERNETES_SERVICE_HOST: hostname,
      KUBERNETES_SERVICE_PORT: port,
    },
  });
  await until(() => fetch(`http://127.0.0.1:${config.httpPort}/started`).then(({ ok }) => ok), STARTED_MS_MAX);
  return {
    ...serving,
    stop: async () => {
      await serving.stop();
      rmSync(dir, { recursive: true, force: true });
    },
  };
}
