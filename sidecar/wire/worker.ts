/**
 * The wire's own thread (design, decision 6): the holder's renewals in the main thread never wait for bytes, and a
 * blocked loop here slows queries but cannot use a permit past its deadline.
 */
import { parentPort, workerData } from "node:worker_threads";
import type { DatabaseAddress, FenceIdentity } from "../../fence/database.ts";
import type { Witness } from "../../fence/witness.ts";
import { Permit } from "../../lease/permit.ts";
import { systemClock } from "../../platform/clock.ts";
import { jsonLogger } from "../../platform/log.ts";
import { systemRandom } from "../../platform/random.ts";
import { Counters } from "./counters.ts";
import type { ListenAddress } from "./listen.ts";
import { type RunningProxy, startProxy } from "./proxy.ts";
import { fenceVerdict, isLoss, sayVerdict } from "./verdict.ts";

/** What the thread is started with. */
export interface WorkerData {
  readonly listen: ListenAddress;
  readonly alsoListen: readonly ListenAddress[];
  readonly address: DatabaseAddress;
  readonly jobId: number;
  readonly incarnation: string;
  readonly witness: Witness | undefined;
  readonly identity: FenceIdentity;
  readonly permitMemory: SharedArrayBuffer;
  readonly countersMemory: SharedArrayBuffer;
  readonly drainMs: number;
}

/** From the main thread. */
export type ToWorker =
  | { readonly kind: "stop" }
  /** A heartbeat was confirmed. */
  | { readonly kind: "witness"; readonly witness: Witness };

/** To the main thread. */
export type FromWorker =
  | { readonly kind: "listening"; readonly port: number }
  | { readonly kind: "failed"; readonly why: string }
  /** The fence row names another generation: PostgreSQL knew it before the Lease did. */
  | { readonly kind: "lost"; readonly why: string };

async function main(port: NonNullable<typeof parentPort>, data: WorkerData): Promise<void> {
  const post = (message: FromWorker): void => port.postMessage(message);
  let { witness } = data;
  const confirmed = (): Witness | undefined => witness;
  const read = fenceVerdict(data.address, { ...data, witness: confirmed }, systemClock);
  let proxy: RunningProxy;
  try {
    proxy = await startProxy({
      listen: data.listen,
      alsoListen: data.alsoListen,
      address: data.address,
      jobId: data.jobId,
      incarnation: data.incarnation,
      identity: data.identity,
      witness: confirmed,
      drainMs: data.drainMs,
      permit: new Permit(data.permitMemory),
      counters: new Counters(data.countersMemory),
      clock: systemClock,
      random: systemRandom,
      log: jsonLogger((line) => process.stderr.write(line), systemClock.wall, { component: "wire" }),
      verdict: async (ended) => {
        const verdict = await read(ended);
        if (isLoss(verdict)) post({ kind: "lost", why: sayVerdict(verdict) });
        return verdict;
      },
    });
  } catch (error) {
    post({ kind: "failed", why: error instanceof Error ? error.message : String(error) });
    return;
  }
  port.on("message", (message: ToWorker) => {
    if (message.kind === "witness") witness = message.witness;
    else void proxy.close().then(() => port.close());
  });
  post({ kind: "listening", port: proxy.port });
}

if (parentPort) await main(parentPort, workerData as WorkerData);
