/**
 * The controller process: three reflectors, one queue, one reconciler. Wiring only.
 *
 * Losing this process never disturbs a running owner: it renews by itself, and the fence asks nobody.
 */
import { type RawLease, readLease } from "../lease/record.ts";
import type { Clock } from "../platform/clock.ts";
import { type HttpClient, httpClient } from "../platform/http.ts";
import type { Logger } from "../platform/log.ts";
import type { Random } from "../platform/random.ts";
import type { FencedJob } from "./api/status.ts";
import { KubeApi, RESOURCES } from "./kube/api.ts";
import type { KubeConfig } from "./kube/config.ts";
import { EventRecorder } from "./kube/events.ts";
import { type KubeObject, keyOf } from "./kube/objects.ts";
import { WorkQueue } from "./kube/queue.ts";
import { Reflector } from "./kube/reflector.ts";
import type { Change } from "./kube/store.ts";
import type { SidecarImage } from "./pods.ts";
import { jobKeyOf, Reconciler } from "./reconciler.ts";
import { startHealthServer } from "./server.ts";
import { JOB_LABEL, type RawPod } from "./snapshot.ts";

export interface ControllerOptions {
  readonly kube: KubeConfig;
  readonly sidecar: SidecarImage;
  /** Only this namespace; all of them without it. */
  readonly namespace?: string;
  readonly workers: number;
  /** Port of health and metrics; 0 = any free one. */
  readonly healthPort: number;
  /** This process, in events. */
  readonly instance: string;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Logger;
}

export interface Controller {
  readonly healthPort: number;
  stop(): Promise<void>;
}

const DRAIN_MS = 5_000;
const EVENTS_FLUSH_MS = 2_000;
/** The reflectors hear a bookmark each minute; silent for longer, this process sees nothing. */
const STALENESS_MS_MAX = 180_000;

type Stored<T> = T & KubeObject;

export async function startController(options: ControllerOptions): Promise<Controller> {
  const { kube, clock, log } = options;
  const client = httpClient({ baseUrl: kube.baseUrl, credentials: kube.credentials, clock });
  const loops = await startLoops(client, options);
  const { queue, jobs, stalenessMs } = loops;
  const health = await startHealthServer(options.healthPort, {
    ready: () =>
      stalenessMs() < STALENESS_MS_MAX ? null : `no news from the API server for ${Math.round(stalenessMs() / 1000)} s`,
    metrics: () => ({
      fencedjob_jobs: jobs.size,
      controller_runtime_reconcile_total: queue.counters.runs,
      controller_runtime_reconcile_errors_total: queue.counters.failures,
      workqueue_depth: queue.depth().ready,
      fencedjob_watch_staleness_seconds: stalenessMs() / 1000,
    }),
  });
  log.info("controller started", {
    api: kube.source,
    issuer: loops.issuer,
    namespace: options.namespace ?? "all",
    healthPort: health.port,
  });
  return {
    healthPort: health.port,
    stop: async () => {
      await loops.stop();
      await health.stop();
      client.close();
    },
  };
}

/** What watches and reconciles, over any connection. */
export interface Loops {
  readonly issuer: string;
  readonly queue: WorkQueue;
  readonly jobs: { readonly size: number };
  stalenessMs(): number;
  stop(): Promise<void>;
}

export type LoopOptions = Omit<ControllerOptions, "kube" | "healthPort">;

export async function startLoops(client: HttpClient, options: LoopOptions): Promise<Loops> {
  const { clock, random, log } = options;
  const api = new KubeApi(client, clock, "fencedjob-controller");
  const selection = options.namespace === undefined ? {} : { namespace: options.namespace };
  const common = { api, clock, random, log };
  const jobs = new Reflector<Stored<FencedJob>>({ ...common, resource: RESOURCES.fencedJobs, selection });
  const ofJobs = { ...selection, labelSelector: JOB_LABEL };
  const pods = new Reflector<Stored<RawPod>>({
    ...common,
    resource: RESOURCES.pods,
    selection: ofJobs,
    indexers: {
      job: (pod) => (pod.metadata.ownerReferences ?? []).filter(({ controller }) => controller).map(({ uid }) => uid),
    },
  });
  const leases = new Reflector<Stored<RawLease>>({ ...common, resource: RESOURCES.leases, selection: ofJobs });
  const events = new EventRecorder({ ...common, controller: "fencedjob.dev/controller", instance: options.instance });
  // The cluster's identity: generations of two clusters on one fence name must be told apart (ForeignIssuer).
  const { metadata } = await api.get<KubeObject>(RESOURCES.namespaces, { name: "kube-system" });
  const issuer = metadata.uid ?? "";
  const reconciler = new Reconciler({
    api,
    jobs: jobs.store,
    pods: pods.store,
    leases: leases.store,
    events,
    clock,
    log,
    sidecar: options.sidecar,
    issuer,
  });
  const queue = new WorkQueue({ reconcile: reconciler.reconcile, workers: options.workers, clock, random, log });

  jobs.subscribe(
    ({ key }) => [key],
    (key) => queue.add(key),
  );
  pods.subscribe(
    ({ before, after }) => jobKeyOf((after ?? before) as KubeObject),
    (key) => queue.add(key),
  );
  leases.subscribe(
    (change) => {
      if (change.after) reconciler.sawLease(keyOf(change.after), change.after);
      return isRenewalOnly(change) ? [] : [change.key];
    },
    (key) => queue.add(key),
  );
  for (const reflector of [jobs, pods, leases]) reflector.start();
  await Promise.all([jobs.synced, pods.synced, leases.synced]);
  queue.start();
  return {
    issuer,
    queue,
    jobs: jobs.store,
    stalenessMs: () => Math.max(...[jobs, pods, leases].map((reflector) => reflector.stalenessMs())),
    stop: async () => {
      await queue.drain(DRAIN_MS);
      await Promise.all([jobs.stop(), pods.stop(), leases.stop()]);
      await events.flush(EVENTS_FLUSH_MS);
    },
  };
}

/** Renewals arrive every few seconds per job: they move the observation, and concern the reconciler only by their absence. */
function isRenewalOnly({ before, after }: Change<Stored<RawLease>>): boolean {
  if (!before || !after) return false;
  const [old, now] = [readLease(before), readLease(after)];
  return old.holder === now.holder && old.generation === now.generation && old.report === now.report;
}
