/** One database's proxy in its own thread, as the main thread sees it (decision 6). */
import { once } from "node:events";
import { Worker } from "node:worker_threads";
import type { DatabaseAddress, FenceIdentity } from "../fence/database.ts";
import type { Permit } from "../lease/permit.ts";
import type { Clock } from "../platform/clock.ts";
import { Counters } from "./wire/counters.ts";
import type { FromWorker, ToWorker, WorkerData } from "./wire/worker.ts";

export interface WireParts {
  readonly listen: { readonly host: string; readonly port: number };
  readonly address: DatabaseAddress;
  readonly jobId: number;
  readonly identity: FenceIdentity;
  readonly permit: Permit;
  readonly drainMs: number;
  readonly clock: Clock;
  /** The database named another generation before the Lease did, or the thread died: ownership is over for this pod. */
  readonly lost: (why: string) => void;
}

export interface Wire {
  /** Messages of the application that were refused because its generation was over or unconfirmed. */
  rejectedWrites(): number;
  /** Refuses new connections, ends the open ones, ends the thread. */
  stop(): Promise<void>;
}

/** What the thread gets to end its sessions in, before it is ended itself. */
const STOP_MS_MAX = 5_000;

/** Resolves when the port is open; rejects with why it can not be (another process has it, say). */
export async function startWire(parts: WireParts): Promise<Wire> {
  const { permit, lost, listen, address, jobId, identity, drainMs, clock } = parts;
  const counters = new Counters();
  const workerData: WorkerData = {
    listen,
    address,
    jobId,
    identity,
    drainMs,
    permitMemory: permit.memory,
    countersMemory: counters.memory,
  };
  // In the image both are bundles beside each other; in a checkout Node runs the source.
  const entry = import.meta.url.endsWith(".ts") ? "./wire/worker.ts" : "./worker.js";
  const worker = new Worker(new URL(entry, import.meta.url), { workerData });
  const ended = once(worker, "exit");
  await listening(worker);
  let stopping = false;
  worker.on("message", (message: FromWorker) => {
    if (message.kind === "lost") lost(message.why);
  });
  worker.on("error", (error) => lost(`the proxy's thread failed: ${error.message}`));
  worker.on("exit", (code) => {
    if (!stopping) lost(`the proxy's thread ended with ${code}`);
  });
  return {
    rejectedWrites: () => {
      const { refusedLost, refusedUnconfirmed } = counters.read();
      return refusedLost + refusedUnconfirmed;
    },
    stop: async () => {
      stopping = true;
      worker.postMessage({ kind: "stop" } satisfies ToWorker);
      const late = clock.after(STOP_MS_MAX, () => void worker.terminate());
      await ended;
      late();
    },
  };
}

async function listening(worker: Worker): Promise<void> {
  const [message] = (await once(worker, "message")) as [FromWorker];
  if (message.kind === "listening") return;
  await worker.terminate();
  throw new Error(message.why);
}
