/** One node of the local cluster as data: its addresses, configuration files and programs. Nothing here starts anything. */
import { join } from "node:path";
import { programPath } from "./build.ts";
import { type ControlPlane, kubeconfig, pki } from "./controlplane.ts";
import type { Daemon } from "./daemon.ts";
import type { Identity } from "./pki.ts";

/** The host's address on the bridge that joins the nodes: where the API server listens, and by which pods reach the host. */
export const HOST_ADDRESS = "10.245.0.1";
export const NODE_NETWORK_BITS = 24;
export const BRIDGE = "fj-bridge";
export const POD_CIDR = "10.244.0.0/16";
export const DNS_ADDRESS = "10.96.0.10";

export interface Node {
  readonly name: string;
  /** Name of its network namespace and of the host's end of its cable: `ip link set <netns> down` cuts the node off. */
  readonly netns: string;
  readonly address: string;
  readonly podCidr: string;
  /** Everything of the node lies here. */
  readonly dir: string;
  /** Its cgroup, below each hierarchy's root. */
  readonly cgroup: string;
}

/** The nth node, from 1. */
export function node(stateDir: string, number: number): Node {
  const name = `node-${number}`;
  return {
    name,
    netns: `fj-${name}`,
    address: `10.245.0.${10 + number}`,
    podCidr: `10.244.${number}.0/24`,
    dir: join(stateDir, name),
    cgroup: `/fencedjob/${name}`,
  };
}

export const containerdSocket = ({ dir }: Node): string => join(dir, "containerd.sock");

export function nodeIdentities({ name, address }: Node): readonly Identity[] {
  return [
    { file: name, commonName: `system:node:${name}`, organization: "system:nodes" },
    { file: `${name}-serving`, commonName: name, subjectAltNames: [`DNS:${name}`, `IP:${address}`] },
    { file: "kube-proxy", commonName: "system:kube-proxy" },
  ];
}

/** Path → content of every configuration file of the node. */
export function configFiles(
  plane: ControlPlane,
  it: Node,
  cniBinDir: string,
  pauseImage: string,
): Readonly<Record<string, string>> {
  return {
    [join(it.dir, "containerd.toml")]: containerdConfig(it, cniBinDir, pauseImage),
    [join(it.dir, "cni", "10-pods.conflist")]: json(cniConfig(it)),
    [join(it.dir, "kubelet.json")]: json(kubeletConfig(plane, it)),
    [join(it.dir, "kube-proxy.json")]: json(kubeProxyConfig(plane, it)),
  };
}

export function nodeDaemons(plane: ControlPlane, it: Node): readonly Daemon[] {
  const { netns } = it;
  return [
    { netns, name: "containerd", command: ["containerd", `--config=${join(it.dir, "containerd.toml")}`] },
    {
      netns,
      name: "kubelet",
      command: [
        programPath("kubelet"),
        `--config=${join(it.dir, "kubelet.json")}`,
        `--kubeconfig=${kubeconfig(plane, it.name)}`,
        `--hostname-override=${it.name}`,
        `--node-ip=${it.address}`,
        `--root-dir=${join(it.dir, "kubelet")}`,
      ],
    },
    { netns, name: "kube-proxy", command: [programPath("kube-proxy"), `--config=${join(it.dir, "kube-proxy.json")}`] },
  ];
}

function containerdConfig(it: Node, cniBinDir: string, pauseImage: string): string {
  const cri = 'plugins."io.containerd.grpc.v1.cri"';
  return `version = 2
root = "${join(it.dir, "containerd")}"
state = "${join(it.dir, "containerd-state")}"

[grpc]
  address = "${containerdSocket(it)}"

[plugins."io.containerd.internal.v1.opt"]
  path = "${join(it.dir, "containerd-opt")}"

[${cri}]
  sandbox_image = "${pauseImage}"
  # Root without CAP_SYS_RESOURCE may not lower a score: every sandbox would fail.
  restrict_oom_score_adj = true
  # So that what is left after a crash is known to be ours by its path.
  netns_mounts_under_state_dir = true

[${cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[${cri}.containerd.runtimes.runc.options]
  SystemdCgroup = false
  Root = "${join(it.dir, "runc")}"

[${cri}.cni]
  bin_dir = "${cniBinDir}"
  conf_dir = "${join(it.dir, "cni")}"
`;
}

/** Pods reach each other, the host and the services; there is no way out of the machine. */
function cniConfig(it: Node): unknown {
  const ipam = {
    type: "host-local",
    dataDir: join(it.dir, "ipam"),
    ranges: [[{ subnet: it.podCidr }]],
    routes: [{ dst: "0.0.0.0/0" }],
  };
  return {
    cniVersion: "0.4.0",
    name: "pods",
    plugins: [{ type: "bridge", bridge: "pods", isGateway: true, hairpinMode: true, ipam }],
  };
}

function kubeletConfig(plane: ControlPlane, it: Node): unknown {
  return {
    apiVersion: "kubelet.config.k8s.io/v1beta1",
    kind: "KubeletConfiguration",
    address: it.address,
    healthzBindAddress: it.address,
    readOnlyPort: 0,
    authentication: {
      anonymous: { enabled: false },
      webhook: { enabled: true },
      x509: { clientCAFile: pki(plane, "ca.crt") },
    },
    authorization: { mode: "Webhook" },
    tlsCertFile: pki(plane, `${it.name}-serving.crt`),
    tlsPrivateKeyFile: pki(plane, `${it.name}-serving.key`),
    containerRuntimeEndpoint: `unix://${containerdSocket(it)}`,
    cgroupDriver: "cgroupfs",
    cgroupRoot: it.cgroup,
    failCgroupV1: false,
    failSwapOn: false,
    makeIPTablesUtilChains: false,
    oomScoreAdj: 0,
    clusterDNS: [DNS_ADDRESS],
    clusterDomain: "cluster.local",
    resolvConf: "",
    podLogsDir: join(it.dir, "pod-logs"),
    volumePluginDir: join(it.dir, "volume-plugins"),
    // The machine's disk is somebody else's business: a full one must not evict the pods of a test.
    evictionHard: { "memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%" },
    imageGCHighThresholdPercent: 100,
  };
}

function kubeProxyConfig(plane: ControlPlane, it: Node): unknown {
  return {
    apiVersion: "kubeproxy.config.k8s.io/v1alpha1",
    kind: "KubeProxyConfiguration",
    clientConnection: { kubeconfig: kubeconfig(plane, "kube-proxy") },
    hostnameOverride: it.name,
    mode: "iptables",
    clusterCIDR: POD_CIDR,
    healthzBindAddress: `${it.address}:10256`,
    metricsBindAddress: `${it.address}:10249`,
    oomScoreAdj: 0,
    // 0: leave the machine's connection tracking as it is.
    conntrack: { maxPerCore: 0, tcpEstablishedTimeout: "0s", tcpCloseWaitTimeout: "0s" },
  };
}

const json = (value: unknown): string => `${JSON.stringify(value, null, 2)}\n`;
