/** The controller in a cluster, installed as users do: with Helm, from the chart of this checkout. */
import { join } from "node:path";
import { KubeApi } from "../controller/kube/api.ts";
import { loadKubeConfig } from "../controller/kube/config.ts";
import { systemClock } from "../platform/clock.ts";
import { httpClient } from "../platform/http.ts";
import { image } from "./cluster/images.ts";
import { checkout } from "./cluster/paths.ts";
import type { Cluster } from "./cluster/provider.ts";

export const RELEASE = "fencedjob";
export const SYSTEM_NAMESPACE = "fencedjob-system";

export async function installController(cluster: Cluster, say: (line: string) => void): Promise<void> {
  const ref = await cluster.loadImage(await image("fencedjob", say));
  const colon = ref.lastIndexOf(":");
  const values = { "image.repository": ref.slice(0, colon), "image.tag": ref.slice(colon + 1) };
  const sets = Object.entries(values).flatMap(([name, value]) => ["--set-string", `${name}=${value}`]);
  const chart = join(checkout, "charts/fencedjob");
  const where = ["-n", SYSTEM_NAMESPACE, "--create-namespace"];
  await cluster.helm(["upgrade", "--install", RELEASE, chart, ...where, ...sets, "--wait", "--timeout", "300s"]);
}

/** The API of the cluster as its administrator. */
export async function adminApi(cluster: Cluster): Promise<{ api: KubeApi; close(): void }> {
  const config = await loadKubeConfig({ env: {}, kubeconfigPath: cluster.kubeconfigPath });
  const client = httpClient({ ...config, clock: systemClock });
  return { api: new KubeApi(client, systemClock, "fencedjob-e2e"), close: () => client.close() };
}
