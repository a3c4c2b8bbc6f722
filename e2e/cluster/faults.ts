/** Failures of the local cluster's machines, network and processes, each undone by what it returns. Linux and root only. */
import { cpSync, existsSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { until } from "../../testing/until.ts";
import { run, succeeds } from "./command.ts";
import { memoryOf, processesWithArgument } from "./host.ts";
import { startKubelet, stopKubelet, whileEtcdStops } from "./localnode.ts";
import { HOST_ADDRESS, node } from "./node.ts";
import { localNodeDir } from "./paths.ts";

type Undo = () => Promise<void>;

const MEMORY_LEFT_BYTES = 2 ** 22;

/** Nothing reaches the node or leaves it any more; what runs there goes on. */
export async function cutNode(nodeName: string): Promise<Undo> {
  const cable = netnsOf(nodeName);
  await run(["ip", "link", "set", cable, "down"]);
  return async () => {
    await run(["ip", "link", "set", cable, "up"]);
  };
}

/** The node's kubelet dies; its pods go on, and nobody is told of what becomes of them. */
export async function killKubelet(nodeName: string): Promise<Undo> {
  await stopKubelet(nodeName);
  return async () => startKubelet(nodeName);
}

/** The pod's packets to the API server are lost, also those of open connections; the database is still reached. */
export function cutFromApi(pod: { readonly node: string; readonly ip: string }): Promise<Undo> {
  return loseToApi(pod.node, [["FORWARD", "-s", pod.ip]]);
}

/** Those of the node's kubelet and of all its pods; the database is still reached. */
export function cutNodeFromApi(nodeName: string): Promise<Undo> {
  return loseToApi(nodeName, [["FORWARD"], ["OUTPUT"]]);
}

async function loseToApi(nodeName: string, sources: readonly string[][]): Promise<Undo> {
  const enter = ["nsenter", `--net=/var/run/netns/${netnsOf(nodeName)}`];
  const toApi = ["-d", HOST_ADDRESS, "-p", "tcp", "--dport", "6443", "-j", "DROP"];
  const each = async (action: string): Promise<void> => {
    for (const [chain = "", ...from] of sources)
      await run([...enter, "iptables", "-w", action, chain, ...from, ...toApi]);
  };
  await each("-I");
  return () => each("-D");
}

/** All of it, etcd too, and the kubelets; nothing that was stored is lost. */
export async function restartControlPlane(): Promise<void> {
  await whileEtcdStops(() => {});
}

/** Keeps a copy of etcd's data for `restoreEtcd`. */
export async function backUpEtcd(): Promise<void> {
  await whileEtcdStops((data) => cpSync(data, `${data}-copy`, { recursive: true, force: true }));
}

/** The cluster is as it was at the last `backUpEtcd`, versions and all; what runs on its nodes is not. */
export async function restoreEtcd(): Promise<void> {
  await whileEtcdStops((data) => {
    rmSync(data, { recursive: true });
    renameSync(`${data}-copy`, data);
  });
}

/** Kills the processes of the pod that have `argument` on their command line, without warning. */
export function killInPod(podUid: string, argument: string): void {
  for (const pid of inPod(podUid, argument)) process.kill(pid, "SIGKILL");
}

/**
 * The container of the pod's process with `argument` has hardly more memory than it uses, and a process beside it wants more: the kernel
 * kills the one that uses most, in version 1 of cgroups too, where a limit below what is used is not taken.
 */
export async function exhaustMemory(podUid: string, argument: string): Promise<void> {
  const [pid] = inPod(podUid, argument);
  const { used, limit, processes } = memoryOf(pid);
  writeFileSync(limit, String(Number(readFileSync(used, "utf8")) + MEMORY_LEFT_BYTES));
  const wantsMore = `echo $$ > ${processes}; head -c ${8 * MEMORY_LEFT_BYTES} /dev/zero | tail -n 1 > /dev/null`;
  await succeeds(["sh", "-c", wantsMore]);
  await until(() => !existsSync(`/proc/${pid}`), undefined, { what: `the kernel kills process ${pid} for memory` });
}

function inPod(podUid: string, argument: string): [number, ...number[]] {
  const [one, ...more] = processesWithArgument(argument).filter((pid) => cgroupOf(pid).includes(podUid));
  if (one === undefined) throw new Error(`no process with "${argument}" in pod ${podUid}`);
  return [one, ...more];
}

function cgroupOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cgroup`, "utf8");
  } catch {
    return ""; // it has ended
  }
}

const netnsOf = (nodeName: string): string => node(localNodeDir, Number(nodeName.slice("node-".length))).netns;
