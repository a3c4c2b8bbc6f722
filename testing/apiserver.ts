/**
 * A real kube-apiserver with its etcd, for tests: RBAC, admission policies, resource versions and watches as in production.
 * Does NOT run pods: there is no node, no scheduler, and no controller but those asked for by name.
 */
import { cpSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { apiServerPrograms, build, programPath } from "../e2e/cluster/build.ts";
import { run } from "../e2e/cluster/command.ts";
import {
  apiServer,
  apiUrl,
  type ControlPlane,
  controllerManager,
  controlPlaneIdentities,
  etcd,
  kubeconfig,
  pki,
} from "../e2e/cluster/controlplane.ts";
import { type Daemon, startDaemon, stopDaemon, waitReady } from "../e2e/cluster/daemon.ts";
import { issue, writeKubeconfig } from "../e2e/cluster/pki.ts";
import { answersOk } from "../e2e/cluster/probe.ts";
import { freePort } from "./postgres.ts";

export interface TestApiServer {
  readonly url: string;
  readonly caPem: string;
  /** Client certificate of a user in group system:masters. */
  readonly adminCertPem: string;
  readonly adminKeyPem: string;
  readonly kubeconfigPath: string;
  /** Standard output of kubectl as that user; throws with its message when it fails. */
  kubectl(args: readonly string[], input?: string): Promise<string>;
  /** A namespace in which pods are admitted: with its service account `default`, which no controller makes here. */
  createNamespace(name: string): Promise<void>;
  /** A token of the service account that is bound to the pod, as the kubelet mounts one into it. */
  podToken(namespace: string, account: string, pod: string): Promise<string>;
  /** Ends the API server alone, as a crash; etcd and the address stay. */
  stopApi(): Promise<void>;
  /** Starts it again on the same address, with everything it stored. */
  startApi(): Promise<void>;
  /** Copies etcd's data as it is now; both servers are stopped for it. */
  backUp(): Promise<void>;
  /** As whoever restores a cluster does it: etcd comes back with the data of the last `backUp`, versions and all. */
  restore(): Promise<void>;
  stop(): Promise<void>;
}

export interface TestApiServerOptions {
  /** Controllers of kube-controller-manager to run beside, by the name that its flag takes (`garbage-collector-controller`). */
  readonly controllers?: readonly string[];
}

const READY_MS_MAX = 120_000;

/** Builds the programs if the cache lacks them: minutes, once. Run `node e2e/cluster/build.ts` before, to see that happen. */
export async function startApiServer(options: TestApiServerOptions = {}): Promise<TestApiServer> {
  await build([...apiServerPrograms, ...(options.controllers ? ["kube-controller-manager" as const] : [])], (line) =>
    console.error(line),
  );
  const dir = mkdtempSync(join(tmpdir(), "fencedjob-api-"));
  const [apiPort, etcdPort, etcdPeerPort] = await Promise.all([freePort(), freePort(), freePort()]);
  const plane: ControlPlane = { dir, address: "127.0.0.1", apiPort, etcdPort, etcdPeerPort };
  const url = apiUrl(plane);
  await issue(pki(plane), controlPlaneIdentities(plane));
  for (const file of ["admin", "controller-manager"]) writeKubeconfig(kubeconfig(plane, file), pki(plane), file, url);
  const start = (daemon: Daemon): void => startDaemon(dir, daemon, { diesWithParent: true });
  const caPem = readFileSync(pki(plane, "ca.crt"), "utf8");
  const kubeconfigPath = kubeconfig(plane, "admin");
  const kubectl = (args: readonly string[], input?: string): Promise<string> =>
    run([programPath("kubectl"), `--kubeconfig=${kubeconfigPath}`, ...args], input === undefined ? {} : { input });

  const startApi = async (): Promise<void> => {
    start(apiServer(plane));
    await waitReady(dir, ["etcd", "kube-apiserver"], "API server ready", READY_MS_MAX, () =>
      answersOk(`${url}/readyz`, caPem),
    );
  };
  const whileStopped = async (change: () => void): Promise<void> => {
    await stopDaemon(dir, "kube-apiserver", 0);
    await stopDaemon(dir, "etcd");
    try {
      change();
    } finally {
      start(etcd(plane));
      await startApi();
    }
  };
  const data = join(dir, "etcd");
  const backup = join(dir, "etcd-backup");
  process.once("exit", () => rmSync(dir, { recursive: true, force: true }));
  start(etcd(plane));
  await startApi();
  if (options.controllers) start(controllerManager(plane, options.controllers));

  return {
    url,
    caPem,
    adminCertPem: readFileSync(pki(plane, "admin.crt"), "utf8"),
    adminKeyPem: readFileSync(pki(plane, "admin.key"), "utf8"),
    kubeconfigPath,
    kubectl,
    createNamespace: async (name) => {
      const account = { apiVersion: "v1", kind: "ServiceAccount", metadata: { name: "default", namespace: name } };
      const items = [{ apiVersion: "v1", kind: "Namespace", metadata: { name } }, account];
      await kubectl(["apply", "--server-side", "-f", "-"], JSON.stringify({ apiVersion: "v1", kind: "List", items }));
    },
    podToken: async (namespace, account, pod) => {
      const bound = ["--bound-object-kind", "Pod", "--bound-object-name", pod];
      return (await kubectl(["-n", namespace, "create", "token", account, ...bound])).trim();
    },
    startApi,
    backUp: () => whileStopped(() => cpSync(data, backup, { recursive: true, force: true })),
    restore: () =>
      whileStopped(() => {
        rmSync(data, { recursive: true });
        cpSync(backup, data, { recursive: true });
      }),
    stopApi: () => stopDaemon(dir, "kube-apiserver", 0),
    stop: async () => {
      // The data goes with them: no reason to wait for an orderly end.
      for (const name of ["kube-controller-manager", "kube-apiserver", "etcd"]) await stopDaemon(dir, name, 0);
      rmSync(dir, { recursive: true, force: true });
    },
  };
}
