/**
 * Kubelets: each pod of the API server becomes a process with the real `Sidecar` in it and an application behind that,
 * started by the startup probe, ended in the order that Kubernetes has for native sidecars.
 */
import { SIDECAR_NAME } from "../controller/snapshot.ts";
import { LeaseClient } from "../lease/client.ts";
import type { LastWords } from "../lease/report.ts";
import type { SidecarConfig, SidecarDatabase } from "../lease/sidecarconfig.ts";
import type { SidecarState } from "../sidecar/http.ts";
import { Sidecar } from "../sidecar/sidecar.ts";
import { givenConfig } from "../testing/givenconfig.ts";
import type { Stored } from "./apiserver.ts";
import { kubeClient } from "./kubeclient.ts";
import { newProcess, type Process, streamOf } from "./process.ts";
import { connectTo } from "./sqlclient.ts";
import { ModelledWire } from "./wire.ts";
import type { World } from "./world.ts";

const PROBE_MS = 1_000;
const LOOK_MS = 400;
const START_MS_MAX = 1_500;
const GRACE_MS = 30_000;
/** What an application that was asked to end takes. */
const FAREWELL_MS_MAX = 3_000;
const RESTART_MS = 2_000;
/** In each database, at more than one a second. */
const WORK_MIN = 5;
const WORK_MAX = 110;
/** Of the applications: those that do not wait for their first connection without bound. */
const HASTY_SHARE = 0.2;
/** Of the applications: those that end by the clock, once they have written something at all. */
const HEEDLESS_SHARE = 0.1;
const GIVES_UP_MS_MAX = 80_000;
/** In some histories the first pods' applications fail at their work, one behind the other. */
const FRAIL_SHARE = 0.7;
const FRAIL_PODS = 5;

type Application = "no" | "running" | "succeeded" | "failed";

export class PodRuntime {
  readonly name: string;
  readonly uid: string;
  process: Process;
  application: Application = "no";
  /** The node is cut off or dead: nothing of the pod is told any more. */
  silent = false;
  readonly wires: ModelledWire[] = [];
  #world: World;
  /** As the controller has written it into the pod. */
  readonly #config: SidecarConfig;
  #state: () => SidecarState = () => ({ started: false, state: "", generation: null, rejectedWrites: 0, held: 0 });
  #stop = new AbortController();
  #sidecar: "starting" | "running" | "crashed" | "ended" = "starting";
  #lastWords: LastWords | null = null;
  /** What the API server was told last: it says so as long as nobody has set it back. */
  #told: { readonly looks: string; readonly status: object } | undefined;
  /** Commits that each database has to confirm. */
  readonly #work: number;
  /** After so long it takes its work for done; most never do. */
  readonly #heedlessMs: number;
  /** One that is started early may end before it has had a session. */
  readonly #patienceMs: number;
  readonly #frail: boolean;
  #startedMs = 0;
  #endingSinceMs: number | null = null;
  #over = false;

  constructor(world: World, pod: Stored) {
    this.#world = world;
    this.name = pod.metadata.name;
    this.uid = pod.metadata.uid;
    this.#config = givenConfig({ spec: pod.spec });
    const random = streamOf(world.seed, `pod ${this.name}`);
    const drawMs = (share: number): number =>
      random.unit() < share ? random.unit() * GIVES_UP_MS_MAX : Number.POSITIVE_INFINITY;
    this.#work = WORK_MIN + Math.floor(random.unit() * (WORK_MAX - WORK_MIN));
    this.#patienceMs = drawMs(HASTY_SHARE);
    this.#heedlessMs = drawMs(HEEDLESS_SHARE);
    this.#frail = world.frail && world.pods.size < FRAIL_PODS && random.unit() < FRAIL_SHARE;
    this.process = this.#newProcess();
    const { scheduler } = world;
    scheduler.at(scheduler.nowMs + random.unit() * START_MS_MAX, () => this.#start());
    this.#tick();
  }

  get over(): boolean {
    return this.#over;
  }

  /** Of the spec that it was made from. */
  get databases(): string[] {
    return this.#config.databases.map(({ name }) => name);
  }

  /** It was granted nothing yet. */
  get waits(): boolean {
    return this.#sidecar === "running" && this.#state().generation === null;
  }

  /** It has no application: its one container is the sidecar. */
  get #closes(): boolean {
    return this.#config.purpose === "close";
  }

  /** The sidecar's process ends without a word, and is started again in place. */
  crashSidecar(): void {
    if (this.#sidecar !== "running") return;
    this.process.kill();
    this.wires.length = 0;
    this.#sidecar = "crashed";
    const { scheduler } = this.#world;
    scheduler.at(scheduler.nowMs + RESTART_MS, () => {
      if (this.#over || this.#sidecar !== "crashed") return;
      this.process = this.#newProcess();
      this.#start();
    });
  }

  /** Out of memory, or a bug: the application has failed. */
  failApplication(): void {
    if (this.application === "running") this.application = "failed";
  }

  /** Everything of it stops for good: the machine is gone. */
  die(): void {
    this.process.vanish();
    this.silent = true;
    this.#over = true;
  }

  #newProcess(): Process {
    return newProcess(`${this.uid}.${this.#world.nextLife()}`, this.#world);
  }

  #start(): void {
    if (this.#over) return;
    const { process } = this;
    const { apiServer, network, checks } = this.#world;
    this.#sidecar = "running";
    this.#stop = new AbortController();
    const sidecar = new Sidecar({
      config: this.#config,
      pod: { name: this.name, uid: this.uid },
      api: new LeaseClient(kubeClient(process, apiServer, network), { namespace: "n", name: this.#config.job }),
      clock: process.clock,
      random: process.random,
      log: this.#world.loggerOf(process),
      databases: {
        credentials: (dir) => ({
          ok: true,
          address: {
            host: this.#databaseOf({ dir }).name,
            port: 5432,
            database: "app",
            user: "app",
            sslmode: "disable",
          },
        }),
        connect: (address, ...rest) =>
          connectTo(process, address.host, network, this.#world.database(address.host))(address, ...rest),
        probe: () => Promise.resolve(null),
      },
      startWire: (options) => {
        const { name } = this.#databaseOf({ port: options.listen.port });
        const wire = new ModelledWire(options, {
          process,
          place: name,
          network,
          database: this.#world.database(name),
          onServe: (generation) => this.#world.guarded(() => checks.wireServes(this, generation, options.permit)),
          onMessage: (generation) => this.#world.guarded(() => checks.protectedMessage(this, generation)),
        });
        this.wires.push(wire);
        if (this.application === "running") wire.open();
        return Promise.resolve(wire);
      },
      startServer: ({ state }) => {
        this.#state = state;
        return Promise.resolve({ stop: () => Promise.resolve() });
      },
      leaveLastWords: (words) => {
        this.#lastWords = words;
      },
    });
    void sidecar.run(this.#stop.signal).then(
      () => {
        if (process !== this.process || !process.alive) return;
        this.#sidecar = "ended";
        if (this.#closes && !sidecar.closed) this.application = "failed";
      },
      (error: unknown) => this.#world.broke(`${this.name}: the sidecar threw`, error),
    );
    const { scheduler } = this.#world;
    const probe = (): void => {
      if (this.#over || process !== this.process || !process.alive) return;
      if (this.application !== "no" || this.#closes) return;
      if (process.paused || !this.#state().started) {
        scheduler.at(scheduler.nowMs + PROBE_MS, probe);
        return;
      }
      this.application = "running";
      this.#startedMs = scheduler.nowMs;
      for (const wire of this.wires) wire.open();
    };
    scheduler.at(scheduler.nowMs + PROBE_MS, probe);
  }

  #databaseOf(by: Partial<SidecarDatabase>): SidecarDatabase {
    const { databases, closes = [] } = this.#config;
    const found = [...databases, ...closes].find(({ dir, port }) => dir === by.dir || port === by.port);
    if (!found) throw new Error(`${this.name} has no database ${JSON.stringify(by)}`);
    return found;
  }

  /** What the kubelet looks at, again and again. */
  #tick(): void {
    const { scheduler } = this.#world;
    if (this.#over) return;
    this.#look();
    if (!this.#over) scheduler.at(scheduler.nowMs + LOOK_MS, () => this.#tick());
  }

  #look(): void {
    if (this.silent) return;
    const { scheduler, apiServer } = this.#world;
    const pod = apiServer.get("pods", this.name);
    // Taken away by force, or the etcd was restored to a time before it: kubelets end what they do not find.
    if (pod?.metadata.uid !== this.uid) {
      this.process.kill();
      this.#over = true;
      return;
    }
    if (this.application === "running" && !this.process.paused) {
      if (this.#frail && this.#commits > 0) this.application = "failed";
      else if (this.#hasDone()) this.application = "succeeded";
    }
    const leaves = pod.metadata.deletionTimestamp !== undefined;
    if (leaves && this.#endingSinceMs === null) this.#endingSinceMs = scheduler.nowMs;
    const endingMs = this.#endingSinceMs === null ? 0 : scheduler.nowMs - this.#endingSinceMs;
    if (leaves && this.application === "running" && endingMs > FAREWELL_MS_MAX) this.application = "failed";
    const done =
      (this.#closes && this.#sidecar === "ended") ||
      this.application === "succeeded" ||
      this.application === "failed" ||
      (leaves && this.application === "no");
    if (done) this.#endSidecar(leaves, endingMs);
    this.#tell(pod);
  }

  /**
   * All that it had to write was confirmed, or it has lost its patience. Not by the clock alone: an owner that can never write would
   * else be as good as one that can, and nobody would miss its successor (INV-11).
   */
  #hasDone(): boolean {
    const forMs = this.#world.scheduler.nowMs - this.#startedMs;
    const isEarly = this.#config.application === "Started";
    if (isEarly && this.wires.some((wire) => wire.counts().sessionsTotal > 0)) this.#world.checks.served.add(this.uid);
    if (isEarly && !this.#world.checks.served.has(this.uid)) return forMs > this.#patienceMs;
    return this.#commits >= this.#work || (this.#commits > 0 && forMs > this.#heedlessMs);
  }

  /** In each database, told to the application; none behind a sidecar that was restarted in place. */
  get #commits(): number {
    return this.wires.length > 0 ? Math.min(...this.wires.map((wire) => wire.commits)) : 0;
  }

  #endSidecar(leaves: boolean, endingMs: number): void {
    const { scheduler, apiServer } = this.#world;
    if (this.#endingSinceMs === null) this.#endingSinceMs = scheduler.nowMs;
    if (!this.#stop.signal.aborted) this.#stop.abort(new Error("SIGTERM"));
    if (this.#sidecar !== "ended" && this.#sidecar !== "crashed" && endingMs < GRACE_MS) return;
    this.process.kill();
    this.#sidecar = "ended";
    if (!leaves) return;
    this.#over = true;
    apiServer.remove("pods", this.name);
  }

  #tell(pod: Stored): void {
    if (this.#over) return;
    const finished =
      this.#sidecar === "ended" && (this.#closes || this.application === "succeeded" || this.application === "failed");
    const phase = finished
      ? this.application === "failed"
        ? "Failed"
        : "Succeeded"
      : this.#sidecar === "starting"
        ? "Pending"
        : "Running";
    const words = this.#lastWords ? JSON.stringify(this.#lastWords) : undefined;
    const looks = `${phase} ${this.#sidecar} ${this.application} ${words}`;
    if (this.#told?.looks === looks && this.#told.status === pod.status) return;
    const terminated = { terminated: { exitCode: 0, ...(words && { message: words }) } };
    const sidecarState = {
      starting: { waiting: {} },
      running: { running: {} },
      crashed: terminated,
      ended: terminated,
    };
    const exitCode = this.application === "failed" ? 1 : 0;
    const ended = this.application === "succeeded" || this.application === "failed";
    const containerStatuses =
      this.application === "no" ? [] : [{ name: "app", state: ended ? { terminated: { exitCode } } : { running: {} } }];
    const status = {
      phase,
      initContainerStatuses: [{ name: SIDECAR_NAME, state: sidecarState[this.#sidecar] }],
      containerStatuses,
    };
    this.#told = { looks, status };
    this.#world.apiServer.put("pods", { ...pod, status });
    if (this.application === "succeeded" && finished) this.#world.checks.succeeded.add(this.uid);
    if (finished) this.#over = true;
  }
}
