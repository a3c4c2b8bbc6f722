/** `fencedjob controller`: its options come from flags, each with an environment variable for the chart. */
import { hostname } from "node:os";
import { type Command, Option } from "commander";
import { systemClock } from "../platform/clock.ts";
import { httpClient } from "../platform/http.ts";
import { systemRandom } from "../platform/random.ts";
import { processLogger, untilTerminated, whenAborted } from "./process.ts";

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
      new Option("--sidecar-resources <json>", "its resources").env("FENCEDJOB_SIDECAR_RESOURCES").default("{}"),
    )
    .addOption(new Option("--namespace <name>", "only this namespace").env("FENCEDJOB_NAMESPACE"))
    .addOption(
      new Option("--workers <n>", "FencedJobs reconciled at once")
        .env("FENCEDJOB_WORKERS")
        .default(4)
        .argParser(Number),
    )
    .addOption(
      new Option("--health-port <port>", "port of /healthz, /readyz, /metrics")
        .env("FENCEDJOB_HEALTH_PORT")
        .default(8080)
        .argParser(Number),
    )
    .action(async (options) => {
      // Here and not above: the schema of the resource costs a sidecar 10 MB that it does not use.
      const { startController } = await import("../controller/controller.ts");
      const { loadKubeConfig } = await import("../controller/kube/config.ts");
      const log = processLogger("controller");
      const signal = untilTerminated();
      const controller = await startController({
        kube: await loadKubeConfig({ env: process.env }),
        sidecar: {
          image: options.sidecarImage,
          imagePullPolicy: options.sidecarImagePullPolicy,
          resources: JSON.parse(options.sidecarResources),
        },
        ...(options.namespace ? { namespace: options.namespace } : {}),
        workers: options.workers,
        healthPort: options.healthPort,
        instance: hostname(),
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
