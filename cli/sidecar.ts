/** `fencedjob sidecar`: the container that the controller puts into each pod; configured by its environment alone. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Command } from "commander";
import { withConnection } from "../fence/connection.ts";
import type { SidecarConfig } from "../lease/sidecarconfig.ts";
import { systemClock } from "../platform/clock.ts";
import { systemRandom } from "../platform/random.ts";
import { readCredentials } from "../sidecar/credentials.ts";
import { startSidecarServer } from "../sidecar/http.ts";
import { openLeaseClient } from "../sidecar/leaseclient.ts";
import { Sidecar } from "../sidecar/sidecar.ts";
import { probeSession } from "../sidecar/wire/probe.ts";
import { startWire } from "../sidecar/wire/thread.ts";
import { processLogger } from "./process.ts";
import { untilTerminated } from "./terminated.ts";

export function registerSidecar(program: Command): void {
  program
    .command("sidecar")
    .description("hold the Lease, raise the fence and proxy one pod's PostgreSQL traffic (started by the controller)")
    .action(async () => {
      const signal = untilTerminated();
      const { FENCEDJOB_SIDECAR, POD_NAME, POD_UID, KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT } = process.env;
      if (!FENCEDJOB_SIDECAR || !POD_NAME || !POD_UID || !KUBERNETES_SERVICE_HOST) {
        throw new Error(
          "this command runs inside a pod that the FencedJob controller made (FENCEDJOB_SIDECAR, POD_NAME or POD_UID is missing). Without Kubernetes use: fencedjob proxy",
        );
      }
      const config = JSON.parse(FENCEDJOB_SIDECAR) as SidecarConfig;
      const host = KUBERNETES_SERVICE_HOST.includes(":") ? `[${KUBERNETES_SERVICE_HOST}]` : KUBERNETES_SERVICE_HOST;
      const api = openLeaseClient({
        baseUrl: `https://${host}:${KUBERNETES_SERVICE_PORT ?? 443}`,
        tokenPath: join(config.tokenDir, "token"),
        caPath: join(config.tokenDir, "ca.crt"),
        namespace: config.namespace,
        name: config.job,
        clock: systemClock,
      });
      const log = processLogger("sidecar").with({ job: `${config.namespace}/${config.job}`, pod: POD_NAME });
      const sidecar = new Sidecar({
        config,
        pod: { name: POD_NAME, uid: POD_UID },
        api,
        clock: systemClock,
        random: systemRandom,
        log,
        databases: { credentials: readCredentials, connect: withConnection, probe: probeSession },
        startWire,
        startServer: startSidecarServer,
        leaveLastWords: (words) => writeFileSync(config.lastWordsPath, JSON.stringify(words)),
      });
      await sidecar.run(signal);
      if (config.purpose === "close" && !sidecar.closed) process.exitCode = 1;
      api.close();
    });
}
