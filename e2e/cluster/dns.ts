/** Cluster DNS of the local node, as the objects to apply. Names outside the cluster are not resolved: pods have no way out. */
import { DNS_ADDRESS } from "./node.ts";

const CORE_FILE = `.:53 {
  errors
  ready
  kubernetes cluster.local in-addr.arpa ip6.arpa
  cache 1
}
`;

export function clusterDns(image: string): readonly object[] {
  const metadata = { name: "coredns", namespace: "kube-system" };
  const labels = { "k8s-app": "kube-dns" };
  const probe = (path: string, port: number): object => ({ httpGet: { path, port }, periodSeconds: 1 });
  return [
    { apiVersion: "v1", kind: "ServiceAccount", metadata },
    {
      apiVersion: "rbac.authorization.k8s.io/v1",
      kind: "ClusterRole",
      metadata: { name: "system:coredns" },
      rules: [
        { apiGroups: [""], resources: ["services", "pods", "namespaces"], verbs: ["list", "watch"] },
        { apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: ["list", "watch"] },
      ],
    },
    {
      apiVersion: "rbac.authorization.k8s.io/v1",
      kind: "ClusterRoleBinding",
      metadata: { name: "system:coredns" },
      roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: "system:coredns" },
      subjects: [{ kind: "ServiceAccount", ...metadata }],
    },
    { apiVersion: "v1", kind: "ConfigMap", metadata, data: { Corefile: CORE_FILE } },
    {
      apiVersion: "apps/v1",
      kind: "Deployment",
      metadata,
      spec: {
        selector: { matchLabels: labels },
        template: {
          metadata: { labels },
          spec: {
            serviceAccountName: "coredns",
            dnsPolicy: "Default",
            priorityClassName: "system-cluster-critical",
            terminationGracePeriodSeconds: 1,
            containers: [
              {
                name: "coredns",
                image,
                imagePullPolicy: "Never",
                args: ["-conf", "/etc/coredns/Corefile"],
                ports: [{ containerPort: 53, protocol: "UDP" }],
                readinessProbe: probe("/ready", 8181),
                securityContext: {
                  allowPrivilegeEscalation: false,
                  readOnlyRootFilesystem: true,
                  capabilities: { drop: ["ALL"] },
                },
                volumeMounts: [{ name: "config", mountPath: "/etc/coredns", readOnly: true }],
              },
            ],
            // Port 53 for a user who is not root, inside the pod's own network.
            securityContext: { sysctls: [{ name: "net.ipv4.ip_unprivileged_port_start", value: "53" }] },
            volumes: [{ name: "config", configMap: { name: "coredns" } }],
          },
        },
      },
    },
    {
      apiVersion: "v1",
      kind: "Service",
      metadata: { name: "kube-dns", namespace: "kube-system" },
      spec: {
        selector: labels,
        clusterIP: DNS_ADDRESS,
        ports: [
          { name: "dns", port: 53, protocol: "UDP" },
          { name: "dns-tcp", port: 53, protocol: "TCP" },
        ],
      },
    },
  ];
}
