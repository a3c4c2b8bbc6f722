/** What the controller has told a pod's sidecar, as the kubelet would hand it on: for pods that no kubelet runs. */
import { type RawPod, SIDECAR_NAME } from "../controller/snapshot.ts";
import type { SidecarConfig } from "../lease/sidecarconfig.ts";

interface Container {
  readonly name: string;
  readonly env?: readonly { readonly name: string; readonly value?: string }[];
}

/** The sidecar is the first init container, or the one container of a closer. */
export function givenConfig({ spec = {} }: Pick<RawPod, "spec">): SidecarConfig {
  const containers = [...((spec.initContainers as Container[]) ?? []), ...(spec.containers as Container[])];
  const { env = [] } = containers.find(({ name }) => name === SIDECAR_NAME) ?? {};
  return JSON.parse(env.find(({ name }) => name === "FENCEDJOB_SIDECAR")?.value ?? "");
}
