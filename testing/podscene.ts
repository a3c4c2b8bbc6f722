/**
 * A real API server, a real PostgreSQL and a controller, and jobs one after the other in namespaces of their own, whose pods
 * are processes of this machine. The test is their applications and their kubelet.
 */

import pg from "pg";
import type { FencedJobStatus } from "../controller/api/status.ts";
import { type KubeApi, RESOURCES } from "../controller/kube/api.ts";
import type { KubeObject } from "../controller/kube/objects.ts";
import type { RawPod } from "../controller/snapshot.ts";
import { LeaseClient } from "../lease/client.ts";
import { type LeaseRecord, type RawLease, readLease } from "../lease/record.ts";
import type { TestApiServer } from "./apiserver.ts";
import { startTestController } from "./controller.ts";
import { APPLICATION_ROLE, type Fenced, startFenced } from "./fenced.ts";
import { startJobServer } from "./jobserver.ts";
import { type PodOptions, type PodProcess, startPod } from "./podprocess.ts";
import { until } from "./until.ts";

export interface PodScene {
  readonly server: TestApiServer;
  readonly fenced: Fenced;
  readonly admin: pg.Client;
  readonly api: KubeApi;
  /** Of the present job. */
  readonly namespace: string;
  /** A namespace for the next job. */
  begin(): Promise<void>;
  /** Ends the job and its pods. */
  end(): Promise<void>;
  stop(): Promise<void>;
  /** FencedJob `run`. */
  createJob(spec?: object): Promise<void>;
  /** Starts the job's pod of this attempt once the controller has made it. */
  startPod(attempt: number, options?: Pick<PodOptions, "way" | "ready" | "env">): Promise<PodProcess>;
  /** The same as an owner with this generation, whose application the kubelet has started. */
  startOwner(attempt: number, generation: number, options?: Pick<PodOptions, "way">): Promise<PodProcess>;
  owns(pod: PodProcess, generation: number): Promise<unknown>;
  lease(): Promise<LeaseRecord>;
  leaseClient(): LeaseClient;
  status(): Promise<FencedJobStatus>;
  /** As `kubectl delete pod`: for a pod on a node it takes until the kubelet says that it has ended. */
  deletePod(pod: PodProcess): Promise<void>;
  /** What the kubelet says when its processes have ended. */
  podHasEnded(pod: PodProcess): Promise<void>;
  /** As the pod's application. */
  connect(pod: PodProcess): Promise<pg.Client>;
  /** A statement that leaves a row of the present job; `rows` are all that were committed. */
  writes(what: string): string;
  rows(): Promise<string[]>;
}

const JOB = "run";
/** Of a start, on a machine with much else to do. */
export const PATIENT_MS = 120_000;

export async function startPodScene(): Promise<PodScene> {
  const [jobServer, fenced] = await Promise.all([startJobServer(), startFenced()]);
  const admin = await fenced.connectAdmin();
  await admin.query(
    `CREATE TABLE written (job text, what text); GRANT SELECT, INSERT ON written TO ${APPLICATION_ROLE}`,
  );
  const { server, kube, client, api } = jobServer;
  const controller = await startTestController({ kube, lease: { namespace: "default", name: "controllers" } });
  const pods: PodProcess[] = [];
  let jobs = 0;
  let namespace = "";
  const where = () => ({ namespace, name: JOB });

  const scene: PodScene = {
    server,
    fenced,
    admin,
    api,
    get namespace() {
      return namespace;
    },
    begin: async () => {
      namespace = `life-${++jobs}`;
      await server.createNamespace(namespace);
    },
    end: async () => {
      // No successor for the pods that are about to end.
      await server.kubectl(["delete", "fencedjob", "--all", "-n", namespace, "--wait=false"]);
      await Promise.all(pods.splice(0).map((pod) => pod.stop()));
    },
    stop: async () => {
      await controller.stop();
      await Promise.all([jobServer.stop(), fenced.stop()]);
    },
    createJob: async (spec = {}) => {
      await jobServer.createJob(where(), spec);
    },
    startPod: async (attempt, options = {}) => {
      const name = `${JOB}-${attempt}`;
      const made = await until(() => api.get<RawPod & KubeObject>(RESOURCES.pods, { namespace, name }), PATIENT_MS);
      const pod = await startPod({ server, api, pod: made, address: fenced.address, ...options });
      pods.push(pod);
      return pod;
    },
    startOwner: async (attempt, generation, options) => {
      const pod = await scene.startPod(attempt, options);
      await scene.owns(pod, generation);
      await pod.tell("Running", { running: {} });
      return pod;
    },
    owns: (pod, generation) =>
      until(async () => (await pod.state()).state === `owner, generation ${generation}`, PATIENT_MS),
    lease: async () => readLease(await api.get<RawLease & KubeObject>(RESOURCES.leases, where())),
    leaseClient: () => new LeaseClient(client, where()),
    status: async () => jobServer.status(where()),
    deletePod: async ({ name }) => {
      const target = { apiVersion: "v1", kind: "Node", name: "some" };
      const binding = { apiVersion: "v1", kind: "Binding", metadata: { name, namespace }, target };
      await server.kubectl(
        ["create", "--raw", `/api/v1/namespaces/${namespace}/pods/${name}/binding`, "-f", "-"],
        JSON.stringify(binding),
      );
      await api.delete(RESOURCES.pods, { namespace, name }, { gracePeriodSeconds: 60 });
    },
    podHasEnded: ({ name, uid }) =>
      api.delete(RESOURCES.pods, { namespace, name }, { gracePeriodSeconds: 0, preconditions: { uid } }),
    connect: async ({ port }) => {
      const application = new pg.Client({ host: "127.0.0.1", port, user: "x", database: fenced.address.database });
      application.on("error", () => {});
      await application.connect();
      return application;
    },
    writes: (what) => `INSERT INTO written VALUES ('${namespace}', '${what}')`,
    rows: async () =>
      (await admin.query("SELECT what FROM written WHERE job = $1", [namespace])).rows.map(({ what }) => what),
  };
  return scene;
}
