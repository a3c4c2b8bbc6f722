/** `fencedjob controller` as a process of its own. */
import { join } from "node:path";
import type { TestApiServer } from "./apiserver.ts";
import { type Serving, startServing } from "./serving.ts";

export interface ControllerProcess extends Serving {
  readonly name: string;
  /** Of its election's Lease, as the metrics tell; throws when it does not answer. */
  leads(): Promise<boolean>;
  /** Status and text of /readyz. */
  ready(): Promise<string>;
}

export interface ControllerProcessOptions {
  readonly server: Pick<TestApiServer, "kubeconfigPath">;
  /** Where it watches and elects. */
  readonly namespace: string;
  readonly name: string;
  /** Of the election's Lease; the default if absent. */
  readonly electionSeconds?: number;
}

const FENCEDJOB = join(import.meta.dirname, "..", "cli", "fencedjob.ts");
export const ELECTION_LEASE = "fencedjob-controller";

export async function startControllerProcess(options: ControllerProcessOptions): Promise<ControllerProcess> {
  const { server, namespace, name, electionSeconds } = options;
  const args = ["controller", "--sidecar-image", "fencedjob:test", "--namespace", namespace, "--health-port", "0"];
  const serving = await startServing(process.execPath, [FENCEDJOB, ...args], {
    ready: /"controller started".*"healthPort":(\d+)/,
    env: {
      KUBECONFIG: server.kubeconfigPath,
      POD_NAME: name,
      POD_UID: `uid-${name}`,
      POD_NAMESPACE: namespace,
      ...(electionSeconds && { FENCEDJOB_ELECTION_DURATION_SECONDS: String(electionSeconds) }),
    },
  });
  const ask = (path: string): Promise<Response> => fetch(`http://127.0.0.1:${serving.said[1]}${path}`);
  return {
    ...serving,
    name,
    leads: async () => (await (await ask("/metrics")).text()).includes(`{name="${ELECTION_LEASE}"} 1`),
    ready: async () => {
      const response = await ask("/readyz");
      return `${response.status} ${(await response.text()).trim()}`;
    },
  };
}
