/** Why a job's template cannot be fenced, before the API server is asked. Pure. */
import type { Reason } from "./api/reasons.ts";
import type { FencedJobSpec } from "./api/spec.ts";
import { antiAffinityOf, type Json, list, PREFERRED } from "./pods.ts";
import { SIDECAR_NAME } from "./snapshot.ts";

interface Problem {
  readonly reason: Reason;
  readonly message: string;
}

export function templateProblem({ template }: FencedJobSpec): Problem | null {
  const pod = template.spec as Json;
  const containers = [...list(pod.containers), ...list(pod.initContainers)];
  return networkProblem(pod) ?? listProblem(pod, containers) ?? nameProblem(pod, containers);
}

function networkProblem({ hostNetwork }: Json): Problem | null {
  if (hostNetwork !== true) return null;
  return {
    reason: "HostNetwork",
    message:
      "spec.template.spec.hostNetwork is true: the proxy's port would be open to everything on the node. Remove it",
  };
}

/** What is no list, or has nothing in it, would be lost where ours is put beside it, and the API server not see it. */
function listProblem(pod: Json, containers: readonly Json[]): Problem | null {
  const { volumes, initContainers } = pod;
  const fields = [
    ...containers.flatMap((container) =>
      Object.entries({ env: container?.env, volumeMounts: container?.volumeMounts }),
    ),
    ...Object.entries({ volumes, initContainers, [PREFERRED]: antiAffinityOf(pod)?.[PREFERRED] }),
  ];
  const invalid = (message: string): Problem => ({
    reason: "InvalidTemplate",
    message: `spec.template.spec has ${message}`,
  });
  const single = fields.find(([, items]) => !Array.isArray(items ?? []));
  if (single) return invalid(`${single[0]} that is no list. Begin each of its items with a dash`);
  const empty = fields.find(([name, items]) => name !== "volumeMounts" && list(items).some((item) => item === null));
  return empty ? invalid(`an empty item in ${empty[0]}. Fill it, or remove its dash`) : null;
}

function nameProblem({ volumes }: Json, containers: readonly Json[]): Problem | null {
  if (containers.some(({ name }) => name === SIDECAR_NAME))
    return {
      reason: "ReservedName",
      message: `a container is named "${SIDECAR_NAME}", which is the sidecar's name. Rename it`,
    };
  const volume = list(volumes).find(({ name }) => typeof name === "string" && name.startsWith("fencedjob-"));
  if (!volume) return null;
  return {
    reason: "ReservedName",
    message: `volume "${volume.name}": names with "fencedjob-" are the sidecar's. Rename it`,
  };
}
