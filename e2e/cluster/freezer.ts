/**
 * Freezes and thaws whole pods, as a paused machine would: every process stops between two instructions, sockets stay open,
 * nothing is told. A privileged pod on each node writes the cgroup's state; it works wherever privileged pods do.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { checkout } from "./paths.ts";

export interface Freezer {
  /** Returns when every process of the pod has stopped. */
  freeze(podUid: string): Promise<void>;
  /** Returns when they go on. */
  thaw(podUid: string): Promise<void>;
}

type Kubectl = (args: readonly string[], input?: string) => Promise<string>;

export const FREEZER_NAMESPACE = "fencedjob-freezer";

/** Starts the pods, with an image that has /nodejs/bin/node, and waits until they are there: freezing must not wait for a pod. */
export async function startFreezer(kubectl: Kubectl, image: string): Promise<Freezer> {
  const items = freezerObjects(image);
  await kubectl(["apply", "--server-side", "-f", "-"], JSON.stringify({ apiVersion: "v1", kind: "List", items }));
  await kubectl(["rollout", "status", "daemonset/freezer", "-n", FREEZER_NAMESPACE, "--timeout=300s"]);
  const script = readFileSync(join(checkout, "e2e", "cluster", "freezer-script.mjs"), "utf8");
  const act = async (command: "freeze" | "thaw", podUid: string): Promise<void> => {
    const pod = await freezerBeside(kubectl, podUid);
    const node = ["/nodejs/bin/node", "--input-type=module", "-", command, podUid];
    await kubectl(["exec", "-i", "-n", FREEZER_NAMESPACE, pod, "--", ...node], script);
  };
  return { freeze: (podUid) => act("freeze", podUid), thaw: (podUid) => act("thaw", podUid) };
}

async function freezerBeside(kubectl: Kubectl, podUid: string): Promise<string> {
  const fields =
    'jsonpath={range .items[*]}{.metadata.uid} {.spec.nodeName} {.metadata.namespace} {.metadata.name}{"\\n"}{end}';
  const pods = (await kubectl(["get", "pods", "-A", "-o", fields])).split("\n").map((line) => line.split(" "));
  const node = pods.find(([uid]) => uid === podUid)?.[1];
  if (!node) throw new Error(`there is no pod with UID ${podUid}, or it is on no node yet`);
  const freezer = pods.find(([, nodeName, namespace]) => nodeName === node && namespace === FREEZER_NAMESPACE)?.[3];
  if (freezer === undefined) throw new Error(`no freezer runs on node ${node}`);
  return freezer;
}

function freezerObjects(image: string): readonly object[] {
  const labels = { app: "freezer" };
  return [
    {
      apiVersion: "v1",
      kind: "Namespace",
      metadata: { name: FREEZER_NAMESPACE, labels: { "pod-security.kubernetes.io/enforce": "privileged" } },
    },
    {
      apiVersion: "apps/v1",
      kind: "DaemonSet",
      metadata: { name: "freezer", namespace: FREEZER_NAMESPACE },
      spec: {
        selector: { matchLabels: labels },
        template: {
          metadata: { labels },
          spec: {
            automountServiceAccountToken: false,
            terminationGracePeriodSeconds: 0,
            tolerations: [{ operator: "Exists" }],
            containers: [
              {
                name: "freezer",
                image,
                imagePullPolicy: "IfNotPresent",
                command: ["/nodejs/bin/node", "-e", "setInterval(() => {}, 2 ** 31 - 1)"],
                securityContext: { privileged: true, runAsUser: 0 },
                volumeMounts: [{ name: "cgroup", mountPath: "/host/cgroup" }],
              },
            ],
            volumes: [{ name: "cgroup", hostPath: { path: "/sys/fs/cgroup" } }],
          },
        },
      },
    },
  ];
}
