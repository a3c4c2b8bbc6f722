/** What the local node takes from the machine, and gives back: network namespaces, a bridge, cgroups, kernel settings, mounts. */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { run, succeeds } from "./command.ts";
import { SERVICE_CIDR } from "./controlplane.ts";
import { BRIDGE, HOST_ADDRESS, NODE_NETWORK_BITS, type Node } from "./node.ts";

/** A bridge on the host, and each node in a network namespace with a cable to it: all its rules, links and routes end with the namespace. */
export async function connect(nodes: readonly Node[]): Promise<void> {
  if (!(await succeeds(["ip", "link", "show", BRIDGE]))) await run(["ip", "link", "add", BRIDGE, "type", "bridge"]);
  await run(["ip", "address", "replace", `${HOST_ADDRESS}/${NODE_NETWORK_BITS}`, "dev", BRIDGE]);
  await run(["ip", "link", "set", BRIDGE, "up"]);
  for (const node of nodes) await connectOne(node);
  for (const node of nodes) {
    for (const other of nodes) {
      if (other !== node) await run(["ip", "-n", node.netns, "route", "replace", other.podCidr, "via", other.address]);
    }
  }
  const [first] = nodes;
  // Services from the host as well: the first node's kube-proxy translates their addresses.
  if (first) await run(["ip", "route", "replace", SERVICE_CIDR, "via", first.address]);
}

async function connectOne({ netns, address, podCidr }: Node): Promise<void> {
  if (!existsSync(`/var/run/netns/${netns}`)) await run(["ip", "netns", "add", netns]);
  if (!(await succeeds(["ip", "link", "show", netns]))) {
    await run(["ip", "link", "add", netns, "type", "veth", "peer", "name", "eth0", "netns", netns]);
  }
  await run(["ip", "link", "set", netns, "master", BRIDGE, "up"]);
  const inside = ["ip", "-n", netns];
  await run([...inside, "link", "set", "lo", "up"]);
  await run([...inside, "address", "replace", `${address}/${NODE_NETWORK_BITS}`, "dev", "eth0"]);
  await run([...inside, "link", "set", "eth0", "up"]);
  await run([...inside, "route", "replace", "default", "via", HOST_ADDRESS]);
  await run(["nsenter", `--net=/var/run/netns/${netns}`, "sysctl", "-qw", "net.ipv4.ip_forward=1"]);
  await run(["ip", "route", "replace", podCidr, "via", address]);
}

export async function disconnect(nodes: readonly Node[]): Promise<void> {
  for (const { netns } of nodes) {
    if (await succeeds(["ip", "link", "show", netns])) await run(["ip", "link", "delete", netns]);
    if (existsSync(`/var/run/netns/${netns}`)) await run(["ip", "netns", "delete", netns]);
  }
  if (await succeeds(["ip", "link", "show", BRIDGE])) await run(["ip", "link", "delete", BRIDGE]);
}

/** The kubelet wants its root cgroup to be there, in every hierarchy of version 1 and with all controllers in version 2. */
export function makeCgroups(nodes: readonly Node[]): void {
  for (const { mount, version } of hierarchies()) for (const { cgroup } of nodes) makeCgroup(mount, cgroup, version);
}

function makeCgroup(mount: string, cgroup: string, version: 1 | 2): void {
  let dir = mount;
  for (const name of cgroup.split("/").filter(Boolean)) {
    const parent = dir;
    if (version === 2) enableControllers(parent);
    dir = join(parent, name);
    mkdirSync(dir, { recursive: true });
    if (version === 1) copyCpuset(parent, dir);
  }
  if (version === 2) enableControllers(dir);
}

/** In version 1 a new cpuset is empty, and takes no process until it is filled. */
function copyCpuset(from: string, to: string): void {
  for (const file of ["cpuset.cpus", "cpuset.mems"]) {
    if (existsSync(join(to, file))) writeFileSync(join(to, file), readFileSync(join(from, file)));
  }
}

/** Removes the cgroups of the nodes; whatever still runs in them keeps its cgroup, and this throws. */
export function removeCgroups(nodes: readonly Node[]): void {
  for (const { mount } of hierarchies()) {
    for (const { cgroup } of nodes) {
      removeCgroup(join(mount, cgroup));
      const parent = dirname(join(mount, cgroup));
      if (existsSync(parent) && subgroups(parent).length === 0) rmdirSync(parent);
    }
  }
}

/** Processes of the nodes' containers. */
export function processesIn(nodes: readonly Node[]): readonly number[] {
  const found = new Set<number>();
  const walk = (dir: string): void => {
    if (!existsSync(dir)) return;
    for (const pid of readFileSync(join(dir, "cgroup.procs"), "utf8").split("\n").filter(Boolean))
      found.add(Number(pid));
    for (const sub of subgroups(dir)) walk(sub);
  };
  for (const { mount } of hierarchies()) for (const { cgroup } of nodes) walk(join(mount, cgroup));
  return [...found];
}

/** Processes that were started with `argument` on their command line, such as the shims of one containerd. */
export function processesWithArgument(argument: string): readonly number[] {
  const pids = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  return pids.map(Number).filter((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0").includes(argument);
    } catch {
      return false; // it has ended
    }
  });
}

/** Files of the process's cgroup: the memory that it uses, how much it may use, and which processes are in it. */
export function memoryOf(pid: number): { readonly used: string; readonly limit: string; readonly processes: string } {
  const groups = readFileSync(`/proc/${pid}/cgroup`, "utf8").trim().split("\n");
  const inVersion1 = groups.find((line) => /^\d+:([^:]*,)?memory(,[^:]*)?:/.test(line));
  const path = (inVersion1 ?? groups[0] ?? "").split(":")[2] ?? "";
  const dir = join("/sys/fs/cgroup", inVersion1 ? "memory" : "", path);
  const used = join(dir, inVersion1 ? "memory.usage_in_bytes" : "memory.current");
  const limit = join(dir, inVersion1 ? "memory.limit_in_bytes" : "memory.max");
  return { used, limit, processes: join(dir, "cgroup.procs") };
}

function removeCgroup(dir: string): void {
  if (!existsSync(dir)) return;
  for (const sub of subgroups(dir)) removeCgroup(sub);
  rmdirSync(dir);
}

function subgroups(dir: string): string[] {
  return readdirSync(dir, { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map((entry) => join(dir, entry.name));
}

function enableControllers(dir: string): void {
  const controllers = readFileSync(join(dir, "cgroup.controllers"), "utf8").trim().split(" ").filter(Boolean);
  writeFileSync(join(dir, "cgroup.subtree_control"), controllers.map((name) => `+${name}`).join(" "));
}

function hierarchies(): readonly { mount: string; version: 1 | 2 }[] {
  const all = mounts().filter(({ type }) => type === "cgroup" || type === "cgroup2");
  const only2 = all.every(({ type }) => type === "cgroup2");
  // Beside version 1, version 2 ("unified") has no controllers: it is treated as one more plain hierarchy.
  return all.map(({ path }) => ({ mount: path, version: only2 ? 2 : 1 }));
}

/** Unmounts everything at or below `dir`, the innermost first. */
export async function unmountBelow(dir: string): Promise<void> {
  const below = mounts().filter(({ path }) => path === dir || path.startsWith(`${dir}/`));
  for (const { path } of below.reverse()) await run(["umount", path]);
}

function mounts(): readonly { path: string; type: string }[] {
  return readFileSync("/proc/self/mounts", "utf8")
    .split("\n")
    .map((line) => line.split(" "))
    .map(([, path = "", type = ""]) => ({ path: path.replaceAll("\\040", " "), type }));
}

/** Settings of the kernel that a kubelet changes when it starts. */
const KUBELET_SETTINGS = [
  "vm/overcommit_memory",
  "vm/panic_on_oom",
  "kernel/panic",
  "kernel/panic_on_oops",
  "kernel/keys/root_maxkeys",
  "kernel/keys/root_maxbytes",
];

export type KernelSettings = Readonly<Record<string, string>>;

export function kernelSettings(): KernelSettings {
  return Object.fromEntries(KUBELET_SETTINGS.map((name) => [name, readFileSync(`/proc/sys/${name}`, "utf8").trim()]));
}

export function restoreKernelSettings(settings: KernelSettings): void {
  for (const [name, value] of Object.entries(settings)) writeFileSync(`/proc/sys/${name}`, value);
}
