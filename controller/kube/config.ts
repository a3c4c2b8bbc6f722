/**
 * Where the API server is and how we prove who we are.
 *
 * In a cluster by ourselves: address from the environment, token and CA from the service account's files, read anew for
 * each request because the kubelet rotates them. Elsewhere from a kubeconfig, through the Kubernetes client library, which
 * is loaded only then: it costs 80 MiB and half a second.
 */
import { readFile } from "node:fs/promises";
import type { Agent } from "node:http";
import type { RequestOptions } from "node:https";
import path from "node:path";
import type { Credentials } from "../../platform/http.ts";

export interface KubeConfig {
  baseUrl: string;
  credentials: () => Promise<Credentials>;
  /** The pod's own namespace, or that of the kubeconfig's context. */
  namespace: string;
  /** For people: where this came from. */
  source: string;
}

export interface ConfigSource {
  env: Readonly<Record<string, string | undefined>>;
  /** Before KUBECONFIG and the pod's own account. */
  kubeconfigPath?: string;
  context?: string;
}

export const SERVICE_ACCOUNT_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount";

/** The context that the client library makes up where it finds no kubeconfig: a server on localhost that nobody has named. */
const OF_NO_FILE = "loaded-context";

/** Throws an error that says what is missing when nothing names an API server. */
export async function loadKubeConfig(source: ConfigSource): Promise<KubeConfig> {
  const { env } = source;
  const wantsFile = source.kubeconfigPath ?? source.context ?? (env.KUBECONFIG || undefined);
  if (wantsFile === undefined && env.KUBERNETES_SERVICE_HOST) return inClusterConfig(env, SERVICE_ACCOUNT_DIRECTORY);
  return fromKubeconfig(source);
}

/** The service account mounted in `directory`. */
export async function inClusterConfig(env: ConfigSource["env"], directory: string): Promise<KubeConfig> {
  const host = env.KUBERNETES_SERVICE_HOST ?? "";
  const port = env.KUBERNETES_SERVICE_PORT ?? "443";
  const read = async (name: string): Promise<string> => (await readFile(path.join(directory, name), "utf8")).trim();
  return {
    baseUrl: `https://${host.includes(":") ? `[${host}]` : host}:${port}`,
    credentials: async () => {
      const [token, ca] = await Promise.all([read("token"), read("ca.crt")]);
      return { headers: { authorization: `Bearer ${token}` }, tls: { ca } };
    },
    namespace: await read("namespace"),
    source: `service account of this pod (${directory})`,
  };
}

async function fromKubeconfig({ env, kubeconfigPath, context }: ConfigSource): Promise<KubeConfig> {
  const { KubeConfig } = await import("@kubernetes/client-node");
  const config = new KubeConfig();
  const files = kubeconfigPath ?? (env.KUBECONFIG || "~/.kube/config");
  try {
    if (kubeconfigPath !== undefined) config.loadFromFile(kubeconfigPath);
    else config.loadFromDefault({}, false);
  } catch (error) {
    throw new Error(`No API server: the kubeconfig (${files}) cannot be read: ${(error as Error).message}`);
  }
  if (context !== undefined) config.setCurrentContext(context);
  if (config.getCurrentContext() === OF_NO_FILE) {
    throw new Error(
      `No API server: there is no kubeconfig (${files}), and this is no pod of a cluster. Set KUBECONFIG.`,
    );
  }
  const cluster = config.getCurrentCluster();
  if (!cluster) {
    throw new Error(
      `No API server: the kubeconfig (${files}) has no context ${context ?? config.getCurrentContext() ?? ""}, ` +
        "and this is no pod of a cluster. Set KUBECONFIG, or its current context.",
    );
  }
  let proxy: Agent | undefined;
  return {
    baseUrl: cluster.server,
    credentials: async () => {
      const options: RequestOptions = {};
      await config.applyToHTTPSOptions(options);
      const { ca, cert, key, pfx, passphrase, servername, rejectUnauthorized, auth } = options;
      const headers: Record<string, string> = {};
      for (const [name, value] of Object.entries(options.headers ?? {})) headers[name] = String(value);
      if (auth) headers.authorization = `Basic ${Buffer.from(auth).toString("base64")}`;
      if (cluster.proxyUrl) proxy ??= options.agent as Agent;
      return {
        headers,
        tls: definedOf({ ca, cert, key, pfx, passphrase, servername, rejectUnauthorized }),
        ...(proxy && { agent: proxy }),
      };
    },
    namespace: config.getContextObject(config.getCurrentContext())?.namespace ?? "default",
    source: `kubeconfig ${files}, context ${config.getCurrentContext()}`,
  };
}

type Defined<T> = { [K in keyof T]?: Exclude<T[K], undefined> };

function definedOf<T extends object>(object: T): Defined<T> {
  return Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined)) as Defined<T>;
}
