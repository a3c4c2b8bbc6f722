/** What every end-to-end test begins with: a cluster, the controller in it, a namespace of its own, the API. */
import { type Condition, type FencedJobStatus, readStatus } from "../controller/api/status.ts";
import { type KubeApi, RESOURCES, type Resource } from "../controller/kube/api.ts";
import { isNotFound } from "../controller/kube/errors.ts";
import type { RawObject } from "../controller/kube/objects.ts";
import { until } from "../testing/until.ts";
import { image } from "./cluster/images.ts";
import { type Cluster, openCluster } from "./cluster/provider.ts";
import { adminApi, installController } from "./controller.ts";

/** A node can be lost; asked for by each test, so that none starts the cluster anew. */
export const NODES_MIN = 2;

/** The first run on a machine builds Kubernetes. */
export const SETUP_MS_MAX = 20 * 60_000;

export interface Scene {
  readonly cluster: Cluster;
  readonly api: KubeApi;
  readonly namespace: string;
  /** An image with Node.js, for applications that are a script. */
  readonly scriptImage: string;
  create(name: string, spec: object): Promise<void>;
  status(name: string): Promise<FencedJobStatus>;
  /** Of this type, as it is now. */
  condition(name: string, type: string): Promise<Condition | undefined>;
  /** The owner of this generation, once its fence is raised. */
  owner(name: string, generation: number, msMax?: number): Promise<NonNullable<FencedJobStatus["owner"]>>;
  /** What `kubectl describe` says, once it says each of these: an event is stored a moment after the status that it tells of. */
  says(name: string, ...words: readonly RegExp[]): Promise<string>;
  podIsGone(name: string): Promise<boolean>;
  jobIsGone(name: string): Promise<boolean>;
  /** The namespace goes in the background; the cluster and the controller stay for the next test. */
  close(): Promise<void>;
}

export async function openScene(namespace: string): Promise<Scene> {
  const say = (line: string): void => console.error(line);
  const cluster = await openCluster("make test", say, NODES_MIN);
  await cluster.kubectl(["delete", "namespace", namespace, "--ignore-not-found"]);
  await cluster.kubectl(["create", "namespace", namespace]);
  await installController(cluster, say);
  const scriptImage = await cluster.loadImage(await image("fencedjob-base", say));
  const { api, close } = await adminApi(cluster);
  return sceneOf({ cluster, api, scriptImage }, namespace, close);
}

/** The same cluster, seen from another namespace, which has to exist. */
export function sceneIn(scene: Scene, namespace: string): Scene {
  return sceneOf(scene, namespace, () => {});
}

function sceneOf(
  { cluster, api, scriptImage }: Pick<Scene, "cluster" | "api" | "scriptImage">,
  namespace: string,
  close: () => void,
): Scene {
  const status = async (name: string): Promise<FencedJobStatus> =>
    readStatus((await api.get<RawObject>(RESOURCES.fencedJobs, { namespace, name })).status);
  const isGone = (resource: Resource, name: string): Promise<boolean> =>
    api.get(resource, { namespace, name }).then(
      () => false,
      (error) => isNotFound(error),
    );
  return {
    cluster,
    api,
    namespace,
    scriptImage,
    status,
    create: async (name, spec) => {
      const job = { apiVersion: "fencedjob.dev/v1alpha1", kind: "FencedJob", metadata: { name, namespace }, spec };
      await api.create(RESOURCES.fencedJobs, job);
    },
    condition: async (name, type) => (await status(name)).conditions.find((one) => one.type === type),
    owner: (name, generation, msMax) =>
      until(async () => {
        const { owner, fence } = await status(name);
        return owner?.generation === generation && fence === generation ? owner : null;
      }, msMax),
    says: (name, ...words) =>
      until(
        async () => {
          const said = await cluster.kubectl(["describe", "fencedjob", "-n", namespace, name]);
          const missing = words.find((one) => !one.test(said));
          if (missing) throw new Error(`no ${missing} in:\n${said}`);
          return said;
        },
        undefined,
        { pollMs: 500 },
      ),
    podIsGone: (name) => isGone(RESOURCES.pods, name),
    jobIsGone: (name) => isGone(RESOURCES.fencedJobs, name),
    close: async () => {
      close();
      await cluster.kubectl(["delete", "namespace", namespace, "--wait=false", "--ignore-not-found"]);
    },
  };
}

/** A container that runs `code` with Node.js. */
export function scriptContainer(image: string, code: string): Record<string, unknown> {
  return { name: "app", image, imagePullPolicy: "IfNotPresent", command: ["/nodejs/bin/node", "-e", code] };
}

/** For an application that does not end by itself. */
export const FOREVER = "setInterval(() => {}, 1e6)";
