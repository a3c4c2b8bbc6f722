/**
 * A pod of a FencedJob as processes of this machine: its sidecar with the configuration that the controller gave it and
 * the rights of its account at a real API server. The test is its application, and tells the API server what a kubelet would.
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type KubeApi, RESOURCES } from "../controller/kube/api.ts";
import type { RawObject } from "../controller/kube/objects.ts";
import { type RawPod, SIDECAR_NAME } from "../controller/snapshot.ts";
import type { DatabaseAddress } from "../fence/database.ts";
import type { SidecarConfig } from "../lease/sidecarconfig.ts";
import type { SidecarState } from "../sidecar/http.ts";
import type { TestApiServer } from "./apiserver.ts";
import { givenConfig } from "./givenconfig.ts";
import { freePort } from "./postgres.ts";
import { type Serving, startServing } from "./serving.ts";

export interface PodOptions {
  readonly server: TestApiServer;
  readonly api: KubeApi;
  readonly pod: RawPod;
  /** Of each of its databases. */
  readonly address: DatabaseAddress;
  /** By which its sidecar goes to the API server, if not straight. */
  readonly way?: Pick<TestApiServer, "url" | "caPem">;
  /** Found in its standard error when it is far enough; by default that it is a candidate. */
  readonly ready?: RegExp;
  readonly env?: Readonly<Record<string, string>>;
  /** The command line; the sources' if absent. */
  readonly program?: string;
}

export interface PodProcess {
  readonly name: string;
  readonly uid: string;
  readonly config: SidecarConfig;
  readonly sidecar: Serving;
  /** Of the first database. */
  readonly port: number;
  state(): Promise<SidecarState>;
  lastWords(): unknown;
  /** What the kubelet tells of it; an application's container appears with its state. */
  tell(phase: string, application?: object): Promise<void>;
  stop(): Promise<void>;
}

const FENCEDJOB = join(import.meta.dirname, "..", "cli", "fencedjob.ts");

/** Resolves when its sidecar is `ready`, and the API server has been told that it runs. */
export async function startPod(options: PodOptions): Promise<PodProcess> {
  const { server, api, pod, address, way = server, ready = /"message":"candidate"/, program = FENCEDJOB } = options;
  const { name, namespace = "", uid = "" } = pod.metadata;
  const dir = mkdtempSync(join(tmpdir(), "fencedjob-pod-"));
  const given = givenConfig(pod);
  const databases = await Promise.all(
    given.databases.map(async (database) => ({
      ...database,
      port: await freePort(),
      dir: join(dir, database.name),
      ...(database.socketDir && { socketDir: dir }),
    })),
  );
  const config: SidecarConfig = {
    ...given,
    databases,
    tokenDir: dir,
    httpPort: await freePort(),
    lastWordsPath: join(dir, "last-words"),
  };
  for (const database of databases) writeSecret(database.dir, address);
  writeFileSync(join(dir, "ca.crt"), way.caPem);
  const account = String(pod.spec?.serviceAccountName);
  const bound = ["--bound-object-kind", "Pod", "--bound-object-name", name, "--bound-object-uid", uid];
  writeFileSync(join(dir, "token"), await server.kubectl(["-n", namespace, "create", "token", account, ...bound]));
  const { hostname, port } = new URL(way.url);
  const env = {
    FENCEDJOB_SIDECAR: JSON.stringify(config),
    POD_NAME: name,
    POD_UID: uid,
    KUBERNETES_SERVICE_HOST: hostname,
    KUBERNETES_SERVICE_PORT: port,
    ...options.env,
  };
  const sidecar = await startServing(process.execPath, [program, "sidecar"], { ready, env });
  const tell = async (phase: string, application?: object): Promise<void> => {
    const container = { image: "x", imageID: "x", ready: true, restartCount: 0 };
    const status = {
      phase,
      initContainerStatuses: [{ ...container, name: SIDECAR_NAME, state: { running: {} } }],
      ...(application && { containerStatuses: [{ ...container, name: "app", state: application }] }),
    };
    await api.patch<RawObject>(RESOURCES.pods, { namespace, name }, { status }, { subresource: "status" });
  };
  await tell("Pending");
  return {
    name,
    uid,
    config,
    sidecar,
    port: databases[0]?.port ?? 0,
    state: async () => (await (await fetch(`http://127.0.0.1:${config.httpPort}/status`)).json()) as SidecarState,
    lastWords: () => JSON.parse(readFileSync(config.lastWordsPath, "utf8")),
    tell,
    stop: async () => {
      await sidecar.stop();
      rmSync(dir, { recursive: true, force: true });
    },
  };
}

function writeSecret(dir: string, { host, port, database, user, sslmode }: DatabaseAddress): void {
  mkdirSync(dir);
  const values = { host, port: String(port), dbname: database, user, sslmode };
  for (const [key, value] of Object.entries(values)) writeFileSync(join(dir, key), value);
}
