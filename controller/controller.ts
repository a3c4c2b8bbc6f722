/**
 * The controller process: its loops, its health and its metrics. Wiring only.
 *
 * Losing this process never disturbs a running owner: it renews by itself, and the fence asks nobody.
 */
import { httpClient } from "../platform/http.ts";
import type { KubeConfig } from "./kube/config.ts";
import { type LoopOptions, type Loops, startLoops } from "./loops.ts";
import { startHealthServer } from "./server.ts";

export interface ControllerOptions extends LoopOptions {
  readonly kube: KubeConfig;
  /** Port of health and metrics; 0 = any free one. */
  readonly healthPort: number;
}

export interface Controller extends Pick<Loops, "synced" | "leads"> {
  readonly healthPort: number;
  stop(): Promise<void>;
}

/** The reflectors hear a bookmark each minute; silent for longer, this process sees nothing. */
const STALENESS_MS_MAX = 180_000;

export async function startController(options: ControllerOptions): Promise<Controller> {
  const { kube, clock, log, election } = options;
  const client = httpClient({ baseUrl: kube.baseUrl, credentials: kube.credentials, clock });
  const loops = startLoops(client, options);
  const health = await startHealthServer(options.healthPort, {
    ready: () => notReady(loops),
    metrics: () => ({
      fencedjob_jobs: loops.jobs(),
      controller_runtime_reconcile_total: loops.counters.runs,
      controller_runtime_reconcile_errors_total: loops.counters.failures,
      [`leader_election_master_status{name="${election.lease.name}"}`]: loops.leads() ? 1 : 0,
      workqueue_depth: loops.depth(),
      fencedjob_watch_staleness_seconds: loops.stalenessMs() / 1000,
    }),
  }).catch(async (error) => {
    // Its port is taken: whoever was told that it has not started must not be led by it.
    await loops.stop();
    client.close();
    throw error;
  });
  log.info("controller started", {
    api: kube.source,
    namespace: options.namespace ?? "all",
    lease: `${election.lease.namespace}/${election.lease.name}`,
    healthPort: health.port,
  });
  return {
    healthPort: health.port,
    synced: loops.synced,
    leads: loops.leads,
    stop: async () => {
      await loops.stop();
      await health.stop();
      client.close();
    },
  };
}

/** One that stands by is ready, too: it has read everything, and may be elected. */
function notReady(loops: Loops): string | null {
  const stalenessMs = loops.stalenessMs();
  if (stalenessMs >= STALENESS_MS_MAX && Number.isFinite(stalenessMs)) {
    return `no news from the API server for ${Math.round(stalenessMs / 1000)} s`;
  }
  return loops.problem();
}
