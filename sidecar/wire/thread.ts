/** Starts the wire of one database in its own thread, and speaks with it. */
import { Worker } from "node:worker_threads";
import type { DatabaseAddress } from "../../fence/database.ts";
import type { Witness } from "../../fence/witness.ts";
import type { Permit } from "../../lease/permit.ts";
import type { Logger } from "../../platform/log.ts";
import type { RaisedGeneration } from "./admission.ts";
import { Counters, type Counts } from "./counters.ts";
import type { WireError } from "./errors.ts";
import type { ListenAddress } from "./listen.ts";
import type { FromWorker, ToWorker, WorkerData } from "./worker.ts";

export interface WireOptions {
  readonly listen: ListenAddress;
  /** Further places, served alike. */
  readonly alsoListen?: readonly ListenAddress[];
  /** The thread reads it at each message. */
  readonly permit: Permit;
  readonly log: Logger;
  /** The first client is given its session. */
  readonly joined?: () => void;
  /** The database says that another generation owns the job, or the thread has died. */
  readonly lost: (why: string) => void;
  /** How long busy sessions may go on after the permit was lost. */
  readonly drainMs?: number;
  /** Aborted before it listens, the start is given up at once. */
  readonly signal?: AbortSignal;
}

export interface Wire {
  readonly port: number;
  /** The generation is raised in every database and the permit open: clients get sessions, those that wait, too (INV-4). */
  serve(raised: RaisedGeneration): void;
  /** It will never be served: clients are told why, those that wait, too. Nothing once it is served. */
  refuse(why: WireError): void;
  counts(): Counts;
  /** Messages of the application that were refused because ownership is over or cannot be confirmed. */
  rejectedWrites(): number;
  /** A heartbeat was confirmed: sessions are admitted only where it stands, and opened by the address that it was sent to. */
  confirmed(witness: Witness, address: DatabaseAddress): void;
  /** Refuses new connections and ends the open ones. */
  stop(): Promise<void>;
}

const DRAIN_MS = 2_000;

/** Resolves when it listens, and holds its clients from then on; throws when it cannot (port in use). */
export async function startWire(options: WireOptions): Promise<Wire> {
  const counters = new Counters();
  const workerData: WorkerData = {
    listen: options.listen,
    alsoListen: options.alsoListen ?? [],
    permitMemory: options.permit.memory,
    countersMemory: counters.memory,
    drainMs: options.drainMs ?? DRAIN_MS,
  };
  // In development the sources run as they are; in the bundle the thread's file lies beside the program's.
  const file = import.meta.url.endsWith(".ts") ? "./worker.ts" : "./worker.js";
  const worker = new Worker(new URL(file, import.meta.url), { workerData });
  const tell = (message: ToWorker): void => worker.postMessage(message);
  let stopping = false;
  const exited = new Promise<void>((resolve) => worker.once("exit", () => resolve()));
  const port = await listening(worker, options.signal);
  worker.on("message", (message: FromWorker) => {
    if (message.kind === "lost") options.lost(message.why);
    else if (message.kind === "joined") options.joined?.();
  });
  worker.on("error", (error) => options.log.error("the wire's thread failed", { error }));
  void exited.then(() => {
    // The application's sessions died with it; its memory must not go on under this generation (INV-7).
    if (!stopping) options.lost("the wire's thread ended");
  });
  return {
    port,
    serve: (raised) => tell({ kind: "serve", raised }),
    refuse: (why) => tell({ kind: "refuse", why }),
    counts: () => counters.read(),
    rejectedWrites: () => {
      const { refusedLost, refusedUnconfirmed } = counters.read();
      return refusedLost + refusedUnconfirmed;
    },
    confirmed: (witness, address) => tell({ kind: "witness", witness, address }),
    stop: async () => {
      if (!stopping) tell({ kind: "stop" });
      stopping = true;
      await exited;
    },
  };
}

function listening(worker: Worker, signal: AbortSignal | undefined): Promise<number> {
  const giveUp = (): void => void worker.terminate();
  if (signal?.aborted) giveUp();
  signal?.addEventListener("abort", giveUp, { once: true });
  const port = new Promise<number>((resolve, reject) => {
    const onExit = (): void => reject(new Error("the wire's thread ended before it listened"));
    worker.once("error", reject);
    worker.once("exit", onExit);
    worker.once("message", (message: FromWorker) => {
      worker.off("error", reject);
      worker.off("exit", onExit);
      if (message.kind === "listening") resolve(message.port);
      else reject(new Error(message.kind === "failed" ? message.why : "the wire's thread did not listen"));
    });
  });
  return port.finally(() => signal?.removeEventListener("abort", giveUp));
}
