/** Starts the wire of one database in its own thread, and speaks with it. */
import { Worker } from "node:worker_threads";
import type { DatabaseAddress, FenceIdentity } from "../../fence/database.ts";
import type { Witness } from "../../fence/witness.ts";
import type { Permit } from "../../lease/permit.ts";
import type { Logger } from "../../platform/log.ts";
import { Counters, type Counts } from "./counters.ts";
import type { ListenAddress } from "./listen.ts";
import type { FromWorker, ToWorker, WorkerData } from "./worker.ts";

export interface WireOptions {
  readonly listen: ListenAddress;
  /** Further places, served alike. */
  readonly alsoListen?: readonly ListenAddress[];
  readonly address: DatabaseAddress;
  readonly jobId: number;
  /** History in which the generation was raised. */
  readonly incarnation: string;
  readonly identity: FenceIdentity;
  /** Of the raise; absent where no heartbeats are kept. */
  readonly witness?: Witness;
  /** The thread reads it at each message; connections wait while it is closed (INV-4). */
  readonly permit: Permit;
  readonly log: Logger;
  /** The database says that another generation owns the job, or the thread has died. */
  readonly lost: (why: string) => void;
  /** How long busy sessions may go on after the permit was lost. */
  readonly drainMs?: number;
}

export interface Wire {
  readonly port: number;
  counts(): Counts;
  /** Messages of the application that were refused because ownership is over or cannot be confirmed. */
  rejectedWrites(): number;
  /** A heartbeat was confirmed: sessions are admitted only where it stands. */
  confirmed(witness: Witness): void;
  /** Refuses new connections and ends the open ones. */
  stop(): Promise<void>;
}

const DRAIN_MS = 2_000;

/** Resolves when it listens; throws when it cannot (port in use). */
export async function startWire(options: WireOptions): Promise<Wire> {
  const counters = new Counters();
  const workerData: WorkerData = {
    listen: options.listen,
    alsoListen: options.alsoListen ?? [],
    address: options.address,
    jobId: options.jobId,
    incarnation: options.incarnation,
    witness: options.witness,
    identity: options.identity,
    permitMemory: options.permit.memory,
    countersMemory: counters.memory,
    drainMs: options.drainMs ?? DRAIN_MS,
  };
  // In development the sources run as they are; in the bundle the thread's file lies beside the program's.
  const file = import.meta.url.endsWith(".ts") ? "./worker.ts" : "./worker.js";
  const worker = new Worker(new URL(file, import.meta.url), { workerData });
  let stopping = false;
  const exited = new Promise<void>((resolve) => worker.once("exit", () => resolve()));
  const port = await listening(worker);
  worker.on("message", (message: FromWorker) => {
    if (message.kind === "lost") options.lost(message.why);
  });
  worker.on("error", (error) => options.log.error("the wire's thread failed", { error }));
  void exited.then(() => {
    // The application's sessions died with it; its memory must not go on under this generation (INV-7).
    if (!stopping) options.lost("the wire's thread ended");
  });
  return {
    port,
    counts: () => counters.read(),
    rejectedWrites: () => {
      const { refusedLost, refusedUnconfirmed } = counters.read();
      return refusedLost + refusedUnconfirmed;
    },
    confirmed: (witness) => worker.postMessage({ kind: "witness", witness } satisfies ToWorker),
    stop: async () => {
      if (!stopping) worker.postMessage({ kind: "stop" } satisfies ToWorker);
      stopping = true;
      await exited;
    },
  };
}

function listening(worker: Worker): Promise<number> {
  return new Promise((resolve, reject) => {
    const onExit = (): void => reject(new Error("the wire's thread ended before it listened"));
    worker.once("error", reject);
    worker.once("exit", onExit);
    worker.once("message", (message: FromWorker) => {
      worker.off("error", reject);
      worker.off("exit", onExit);
      if (message.kind === "listening") resolve(message.port);
      else reject(new Error(message.why));
    });
  });
}
