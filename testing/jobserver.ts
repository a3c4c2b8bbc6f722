/** A real API server that knows FencedJobs, with a client that may do everything there. */
import { join } from "node:path";
import { type FencedJobStatus, readStatus } from "../controller/api/status.ts";
import { KubeApi, RESOURCES } from "../controller/kube/api.ts";
import { type KubeConfig, loadKubeConfig } from "../controller/kube/config.ts";
import type { RawObject } from "../controller/kube/objects.ts";
import { checkout } from "../e2e/cluster/paths.ts";
import type { LeaseName } from "../lease/client.ts";
import { systemClock } from "../platform/clock.ts";
import { type HttpClient, httpClient } from "../platform/http.ts";
import { startApiServer, type TestApiServer } from "./apiserver.ts";
import { until } from "./until.ts";

export const CRD_FILE = join(checkout, "crds/fencedjob.yaml");

export interface JobServer {
  readonly server: TestApiServer;
  readonly kube: KubeConfig;
  readonly client: HttpClient;
  readonly api: KubeApi;
  /** Of one database and one container, unless `spec` says otherwise. */
  createJob(where: LeaseName, spec?: object): Promise<RawObject>;
  status(where: LeaseName): Promise<FencedJobStatus>;
  stop(): Promise<void>;
}

export async function startJobServer(): Promise<JobServer> {
  const server = await startApiServer();
  const kube = await loadKubeConfig({ env: {}, kubeconfigPath: server.kubeconfigPath });
  const client = httpClient({ ...kube, clock: systemClock });
  const api = new KubeApi(client, systemClock, "fencedjob-test");
  await server.kubectl(["apply", "-f", CRD_FILE]);
  // It serves a resource a moment after it was told of it.
  await until(() => api.list(RESOURCES.fencedJobs).then(() => true));
  return {
    server,
    kube,
    client,
    api,
    createJob: (metadata, spec = {}) =>
      api.create<RawObject>(RESOURCES.fencedJobs, {
        apiVersion: "fencedjob.dev/v1alpha1",
        kind: "FencedJob",
        metadata,
        spec: {
          databases: [{ name: "ledger", secretName: "ledger-db" }],
          template: { spec: { restartPolicy: "Never", containers: [{ name: "app", image: "app" }] } },
          ...spec,
        },
      }),
    status: async (where) => readStatus((await api.get<RawObject>(RESOURCES.fencedJobs, where)).status),
    stop: async () => {
      client.close();
      await server.stop();
    },
  };
}
