/** A controller in this process, at a real API server. */
import { type Controller, startController } from "../controller/controller.ts";
import type { KubeConfig } from "../controller/kube/config.ts";
import type { LeaseName } from "../lease/client.ts";
import { DEFAULT_ELECTION_TIMING } from "../lease/timing.ts";
import { systemClock } from "../platform/clock.ts";
import { silentLogger } from "../platform/log.ts";
import { systemRandom } from "../platform/random.ts";

export interface TestControllerOptions {
  readonly kube: KubeConfig;
  /** The only one that it watches. */
  readonly namespace?: string;
  /** Those of one Lease elect; two of them are an installation made twice. */
  readonly lease: LeaseName;
  /** Of its pod. */
  readonly name?: string;
}

/** Resolves when it may be elected. */
export async function startTestController(options: TestControllerOptions): Promise<Controller> {
  const { kube, namespace, lease, name = "test" } = options;
  const controller = await startController({
    kube,
    sidecar: { image: "fencedjob:test", imagePullPolicy: "Never", resources: {} },
    ...(namespace !== undefined && { namespace }),
    workers: 2,
    healthPort: 0,
    election: { lease, timing: DEFAULT_ELECTION_TIMING, pod: { name, uid: name } },
    clock: systemClock,
    random: systemRandom,
    log: silentLogger,
  });
  await controller.synced;
  return controller;
}
