/** `fencedjob sidecar`: the container that the controller puts into each pod; configured by its environment alone. */
import { join } from "node:path";
import type { Command } from "commander";
import type { SidecarConfig } from "../lease/sidecarconfig.ts";
import { systemClock } from "../platform/clock.ts";
import { systemRandom } from "../platform/random.ts";
import { LeaseClient } from "../sidecar/leaseclient.ts";
import { Sidecar } from "../sidecar/sidecar.ts";
import { processLogger, untilTerminated } from "./process.ts";

const TERMINATION_LOG = "/dev/termination-log";

export function registerSidecar(program: Command): void {
  program
    .command("sidecar")
    .description("hold the Lease, raise the fence and proxy one pod's PostgreSQL traffic (started by the controller)")
    .action(async () => {
      const { FENCEDJOB_SIDECAR, POD_NAME, POD_UID, KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT } = process.env;
      if (!FENCEDJOB_SIDECAR || !POD_NAME || !POD_UID || !KUBERNETES_SERVICE_HOST) {
        throw new Error(
          "this command runs inside a pod that the FencedJob controller made (FENCEDJOB_SIDECAR, POD_NAME or POD_UID is missing). Without Kubernetes use: fencedjob proxy",
        );
      }
      const config = JSON.parse(FENCEDJOB_SIDECAR) as SidecarConfig;
      const host = KUBERNETES_SERVICE_HOST.includes(":") ? `[${KUBERNETES_SERVICE_HOST}]` : KUBERNETES_SERVICE_HOST;
      const api = new LeaseClient({
        baseUrl: `https://${host}:${KUBERNETES_SERVICE_PORT ?? 443}`,
        tokenPath: join(config.tokenDir, "token"),
        caPath: join(config.tokenDir, "ca.crt"),
        namespace: config.namespace,
        name: config.job,
        clock: systemClock,
      });
      const signal = untilTerminated();
      const log = processLogger("sidecar").with({ job: `${config.namespace}/${config.job}`, pod: POD_NAME });
      const sidecar = new Sidecar({
        config,
        pod: { name: POD_NAME, uid: POD_UID },
        api,
        clock: systemClock,
        random: systemRandom,
        log,
        lastWordsPath: TERMINATION_LOG,
      });
      await sidecar.run(signal);
      api.close();
    });
}
