/** Failures of the local cluster's machines, network and processes, each undone by what it returns. Linux and root only. */
import { readFileSync } from "node:fs";
import { run } from "./command.ts";
import { processesWithArgument } from "./host.ts";
import { startKubelet, stopKubelet } from "./localnode.ts";
import { HOST_ADDRESS, node } from "./node.ts";
import { localNodeDir } from "./paths.ts";

type Undo = () => Promise<void>;

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
export async function cutFromApi(pod: { readonly node: string; readonly ip: string }): Promise<Undo> {
  const rule = ["FORWARD", "-s", pod.ip, "-d", HOST_ADDRESS, "-p", "tcp", "--dport", "6443", "-j", "DROP"];
  const iptables = (action: string): Promise<string> =>
    run(["nsenter", `--net=/var/run/netns/${netnsOf(pod.node)}`, "iptables", "-w", action, ...rule]);
  await iptables("-I");
  return async () => {
    await iptables("-D");
  };
}

/** Kills the processes of the pod that have `argument` on their command line, without warning. */
export function killInPod(podUid: string, argument: string): void {
  const inPod = processesWithArgument(argument).filter((pid) => cgroupOf(pid).includes(podUid));
  if (inPod.length === 0) throw new Error(`no process with "${argument}" in pod ${podUid}`);
  for (const pid of inPod) process.kill(pid, "SIGKILL");
}

function cgroupOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cgroup`, "utf8");
  } catch {
    return ""; // it has ended
  }
}

const netnsOf = (nodeName: string): string => node(localNodeDir, Number(nodeName.slice("node-".length))).netns;
