/** A cluster for the demo and for tests, whatever this machine offers: one that is there, kind, or the local node. */
import { rmSync } from "node:fs";
import { join } from "node:path";
import { build, programPath } from "./build.ts";
import { run } from "./command.ts";
import { locked } from "./daemon.ts";
import { FREEZER_NAMESPACE, type Freezer, startFreezer } from "./freezer.ts";
import { type Image, image } from "./images.ts";
import { importImage, down as localDown, up as localUp } from "./localnode.ts";
import { HOST_ADDRESS } from "./node.ts";
import { cacheDir } from "./paths.ts";
import { chooseProvider, onPath } from "./prerequisites.ts";

export interface Cluster {
  /** For people: `local node (no Docker here): Kubernetes v1.36.3`. */
  readonly description: string;
  readonly kubeconfigPath: string;
  /** Programs that fit the cluster, for a person's shell. */
  readonly tools: { readonly kubectl: string; readonly helm: string };
  /** Standard output; throws CommandError. */
  kubectl(args: readonly string[], input?: string): Promise<string>;
  helm(args: readonly string[]): Promise<string>;
  /** Makes the image known to every node; returns the name that pods use for it. */
  loadImage(image: Image): Promise<string>;
  /** Address by which pods reach servers of this machine; undefined where they can not. */
  readonly hostAddress: string | undefined;
  freeze(podUid: string): Promise<void>;
  thaw(podUid: string): Promise<void>;
}

type Say = (line: string) => void;

/** What one provider does in its own way. */
interface Provider {
  readonly description: string;
  readonly kubeconfigPath: string;
  readonly tools: Cluster["tools"];
  readonly hostAddress: string | undefined;
  loadImage(image: Image): Promise<string>;
}

const KIND_CLUSTER = "fencedjob";

/**
 * `what` is named in the message about a missing prerequisite: `make demo`. Throws MissingPrerequisites before any change.
 * `nodesMin` is for the local node; another cluster has those that it has.
 */
export async function openCluster(what: string, say: Say, nodesMin = 1): Promise<Cluster> {
  const kind = await chooseProvider(what);
  const provider = kind === "local" ? await local(say, nodesMin) : await { existing, kind: kindProvider }[kind](say);
  const kubectl = (args: readonly string[], input?: string): Promise<string> =>
    run(
      [provider.tools.kubectl, `--kubeconfig=${provider.kubeconfigPath}`, ...args],
      input === undefined ? {} : { input },
    );
  const freezer = await startFreezer(kubectl, await provider.loadImage(await image("fencedjob-base", say)));
  return withFreezer(provider, kubectl, freezer);
}

/** Removes what `openCluster` started. Of an existing cluster only `namespaces` and the Helm release in one of them go. */
export async function closeCluster(
  release: { name: string; namespace: string },
  namespaces: readonly string[],
  say: Say,
): Promise<void> {
  const kind = await chooseProvider("make down");
  if (kind === "local") return localDown(say);
  if (kind === "kind") {
    await run([
      await tool("kind", say),
      "delete",
      "cluster",
      `--name=${KIND_CLUSTER}`,
      `--kubeconfig=${kindKubeconfig()}`,
    ]);
    rmSync(kindKubeconfig(), { force: true });
    return;
  }
  const { tools, kubeconfigPath } = await existing(say);
  const at = `--kubeconfig=${kubeconfigPath}`;
  say(`removing release ${release.name} and namespaces ${namespaces.join(", ")} from the existing cluster`);
  // The jobs first: their pods end while a controller is there to count them out.
  await run([tools.kubectl, at, "delete", "namespace", ...namespaces, "--ignore-not-found", "--timeout=180s"]);
  await run([tools.helm, at, "uninstall", release.name, "-n", release.namespace, "--ignore-not-found", "--wait"]);
  await run([
    tools.kubectl,
    at,
    "delete",
    "namespace",
    release.namespace,
    FREEZER_NAMESPACE,
    "--ignore-not-found",
    "--timeout=180s",
  ]);
}

function kindKubeconfig(): string {
  return join(cacheDir(), "kind.kubeconfig");
}

function withFreezer(provider: Provider, kubectl: Cluster["kubectl"], freezer: Freezer): Cluster {
  return {
    description: provider.description,
    kubeconfigPath: provider.kubeconfigPath,
    tools: provider.tools,
    hostAddress: provider.hostAddress,
    kubectl,
    helm: (args) => run([provider.tools.helm, `--kubeconfig=${provider.kubeconfigPath}`, ...args]),
    loadImage: (it) => provider.loadImage(it),
    freeze: (podUid) => freezer.freeze(podUid),
    thaw: (podUid) => freezer.thaw(podUid),
  };
}

async function local(say: Say, nodesMin: number): Promise<Provider> {
  await build(["kubectl", "helm"], say);
  const cluster = await localUp(say, nodesMin);
  return {
    description: "local node (no Docker here)",
    kubeconfigPath: cluster.kubeconfigPath,
    tools: { kubectl: programPath("kubectl"), helm: programPath("helm") },
    hostAddress: HOST_ADDRESS,
    loadImage: async (it) => {
      await importImage(cluster, it);
      return it.ref;
    },
  };
}

async function kindProvider(say: Say): Promise<Provider> {
  const kubeconfigPath = kindKubeconfig();
  const kind = await tool("kind", say);
  const at = [`--name=${KIND_CLUSTER}`];
  await locked(cacheDir(), "kind", say, async () => {
    const clusters = (await run([kind, "get", "clusters"])).split("\n");
    if (clusters.includes(KIND_CLUSTER))
      await run([kind, "export", "kubeconfig", ...at, `--kubeconfig=${kubeconfigPath}`]);
    else await run([kind, "create", "cluster", ...at, `--kubeconfig=${kubeconfigPath}`, "--wait=120s"]);
  });
  return {
    description: `kind cluster "${KIND_CLUSTER}"`,
    kubeconfigPath,
    tools: { kubectl: await tool("kubectl", say), helm: await tool("helm", say) },
    hostAddress: undefined,
    loadImage: async ({ archive, ref }) => {
      await run([kind, "load", "image-archive", archive, ...at]);
      return ref;
    },
  };
}

async function existing(say: Say): Promise<Provider> {
  const kubeconfigPath = process.env.KUBECONFIG ?? ""; // chooseProvider has seen it
  return {
    description: `existing cluster of ${kubeconfigPath}`,
    kubeconfigPath,
    tools: { kubectl: await tool("kubectl", say), helm: await tool("helm", say) },
    hostAddress: undefined,
    loadImage: pushImage,
  };
}

/** To the registry that FENCEDJOB_REGISTRY names, from which the nodes of an existing cluster pull. */
async function pushImage({ archive, ref }: Image): Promise<string> {
  const registry = process.env.FENCEDJOB_REGISTRY;
  if (!registry) {
    throw new Error(
      "The nodes of an existing cluster pull their images: set FENCEDJOB_REGISTRY to a registry (host/path) that this machine can push to and they can pull from, and run this again.",
    );
  }
  const pushed = ref.replace(/^localhost\//, `${registry}/`);
  await run(["docker", "load", "-q", "-i", archive]);
  await run(["docker", "tag", ref, pushed]);
  await run(["docker", "push", "-q", pushed]);
  return pushed;
}

/** The machine's own, else built from its Go module. */
async function tool(name: "kind" | "kubectl" | "helm", say: Say): Promise<string> {
  if (onPath(name)) return name;
  await build([name], say);
  return programPath(name);
}
