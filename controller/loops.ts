/**
 * What watches and reconciles, over any connection: reflectors and an election in every controller, a queue in the one that
 * leads, and in those that stand by while the leader is silent, so that no takeover waits for an election (decision 27).
 *
 * A controller that stands by observes each Lease, too: an overdue owner is overdue for each of them.
 */
import { LeaseClient, type LeaseName } from "../lease/client.ts";
import { Election, type Term } from "../lease/election.ts";
import { type RawLease, readLease } from "../lease/record.ts";
import { assertElectionTiming, type LeaseTiming } from "../lease/timing.ts";
import type { Clock } from "../platform/clock.ts";
import type { HttpClient } from "../platform/http.ts";
import type { Logger } from "../platform/log.ts";
import { jitter, type Random } from "../platform/random.ts";
import { serverClock } from "../platform/serverclock.ts";
import type { FencedJob } from "./api/status.ts";
import { KubeApi, RESOURCES } from "./kube/api.ts";
import { EventRecorder } from "./kube/events.ts";
import { type KubeObject, keyOf } from "./kube/objects.ts";
import { WorkQueue } from "./kube/queue.ts";
import { Reflector } from "./kube/reflector.ts";
import type { Change } from "./kube/store.ts";
import { Memories } from "./memory.ts";
import type { SidecarImage } from "./pods.ts";
import { jobKeysOf, Reconciler } from "./reconciler.ts";
import { LeaseSight } from "./sight.ts";
import { JOB_LABEL, type RawPod } from "./snapshot.ts";
import { clientDuring } from "./term.ts";

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

/** Throws when its election could never begin: it would be ready, and do nothing. */
export function startLoops(connection: HttpClient, options: LoopOptions): Loops {
  assertElectionTiming(options.election.timing);
  const { random, log, namespace } = options;
  const { clock, over } = serverClock(options.clock);
  const client = over(connection);
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
  const memories = new Memories(clock);
  let queue: WorkQueue | null = null;
  let standing: WorkQueue | null = null;
  let obstacle: string | null = "the API server was not read yet";
  /** The first of what a controller needs and does not get. */
  const problem = (): string | null => {
    const unread = reflectors.find((reflector) => reflector.problem !== null)?.problem;
    return (obstacle && unread ? `${obstacle}: ${unread}` : obstacle) ?? election?.problem ?? null;
  };

  const subscribe = (): void => {
    const add = (key: string): void => queue?.add(key);
    jobs.subscribe(({ key }) => [key], add);
    pods.subscribe((change) => {
      const keys = jobKeysOf(change);
      const { before, after } = change;
      if (before && !after) for (const key of keys) memories.sawPodGo(key, before);
      return keys;
    }, add);
    leases.subscribe((change) => {
      if (change.after) memories.sawLease(keyOf(change.after), change.after);
      return isRenewalOnly(change) ? [] : [change.key];
    }, add);
  };

  /** Looks at what is overdue until this controller acts: then it has been overdue for it as long as for its predecessor. */
  const standBy = (): void => {
    if (stop.signal.aborted) return;
    const { watchOver } = new LeaseSight({ api, jobs: jobs.store, leases: leases.store, memories, clock });
    standing = new WorkQueue({ reconcile: watchOver, workers: 1, clock, random, log });
    queue = standing;
    for (const job of jobs.store.list()) standing.add(keyOf(job));
    standing.start();
  };

  const begin = (term: Term, issuer: string): WorkQueue => {
    const { reconcile } = new Reconciler({
      api: new KubeApi(clientDuring(term, client), clock, FIELD_MANAGER),
      jobs: jobs.store,
      pods: pods.store,
      leases: leases.store,
      events,
      memories,
      clock,
      log,
      sidecar: options.sidecar,
      issuer,
    });
    void standing?.drain(0);
    const mine = new WorkQueue({ reconcile, workers: options.workers, clock, random, log, counters });
    queue = mine;
    return mine;
  };

  const end = async (mine: WorkQueue, waitMs: number): Promise<void> => {
    standBy();
    const left = await mine.drain(waitMs);
    if (left.length) log.warn("a reconcile goes on behind the end of the term; it can write nothing", { left });
  };

  /**
   * A term begins with a list of everything: what the leader before had in mind is not known, and a watch that fell silent
   * while this controller stood by would now leave everybody blind. The list brings the queue every job.
   */
  const lead = (term: Term, issuer: string): ((orderly: boolean) => Promise<void>) => {
    const mine = begin(term, issuer);
    void Promise.all(reflectors.map((reflector) => reflector.refresh())).then(() => mine.start());
    return (orderly) => end(mine, orderly ? DRAIN_MS : 0);
  };

  /** Without a list: it may be over in a moment, and what would cost an owner its job is read anyway. */
  const deputize = (term: Term, issuer: string): (() => Promise<void>) => {
    const mine = begin(term, issuer);
    for (const job of jobs.store.list()) mine.add(keyOf(job));
    mine.start();
    return () => end(mine, 0);
  };

  const prepare = async (): Promise<Election> => {
    const issuer = await clusterIdentity(api, stop.signal, options, (problem) => {
      obstacle = problem;
    });
    obstacle = "not everything was read yet";
    subscribe();
    for (const reflector of reflectors) reflector.start();
    await Promise.all(reflectors.map(({ synced }) => synced));
    obstacle = null;
    standBy();
    log.info("the controller is ready", { issuer, jobs: jobs.store.size });
    return new Election({
      ...common,
      api: new LeaseClient(client, lease),
      lease,
      timing,
      me: { pod: pod.name, podUid: pod.uid, nonce: random.bytes(NONCE_BYTES).toString("hex") },
      lead: (term) => lead(term, issuer),
      deputize: (term) => deputize(term, issuer),
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
      await standing?.drain(0);
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
