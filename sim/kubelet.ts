/**
 * Kubelets: each pod of the API server becomes a process with the real `Sidecar` in it and an application behind that,
 * started by the startup probe, ended in the order that Kubernetes has for native sidecars.
 */
import { SIDECAR_NAME } from "../controller/snapshot.ts";
import { LeaseClient } from "../lease/client.ts";
import type { LastWords } from "../lease/report.ts";
import type { SidecarConfig } from "../lease/sidecarconfig.ts";
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
  #state: () => SidecarState = () => ({ started: false, state: "", generation: null, rejectedWrites: 0 });
  #stop = new AbortController();
  #sidecar: "starting" | "running" | "crashed" | "ended" = "starting";
  #lastWords: LastWords | null = null;
  #workMs: number;
  #workedSinceMs = 0;
  #endingSinceMs: number | null = null;
  #over = false;

  constructor(world: World, pod: Stored) {
    this.#world = world;
    this.name = pod.metadata.name;
    this.uid = pod.metadata.uid;
    this.#config = givenConfig({ spec: pod.spec });
    const random = streamOf(world.seed, `pod ${this.name}`);
    this.#workMs = world.workMs(random);
    this.process = this.#newProcess();
    const { scheduler } = world;
    scheduler.at(scheduler.nowMs + random.unit() * START_MS_MAX, () => this.#start());
    this.#tick();
  }

  get over(): boolean {
    return this.#over;
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
    const { apiServer, network, database, checks } = this.#world;
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
        credentials: () => ({
          ok: true,
          address: { host: "ledger", port: 5432, database: "ledger", user: "app", sslmode: "disable" },
        }),
        connect: connectTo(process, "ledger", network, database),
        probe: () => Promise.resolve(null),
      },
      startWire: (options) => {
        const wire = new ModelledWire(options, {
          process,
          place: "ledger",
          network,
          database,
          onMessage: (generation) => this.#world.guarded(() => checks.protectedMessage(this, generation)),
        });
        this.wires.push(wire);
        this.#world.guarded(() => checks.wireOpens(this, options.identity.generation, options.permit));
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
      if (!process.paused && this.#state().started && this.application === "no" && !this.#closes) {
        this.application = "running";
        this.#workedSinceMs = scheduler.nowMs;
        for (const wire of this.wires) wire.open();
      }
      scheduler.at(scheduler.nowMs + PROBE_MS, probe);
    };
    scheduler.at(scheduler.nowMs + PROBE_MS, probe);
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
    const worked = scheduler.nowMs - this.#workedSinceMs;
    if (this.application === "running" && !this.process.paused && worked > this.#workMs) {
      this.application = "succeeded";
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
    if (JSON.stringify(status) === JSON.stringify(pod.status)) return;
    this.#world.apiServer.put("pods", { ...pod, status });
    if (this.application === "succeeded" && finished) this.#world.checks.succeeded.add(this.uid);
    if (finished) this.#over = true;
  }
}
