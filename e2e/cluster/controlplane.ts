/** The programs of a control plane as data: which flags they take. Nothing here starts anything. */
import { join } from "node:path";
import { programPath } from "./build.ts";
import type { Daemon } from "./daemon.ts";
import type { Identity } from "./pki.ts";

export interface ControlPlane {
  /** Certificates and kubeconfigs lie in `<dir>/pki`, etcd's data in `<dir>/etcd`. */
  readonly dir: string;
  /** Where the API server listens and what it advertises to pods. */
  readonly address: string;
  readonly apiPort: number;
  readonly etcdPort: number;
  readonly etcdPeerPort: number;
}

/** The first address of it is the API server's, `kubernetes.default`. */
export const SERVICE_CIDR = "10.96.0.0/16";
export const API_SERVICE_ADDRESS = "10.96.0.1";

export const apiUrl = ({ address, apiPort }: ControlPlane): string => `https://${address}:${apiPort}`;
export const etcdDataDir = ({ dir }: ControlPlane): string => join(dir, "etcd");
export const pki = ({ dir }: ControlPlane, file = ""): string => join(dir, "pki", file);

export function controlPlaneIdentities({ address }: ControlPlane): readonly Identity[] {
  const names = ["localhost", ...["", ".svc", ".svc.cluster.local"].map((suffix) => `kubernetes.default${suffix}`)];
  const addresses = ["127.0.0.1", API_SERVICE_ADDRESS, ...(address === "127.0.0.1" ? [] : [address])];
  return [
    {
      file: "apiserver",
      commonName: "kube-apiserver",
      subjectAltNames: [...names.map((n) => `DNS:${n}`), ...addresses.map((a) => `IP:${a}`)],
    },
    { file: "apiserver-kubelet", commonName: "kube-apiserver-kubelet-client", organization: "system:masters" },
    { file: "admin", commonName: "fencedjob-admin", organization: "system:masters" },
    { file: "controller-manager", commonName: "system:kube-controller-manager" },
    { file: "scheduler", commonName: "system:kube-scheduler" },
  ];
}

export function etcd(plane: ControlPlane): Daemon {
  const client = `http://127.0.0.1:${plane.etcdPort}`;
  const peer = `http://127.0.0.1:${plane.etcdPeerPort}`;
  return {
    name: "etcd",
    command: [
      programPath("etcd"),
      "--name=fencedjob",
      `--data-dir=${etcdDataDir(plane)}`,
      `--listen-client-urls=${client}`,
      `--advertise-client-urls=${client}`,
      `--listen-peer-urls=${peer}`,
      `--initial-advertise-peer-urls=${peer}`,
      `--initial-cluster=fencedjob=${peer}`,
      "--unsafe-no-fsync", // a test cluster does not outlive a crash of its machine
      "--log-level=warn",
    ],
  };
}

export function apiServer(plane: ControlPlane): Daemon {
  return {
    name: "kube-apiserver",
    command: [
      programPath("kube-apiserver"),
      `--etcd-servers=http://127.0.0.1:${plane.etcdPort}`,
      `--bind-address=${plane.address}`,
      `--advertise-address=${plane.address}`,
      `--secure-port=${plane.apiPort}`,
      `--client-ca-file=${pki(plane, "ca.crt")}`,
      `--tls-cert-file=${pki(plane, "apiserver.crt")}`,
      `--tls-private-key-file=${pki(plane, "apiserver.key")}`,
      `--kubelet-client-certificate=${pki(plane, "apiserver-kubelet.crt")}`,
      `--kubelet-client-key=${pki(plane, "apiserver-kubelet.key")}`,
      `--kubelet-certificate-authority=${pki(plane, "ca.crt")}`,
      "--kubelet-preferred-address-types=InternalIP",
      "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
      `--service-account-key-file=${pki(plane, "sa.pub")}`,
      `--service-account-signing-key-file=${pki(plane, "sa.key")}`,
      `--service-cluster-ip-range=${SERVICE_CIDR}`,
      "--authorization-mode=Node,RBAC",
      "--enable-admission-plugins=NodeRestriction",
      "--allow-privileged=true",
      "--profiling=false",
    ],
  };
}

/** `controllers` as in the program's own flag: `*` for all, or the names of those that shall run. */
export function controllerManager(plane: ControlPlane, controllers: readonly string[] = ["*"]): Daemon {
  return {
    name: "kube-controller-manager",
    command: [
      programPath("kube-controller-manager"),
      ...asClient(plane, "controller-manager"),
      `--service-account-private-key-file=${pki(plane, "sa.key")}`,
      `--root-ca-file=${pki(plane, "ca.crt")}`,
      "--use-service-account-credentials=true",
      `--controllers=${controllers.join(",")}`,
      "--secure-port=0",
      "--leader-elect=false",
    ],
  };
}

export function scheduler(plane: ControlPlane): Daemon {
  return {
    name: "kube-scheduler",
    command: [
      programPath("kube-scheduler"),
      ...asClient(plane, "scheduler"),
      "--secure-port=0",
      "--leader-elect=false",
    ],
  };
}

export const kubeconfig = (plane: ControlPlane, file: string): string => pki(plane, `${file}.kubeconfig`);

function asClient(plane: ControlPlane, file: string): readonly string[] {
  const path = kubeconfig(plane, file);
  return [`--kubeconfig=${path}`, `--authentication-kubeconfig=${path}`, `--authorization-kubeconfig=${path}`];
}
