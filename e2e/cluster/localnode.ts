/**
 * A whole Kubernetes cluster on one Linux machine without a container engine or a registry: the control plane on the host, each
 * node in a network namespace of its own. It stays up after the command that started it, until `down`.
 *
 * Does NOT survive a reboot, and does not restart what dies: `up` finds a half-dead cluster, takes it down and starts anew.
 */
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { freePort } from "../../testing/postgres.ts";
import { until } from "../../testing/until.ts";
import { apiServerPrograms, build, type ProgramName, programPath } from "./build.ts";
import { run, succeeds } from "./command.ts";
import {
  apiServer,
  apiUrl,
  type ControlPlane,
  controllerManager,
  controlPlaneIdentities,
  etcd,
  etcdDataDir,
  kubeconfig,
  pki,
  scheduler,
} from "./controlplane.ts";
import { type Daemon, isRunning, locked, startDaemon, stopDaemon, waitReady } from "./daemon.ts";
import { clusterDns } from "./dns.ts";
import {
  connect,
  disconnect,
  type KernelSettings,
  kernelSettings,
  makeCgroups,
  processesIn,
  processesWithArgument,
  removeCgroups,
  restoreKernelSettings,
  unmountBelow,
} from "./host.ts";
import { type Image, image } from "./images.ts";
import { configFiles, containerdSocket, HOST_ADDRESS, type Node, node, nodeDaemons, nodeIdentities } from "./node.ts";
import { checkout, localNodeDir } from "./paths.ts";
import { issue, writeKubeconfig } from "./pki.ts";
import { cniBinDir, installPackages, requireLocalNode } from "./prerequisites.ts";
import { answersOk } from "./probe.ts";

export interface LocalCluster {
  readonly kubeconfigPath: string;
  readonly nodes: readonly Node[];
}

/** Written first and removed last: what `down` must know to undo everything. */
interface State {
  readonly checkout: string;
  readonly nodeCount: number;
  readonly etcdPort: number;
  readonly etcdPeerPort: number;
  /** As they were before a kubelet changed them. */
  readonly kernelSettings: KernelSettings;
  /** Paths of the programs: another version has others. */
  readonly programs: readonly string[];
}

type Say = (line: string) => void;

const API_PORT = 6443;
/** Of each part's start, on a machine with much else to do: what ends meanwhile is reported at once. */
const START_MS_MAX = 300_000;
const nodePrograms = [
  ...apiServerPrograms,
  "kube-controller-manager",
  "kube-scheduler",
  "kubelet",
  "kube-proxy",
] as const satisfies readonly ProgramName[];
const planeNames = ["kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"];
/** Of device plugins, which nobody has here: the same for every kubelet, whatever its own directory. */
const KUBELET_SOCKET = "/var/lib/kubelet/device-plugins/kubelet.sock";
const nodeNames = ["kubelet", "kube-proxy", "containerd"];
const stateFile = join(localNodeDir, "state.json");

/** Starts the cluster, or finds it running with at least so many nodes. Throws when another checkout has it in another version. */
export async function up(say: Say, nodesMin = 1): Promise<LocalCluster> {
  await requireLocalNode("the local node");
  return alone(say, async () => {
    await installPackages(say);
    await build(nodePrograms, say);
    const found = readState();
    if (found && fits(found, nodesMin) && (await answers(found))) return describe(found);
    if (found && found.checkout !== checkout && healthy(found)) {
      throw new Error(
        `The local node of this machine was started from ${found.checkout} in another version or size, and there can be only one. Take it down there (node e2e/cluster/localnode.ts down), then run this again. Nothing was changed.`,
      );
    }
    if (found) {
      say("an earlier local node is half dead, or of another version or size: taking it down first");
      await takeDown(found, say);
    }
    return start(say, nodesMin);
  });
}

/** Takes everything down, whatever state it is in. Does nothing when there is no local node. */
export function down(say: Say): Promise<void> {
  return alone(say, async () => {
    const found = readState();
    if (found) await takeDown(found, say);
    else say("there is no local node");
  });
}

/** Ends the node's kubelet as a crash would; its pods go on. Whoever does so starts it again. */
export async function stopKubelet(nodeName: string): Promise<void> {
  await stopDaemon(nodeNamed(nodeName).it.dir, "kubelet", 0);
}

export async function startKubelet(nodeName: string): Promise<void> {
  const { plane, it } = nodeNamed(nodeName);
  for (const daemon of nodeDaemons(plane, it)) if (daemon.name === "kubelet") await startNodeDaemon(it, daemon);
}

/** Of two kubelets that start at once one may find their socket taken, and end: the next daemon is for when it listens. */
async function startNodeDaemon(it: Node, daemon: Daemon): Promise<void> {
  if (daemon.name !== "kubelet") return startDaemon(it.dir, daemon);
  rmSync(KUBELET_SOCKET, { force: true });
  startDaemon(it.dir, daemon);
  const listens = async (): Promise<boolean> => existsSync(KUBELET_SOCKET);
  await waitReady(it.dir, [daemon.name], `the kubelet of ${it.name} listens`, START_MS_MAX, listens);
}

/**
 * `act` has etcd's data directory for itself. All that talks to the API server begins anew after it, as after a restore it has to;
 * also after an `act` that has failed: whoever needs the cluster next had nothing to do with it.
 */
export async function whileEtcdStops(act: (dataDir: string) => void): Promise<void> {
  const state = readState();
  if (!state) throw new Error("there is no local node");
  const plane = planeOf(state);
  const { nodes } = describe(state);
  try {
    for (const { name } of nodes) await stopKubelet(name);
    for (const name of planeNames) await stopDaemon(plane.dir, name, 0);
    act(etcdDataDir(plane));
  } finally {
    await startControlPlane(plane);
    for (const { name } of nodes) await startKubelet(name);
  }
}

function nodeNamed(name: string): { plane: ControlPlane; it: Node } {
  const state = readState();
  const it = state && describe(state).nodes.find((node) => node.name === name);
  if (!state || !it) throw new Error(`the local cluster has no node ${name}`);
  return { plane: planeOf(state), it };
}

/** Whether there is a local node, healthy or not. */
export function isUp(): boolean {
  return readState() !== undefined;
}

const alone = <T>(say: Say, act: () => Promise<T>): Promise<T> =>
  locked(dirname(localNodeDir), "fencedjob-node-lock", say, act);

/** Makes the image known to every node. */
export async function importImage({ nodes }: LocalCluster, { archive, ref }: Image): Promise<void> {
  for (const it of nodes) {
    const ctr = ["ctr", `--address=${containerdSocket(it)}`, "--namespace=k8s.io", "images"];
    if ((await run([...ctr, "list", "-q", `name==${ref}`])).trim() === "") await run([...ctr, "import", archive]);
  }
}

async function start(say: Say, nodeCount: number): Promise<LocalCluster> {
  const cniDir = cniBinDir();
  if (cniDir === undefined) throw new Error("the network plugins are not installed"); // installPackages has seen to it
  const images = { pause: await image("fencedjob-pause", say), dns: await image("fencedjob-coredns", say) };
  const since = stopwatch();
  mkdirSync(localNodeDir, { recursive: true, mode: 0o711 });
  const [etcdPort, etcdPeerPort] = await Promise.all([freePort(), freePort()]);
  const state: State = {
    checkout,
    nodeCount,
    etcdPort,
    etcdPeerPort,
    kernelSettings: kernelSettings(),
    programs: nodePrograms.map(programPath),
  };
  writeFileSync(stateFile, JSON.stringify(state, null, 2));
  const plane = planeOf(state);
  const cluster = describe(state);

  await Promise.all([
    connect(cluster.nodes),
    issue(pki(plane), [...controlPlaneIdentities(plane), ...cluster.nodes.flatMap(nodeIdentities)]),
  ]);
  for (const file of [
    "admin",
    "controller-manager",
    "scheduler",
    "kube-proxy",
    ...cluster.nodes.map(({ name }) => name),
  ]) {
    writeKubeconfig(kubeconfig(plane, file), pki(plane), file, apiUrl(plane));
  }
  await startControlPlane(plane);
  say(`control plane ready at ${apiUrl(plane)} after ${since()}`);

  makeCgroups(cluster.nodes);
  for (const it of cluster.nodes) await startNode(plane, it, cniDir, images.pause.ref);
  await importImage(cluster, images.pause);
  await importImage(cluster, images.dns);
  await nodesReady(plane, cluster);
  say(`${nodeCount === 1 ? "node" : `${nodeCount} nodes`} ready after ${since()}`);
  await apply(plane, clusterDns(images.dns.ref));
  await kubectl(plane, ["rollout", "status", "deployment/coredns", "-n", "kube-system", `--timeout=${START_MS_MAX}ms`]);
  say(`cluster DNS ready after ${since()}`);
  return cluster;
}

async function startControlPlane(plane: ControlPlane): Promise<void> {
  startDaemon(plane.dir, etcd(plane));
  startDaemon(plane.dir, apiServer(plane));
  await waitReady(plane.dir, ["etcd", "kube-apiserver"], "API server ready", START_MS_MAX, () => apiAnswers(plane));
  startDaemon(plane.dir, controllerManager(plane));
  startDaemon(plane.dir, scheduler(plane));
}

async function startNode(plane: ControlPlane, it: Node, cniDir: string, pauseImage: string): Promise<void> {
  for (const [path, content] of Object.entries(configFiles(plane, it, cniDir, pauseImage))) {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, content);
  }
  const [containerd, ...rest] = nodeDaemons(plane, it);
  if (containerd === undefined) throw new Error("no containerd"); // nodeDaemons names it first
  startDaemon(it.dir, containerd);
  const answers = (): Promise<boolean> =>
    succeeds(["ctr", `--address=${containerdSocket(it)}`, "version"], { timeoutMs: 5_000 });
  await waitReady(it.dir, ["containerd"], "containerd answers", START_MS_MAX, answers);
  for (const daemon of rest) await startNodeDaemon(it, daemon);
}

async function nodesReady(plane: ControlPlane, { nodes }: LocalCluster): Promise<void> {
  const ready = 'jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{"\\n"}{end}';
  const check = async (): Promise<boolean> => {
    const statuses = (await kubectl(plane, ["get", "nodes", "-o", ready])).split("\n");
    return statuses.filter((status) => status === "True").length === nodes.length;
  };
  for (const it of nodes) await waitReady(it.dir, nodeNames, `${it.name} ready`, START_MS_MAX, check);
}

async function takeDown(state: State, say: Say): Promise<void> {
  const since = stopwatch();
  const plane = planeOf(state);
  const { nodes } = describe(state);
  // In this order: a kubelet would start its containers again, a containerd would leave its mounts.
  for (const it of nodes) {
    await stopDaemon(it.dir, "kubelet");
    await stopDaemon(it.dir, "kube-proxy");
    if (isRunning(it.dir, "containerd")) await endContainers(it);
    await stopDaemon(it.dir, "containerd");
  }
  await sweep(nodes);
  say(`containers ended after ${since()}`);
  for (const name of planeNames) await stopDaemon(plane.dir, name);
  await unmountBelow(localNodeDir);
  await disconnect(nodes);
  await until(() => tries(() => removeCgroups(nodes)), undefined, { what: "cgroups of the nodes are free" });
  restoreKernelSettings(state.kernelSettings);
  rmSync(localNodeDir, { recursive: true, force: true });
  say(`local node gone after ${since()}`);
}

/** In an orderly way, so that each shim removes its socket; what fails here (a shim just ending) is left to `sweep`. */
async function endContainers(it: Node): Promise<void> {
  const tasks = ["ctr", `--address=${containerdSocket(it)}`, "--namespace=k8s.io", "tasks"];
  const ids = (await run([...tasks, "list", "-q"])).split("\n").filter(Boolean);
  await Promise.all(ids.map((id) => succeeds([...tasks, "delete", "--force", id], { timeoutMs: 10_000 })));
}

/** What a containerd that died left behind: processes of containers, and their shims. */
async function sweep(nodes: readonly Node[]): Promise<void> {
  const left = (): readonly number[] => [
    ...processesIn(nodes),
    ...nodes.flatMap((it) => processesWithArgument(containerdSocket(it))),
  ];
  const ended = (): boolean => {
    for (const pid of left()) tries(() => process.kill(pid, "SIGKILL"));
    return left().length === 0;
  };
  await until(ended, undefined, { what: "the processes of the containers end" });
}

function tries(act: () => void): boolean {
  try {
    act();
    return true;
  } catch {
    return false;
  }
}

function healthy(state: State): boolean {
  const { nodes } = describe(state);
  return (
    planeNames.every((name) => isRunning(localNodeDir, name)) &&
    nodes.every(({ dir }) => nodeNames.every((name) => isRunning(dir, name)))
  );
}

function fits(state: State, nodesMin: number): boolean {
  const sameVersion = state.programs.join() === nodePrograms.map(programPath).join();
  return sameVersion && state.nodeCount >= nodesMin && healthy(state);
}

/** A control plane that runs and answers nobody is dead, too; one that is only slow is not. */
function answers(state: State): Promise<boolean> {
  const plane = planeOf(state);
  return until(() => apiAnswers(plane)).catch(() => false);
}

const apiAnswers = (plane: ControlPlane): Promise<boolean> =>
  answersOk(`${apiUrl(plane)}/readyz`, readFileSync(pki(plane, "ca.crt"), "utf8"));

function describe(state: State): LocalCluster {
  const nodes = Array.from({ length: state.nodeCount }, (_, index) => node(localNodeDir, index + 1));
  return { kubeconfigPath: kubeconfig(planeOf(state), "admin"), nodes };
}

function planeOf({ etcdPort, etcdPeerPort }: State): ControlPlane {
  return { dir: localNodeDir, address: HOST_ADDRESS, apiPort: API_PORT, etcdPort, etcdPeerPort };
}

function readState(): State | undefined {
  return existsSync(stateFile) ? (JSON.parse(readFileSync(stateFile, "utf8")) as State) : undefined;
}

function kubectl(plane: ControlPlane, args: readonly string[], input?: string): Promise<string> {
  return run(
    [programPath("kubectl"), `--kubeconfig=${kubeconfig(plane, "admin")}`, ...args],
    input === undefined ? {} : { input },
  );
}

async function apply(plane: ControlPlane, items: readonly object[]): Promise<void> {
  await kubectl(
    plane,
    ["apply", "--server-side", "-f", "-"],
    JSON.stringify({ apiVersion: "v1", kind: "List", items }),
  );
}

function stopwatch(): () => string {
  const startedMs = performance.now();
  return () => `${((performance.now() - startedMs) / 1000).toFixed(1)} s`;
}

if (import.meta.main) {
  const [command, count] = process.argv.slice(2);
  try {
    if (command === "up") {
      const { kubeconfigPath } = await up(console.error, count === undefined ? undefined : Number(count));
      console.log(`export KUBECONFIG=${kubeconfigPath} PATH=${dirname(programPath("kubectl"))}:$PATH`);
    } else if (command === "down") await down(console.error);
    else throw new Error("usage: node e2e/cluster/localnode.ts up [number of nodes] | down");
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exitCode = 1;
  }
}
