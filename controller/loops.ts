/**
 * What watches and reconciles, over any connection: reflectors and an election in every controller, a queue in the one
 * that leads.
 *
 * A controller that stands by observes each Lease, too: when it is elected, an overdue owner has been overdue for it as
 * long as for its predecessor.
 */
import { LeaseClient, type LeaseName } from "../lease/client.ts";
import { Election, type Term } from "../lease/election.ts";
import { type RawLease, readLease } from "../lease/record.ts";
import type { LeaseTiming } from "../lease/timing.ts";
import type { Clock } from "../platform/clock.ts";
import type { HttpClient } from "../platform/http.ts";
import type { Logger } from "../platform/log.ts";
import { jitter, type Random } from "../platform/random.ts";
import type { FencedJob } from "./api/status.ts";
import { KubeApi, RESOURCES } from "./kube/api.ts";
import { EventRecorder } from "./kube/events.ts";
import { type KubeObject, keyOf } from "./kube/objects.ts";
import { WorkQueue } from "./kube/queue.ts";
import { Reflector } from "./kube/reflector.ts";
import type { Change } from "./kube/store.ts";
import { leadersClient } from "./leading.ts";
import type { SidecarImage } from "./pods.ts";
import { jobKeyOf, Reconciler } from "./reconciler.ts";
import { JOB_LABEL, type RawPod } from "./snapshot.ts";

export interface ElectionOptions {
  /** Where the controllers of one installation meet. */
  readonly lease: LeaseName;
  readonly timing: LeaseTiming;
  /** The pod of this process. */
  readonly pod: { readonly name: string; readonly uid: string };
}

export interface LoopOptions {
  readonly sidecar: SidecarImage;
  /** Only this namespace; all of them without it. */
  readonly namespace?: string;
  readonly workers: number;
  readonly election: ElectionOptions;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Logger;
}

export interface Loops {
  /** Resolves when everything was read once and this controller may be elected; rejects if it is stopped before. */
  readonly synced: Promise<void>;
  /** Of all its terms. */
  readonly counters: WorkQueue["counters"];
  leads(): boolean;
  jobs(): number;
  /** Keys that wait for a worker. */
  depth(): number;
  /** Infinite before everything was read once. */
  stalenessMs(): number;
  /** What keeps this controller from being of use, for people. */
  problem(): string | null;
  /** Ends what runs, gives the leadership back, says what is left to say. */
  stop(): Promise<void>;
}

const FIELD_MANAGER = "fencedjob-controller";
const NONCE_BYTES = 8;
const DRAIN_MS = 5_000;
const EVENTS_FLUSH_MS = 2_000;
const START_RETRY_MS = { min: 500, max: 10_000 };

type Stored<T> = T & KubeObject;

export function startLoops(client: HttpClient, options: LoopOptions): Loops {
  const { clock, random, log, namespace } = options;
  const { pod, lease, timing } = options.election;
  const api = new KubeApi(client, clock, FIELD_MANAGER);
  const common = { api, clock, random, log };
  const selection = namespace === undefined ? {} : { namespace };
  const ofJobs = { ...selection, labelSelector: JOB_LABEL };
  const jobs = new Reflector<Stored<FencedJob>>({ ...common, resource: RESOURCES.fencedJobs, selection });
  const pods = new Reflector<Stored<RawPod>>({
    ...common,
    resource: RESOURCES.pods,
    selection: ofJobs,
    indexers: {
      job: (pod) => (pod.metadata.ownerReferences ?? []).filter(({ controller }) => controller).map(({ uid }) => uid),
    },
  });
  const leases = new Reflector<Stored<RawLease>>({ ...common, resource: RESOURCES.leases, selection: ofJobs });
  const reflectors = [jobs, pods, leases];
  const events = new EventRecorder({ ...common, controller: "fencedjob.dev/controller", instance: pod.name });
  const counters = { runs: 0, failures: 0, conflicts: 0 };
  const stop = new AbortController();
  let election: Election | undefined;
  let queue: WorkQueue | null = null;
  let term: Term | null = null;
  let obstacle: string | null = "the API server was not read yet";
  /** The first of what a controller needs and does not get. */
  const problem = (): string | null => {
    const unread = reflectors.find((reflector) => reflector.problem !== null)?.problem;
    return (obstacle && unread ? `${obstacle}: ${unread}` : obstacle) ?? election?.problem ?? null;
  };

  const subscribe = (reconciler: Reconciler): void => {
    const add = (key: string): void => {
      if (queue) queue.add(key);
      // Whoever stands by remembers Leases: of a job that is gone, a reconcile does nothing but to forget.
      else if (!jobs.store.get(key)) void reconciler.reconcile(key);
    };
    jobs.subscribe(({ key }) => [key], add);
    pods.subscribe(({ before, after }) => jobKeyOf((after ?? before) as KubeObject), add);
    leases.subscribe((change) => {
      if (change.after) reconciler.sawLease(keyOf(change.after), change.after);
      return isRenewalOnly(change) ? [] : [change.key];
    }, add);
  };

  /**
   * A term begins with a list of everything: what the leader before had in mind is not known, and a watch that fell silent
   * while this controller stood by would now leave everybody blind. The list brings the queue every job.
   */
  const lead = ({ reconcile }: Reconciler, present: Term): ((orderly: boolean) => Promise<void>) => {
    const mine = new WorkQueue({ reconcile, workers: options.workers, clock, random, log, counters });
    term = present;
    queue = mine;
    void Promise.all(reflectors.map((reflector) => reflector.refresh())).then(() => mine.start());
    return async (orderly) => {
      queue = null;
      const left = await mine.drain(orderly ? DRAIN_MS : 0);
      term = null;
      if (left.length) log.warn("a reconcile goes on behind the end of the term; it can write nothing", { left });
    };
  };

  const prepare = async (): Promise<Election> => {
    const issuer = await clusterIdentity(api, stop.signal, options, (problem) => {
      obstacle = problem;
    });
    obstacle = "not everything was read yet";
    const reconciler = new Reconciler({
      api: new KubeApi(
        leadersClient(client, () => term),
        clock,
        FIELD_MANAGER,
      ),
      jobs: jobs.store,
      pods: pods.store,
      leases: leases.store,
      events,
      clock,
      log,
      sidecar: options.sidecar,
      issuer,
    });
    subscribe(reconciler);
    for (const reflector of reflectors) reflector.start();
    await Promise.all(reflectors.map(({ synced }) => synced));
    obstacle = null;
    log.info("the controller is ready", { issuer, jobs: jobs.store.size });
    return new Election({
      ...common,
      api: new LeaseClient(client, lease),
      lease,
      timing,
      me: { pod: pod.name, podUid: pod.uid, nonce: random.bytes(NONCE_BYTES).toString("hex") },
      lead: (present) => lead(reconciler, present),
    });
  };

  const synced = prepare().then((prepared) => {
    election = prepared;
    if (!stop.signal.aborted) election.start();
  });
  synced.catch(() => {});
  return {
    synced,
    counters,
    leads: () => election?.leads() ?? false,
    jobs: () => jobs.store.size,
    depth: () => queue?.depth().ready ?? 0,
    stalenessMs: () => Math.max(...reflectors.map((reflector) => reflector.stalenessMs())),
    problem,
    stop: async () => {
      stop.abort(new Error("the controller ends"));
      await election?.stop();
      await Promise.all(reflectors.map((reflector) => reflector.stop()));
      await events.flush(EVENTS_FLUSH_MS);
    },
  };
}

/** The UID of kube-system: generations of two clusters on one fence name must be told apart (ForeignIssuer). */
async function clusterIdentity(
  api: KubeApi,
  signal: AbortSignal,
  { clock, random, log }: Pick<LoopOptions, "clock" | "random" | "log">,
  tell: (obstacle: string) => void,
): Promise<string> {
  for (let attempt = 0; ; attempt++) {
    try {
      const { metadata } = await api.get<KubeObject>(RESOURCES.namespaces, { name: "kube-system" }, { signal });
      return metadata.uid ?? "";
    } catch (error) {
      signal.throwIfAborted();
      log.error("the cluster cannot be identified; it is tried again, and nothing is done before", { error });
      tell(`the cluster cannot be identified: ${error instanceof Error ? error.message : error}`);
      const { min, max } = START_RETRY_MS;
      await clock.sleep(jitter(random, Math.min(max, min * 2 ** attempt)), signal);
    }
  }
}

/** Renewals arrive every few seconds per job: they move the observation, and concern the reconciler only by their absence. */
function isRenewalOnly({ before, after }: Change<Stored<RawLease>>): boolean {
  if (!before || !after) return false;
  const [old, now] = [readLease(before), readLease(after)];
  return old.holder === now.holder && old.generation === now.generation && old.report === now.report;
}
