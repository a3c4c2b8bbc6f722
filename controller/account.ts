/**
 * The rights of a job's pods: the Lease of the job by its name, nothing else (D12). Not even a read of other jobs'
 * Leases: a watch by name is allowed by resourceNames.
 */
import type { FencedJobSpec, JobMeta } from "./api/spec.ts";
import { type KubeApi, RESOURCES } from "./kube/api.ts";
import { controllerReference, ownAccountOf, serviceAccountOf } from "./pods.ts";

/** Creates or corrects account, role and binding; goes away with the FencedJob. */
export async function ensureAccount(api: KubeApi, meta: JobMeta, spec: FencedJobSpec): Promise<void> {
  const account = serviceAccountOf(meta, spec);
  const name = ownAccountOf(meta);
  // Ours, too, when the template names another: an owner at work, which was made before that, goes on under it.
  const accounts = [...new Set([account.name, name])];
  const metadata = { name, namespace: meta.namespace, ownerReferences: [controllerReference(meta)] };
  if (account.ours) await api.apply(RESOURCES.serviceAccounts, { metadata }, { force: true });
  await api.apply(
    RESOURCES.roles,
    {
      metadata,
      rules: [
        {
          apiGroups: ["coordination.k8s.io"],
          resources: ["leases"],
          resourceNames: [meta.name],
          verbs: ["get", "watch", "update"],
        },
      ],
    },
    { force: true },
  );
  await api.apply(
    RESOURCES.roleBindings,
    {
      metadata,
      roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "Role", name },
      subjects: accounts.map((subject) => ({ kind: "ServiceAccount", name: subject, namespace: meta.namespace })),
    },
    { force: true },
  );
}
