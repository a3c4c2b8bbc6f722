/** `fencedjob controller`: its options come from flags, each with an environment variable for the chart. */
import { hostname } from "node:os";
import { type Command, Option } from "commander";
import { DEFAULT_ELECTION_TIMING } from "../lease/timing.ts";
import { systemClock } from "../platform/clock.ts";
import { httpClient } from "../platform/http.ts";
import { whenAborted } from "../platform/pause.ts";
import { systemRandom } from "../platform/random.ts";
import { notNegative, positive } from "./numbers.ts";
import { processLogger } from "./process.ts";
import { untilTerminated } from "./terminated.ts";
import { json } from "./words.ts";

export function registerController(program: Command): void {
  program
    .command("controller")
    .description("reconcile FencedJobs: grant generations, create pods, take over")
    .addOption(
      new Option("--sidecar-image <image>", "image of the sidecar")
        .env("FENCEDJOB_SIDECAR_IMAGE")
        .makeOptionMandatory(),
    )
    .addOption(
      new Option("--sidecar-image-pull-policy <policy>", "its pull policy")
        .env("FENCEDJOB_SIDECAR_PULL_POLICY")
        .default("IfNotPresent"),
    )
    .addOption(
      new Option("--sidecar-resources <json>", "its resources")
        .env("FENCEDJOB_SIDECAR_RESOURCES")
        .default({})
        .argParser(json),
    )
    .addOption(new Option("--namespace <name>", "only this namespace").env("FENCEDJOB_NAMESPACE"))
    .addOption(
      new Option("--workers <n>", "FencedJobs reconciled at once")
        .env("FENCEDJOB_WORKERS")
        .default(4)
        .argParser(positive),
    )
    .addOption(
      new Option("--health-port <port>", "port of /healthz, /readyz, /metrics")
        .env("FENCEDJOB_HEALTH_PORT")
        .default(8080)
        .argParser(notNegative),
    )
    .addOption(
      new Option("--election-lease <name>", "Lease by which the controllers of one installation elect")
        .env("FENCEDJOB_ELECTION_LEASE")
        .default("fencedjob-controller"),
    )
    .addOption(new Option("--election-namespace <name>", "its namespace; default: this pod's").env("POD_NAMESPACE"))
    .addOption(seconds("duration", "an unchanged Lease protects the leader", DEFAULT_ELECTION_TIMING.durationMs))
    .addOption(seconds("renew-interval", "from one renewal to the next", DEFAULT_ELECTION_TIMING.renewIntervalMs))
    .addOption(seconds("request-timeout", "for one renewal", DEFAULT_ELECTION_TIMING.requestTimeoutMs))
    .addOption(seconds("margin", "the leader stops before the duration ends", DEFAULT_ELECTION_TIMING.marginMs))
    .addOption(new Option("--pod-name <name>", "of this process").env("POD_NAME").default(hostname()))
    .addOption(
      new Option("--pod-uid <uid>", "of this process: a container started anew in its pod leads at once").env(
        "POD_UID",
      ),
    )
    .action(async (options) => {
      const signal = untilTerminated();
      // Here and not above: the schema of the resource costs a sidecar 10 MB that it does not use.
      const { startController } = await import("../controller/controller.ts");
      const { loadKubeConfig } = await import("../controller/kube/config.ts");
      const log = processLogger("controller");
      const kube = await loadKubeConfig({ env: process.env });
      const controller = await startController({
        kube,
        sidecar: {
          image: options.sidecarImage,
          imagePullPolicy: options.sidecarImagePullPolicy,
          resources: options.sidecarResources,
        },
        ...(options.namespace ? { namespace: options.namespace } : {}),
        workers: options.workers,
        healthPort: options.healthPort,
        election: {
          lease: { namespace: options.electionNamespace ?? kube.namespace, name: options.electionLease },
          timing: {
            durationMs: options.electionDurationSeconds * 1000,
            renewIntervalMs: options.electionRenewIntervalSeconds * 1000,
            requestTimeoutMs: options.electionRequestTimeoutSeconds * 1000,
            marginMs: options.electionMarginSeconds * 1000,
          },
          pod: { name: options.podName, uid: options.podUid ?? systemRandom.bytes(16).toString("hex") },
        },
        clock: systemClock,
        random: systemRandom,
        log,
      });
      await whenAborted(signal);
      log.info("controller is stopping", { why: String(signal.reason) });
      await controller.stop();
    });
}

/** For the chart: run once the controller was uninstalled. */
export function registerRelease(program: Command): void {
  program
    .command("release")
    .description(
      "take the controller's finalizer off FencedJobs, after it was uninstalled: else none of them could be deleted",
    )
    .addOption(new Option("--namespace <name>", "only this namespace").env("FENCEDJOB_NAMESPACE"))
    .action(async ({ namespace }) => {
      const { KubeApi } = await import("../controller/kube/api.ts");
      const { loadKubeConfig } = await import("../controller/kube/config.ts");
      const { releaseFencedJobs } = await import("../controller/release.ts");
      const client = httpClient({ ...(await loadKubeConfig({ env: process.env })), clock: systemClock });
      const released = await releaseFencedJobs(new KubeApi(client, systemClock, "fencedjob-release"), namespace);
      client.close();
      process.stdout.write(`${released} FencedJob${released === 1 ? "" : "s"} released\n`);
    });
}

function seconds(name: string, meaning: string, defaultMs: number): Option {
  return new Option(`--election-${name}-seconds <n>`, `election: ${meaning}`)
    .env(`FENCEDJOB_ELECTION_${name.toUpperCase().replace("-", "_")}_SECONDS`)
    .default(defaultMs / 1000)
    .argParser(notNegative);
}
