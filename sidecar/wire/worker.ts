/**
 * The wire's own thread (design, decision 6): the holder's renewals in the main thread never wait for bytes, and a
 * blocked loop here slows queries but cannot use a permit past its deadline.
 */
import { parentPort, workerData } from "node:worker_threads";
import type { DatabaseAddress } from "../../fence/database.ts";
import type { Witness } from "../../fence/witness.ts";
import { Permit } from "../../lease/permit.ts";
import { systemClock } from "../../platform/clock.ts";
import { jsonLogger } from "../../platform/log.ts";
import { systemRandom } from "../../platform/random.ts";
import type { RaisedGeneration } from "./admission.ts";
import { Counters } from "./counters.ts";
import type { WireError } from "./errors.ts";
import type { ListenAddress } from "./listen.ts";
import { type RunningProxy, startProxy } from "./proxy.ts";
import { fenceVerdict, isLoss, sayVerdict, type VerdictReader } from "./verdict.ts";

/** What the thread is started with. */
export interface WorkerData {
  readonly listen: ListenAddress;
  readonly alsoListen: readonly ListenAddress[];
  readonly permitMemory: SharedArrayBuffer;
  readonly countersMemory: SharedArrayBuffer;
  readonly drainMs: number;
}

/** From the main thread. */
export type ToWorker =
  | { readonly kind: "serve"; readonly raised: RaisedGeneration }
  | { readonly kind: "refuse"; readonly why: WireError }
  /** A heartbeat was confirmed. */
  | { readonly kind: "witness"; readonly witness: Witness; readonly address: DatabaseAddress }
  | { readonly kind: "stop" };

/** To the main thread. */
export type FromWorker =
  | { readonly kind: "listening"; readonly port: number }
  | { readonly kind: "failed"; readonly why: string }
  /** The first client is given its session. */
  | { readonly kind: "joined" }
  /** The fence row names another generation: PostgreSQL knew it before the Lease did. */
  | { readonly kind: "lost"; readonly why: string };

async function main(port: NonNullable<typeof parentPort>, data: WorkerData): Promise<void> {
  const told = new Set<FromWorker["kind"]>();
  const post = (message: FromWorker): void => port.postMessage(message);
  // However often a client comes, or is refused for a loss, which is final.
  const postOnce = (message: FromWorker): void => {
    if (!told.has(message.kind)) post(message);
    told.add(message.kind);
  };
  let witness: Witness | undefined;
  const confirmed = (): Witness | undefined => witness;
  /** By which the last heartbeat came there: a password may change under an owner. */
  let address: DatabaseAddress;
  let proxy: RunningProxy;
  try {
    proxy = await startProxy({
      listen: data.listen,
      alsoListen: data.alsoListen,
      drainMs: data.drainMs,
      permit: new Permit(data.permitMemory),
      counters: new Counters(data.countersMemory),
      joined: () => postOnce({ kind: "joined" }),
      clock: systemClock,
      random: systemRandom,
      log: jsonLogger((line) => process.stderr.write(line), systemClock.wall, { component: "wire" }),
    });
  } catch (error) {
    post({ kind: "failed", why: error instanceof Error ? error.message : String(error) });
    return;
  }
  const serve = (raised: RaisedGeneration): void => {
    witness = raised.witness;
    address = raised.address;
    const read = fenceVerdict(() => address, { ...raised, witness: confirmed }, systemClock);
    const verdict: VerdictReader = async (ended) => {
      const verdict = await read(ended);
      if (isLoss(verdict)) postOnce({ kind: "lost", why: sayVerdict(verdict) });
      return verdict;
    };
    proxy.serve({
      ...raised,
      get address() {
        return address;
      },
      confirmed,
      verdict,
    });
  };
  port.on("message", (message: ToWorker) => {
    if (message.kind === "serve") serve(message.raised);
    else if (message.kind === "refuse") proxy.refuse(message.why);
    else if (message.kind === "witness") ({ witness, address } = message);
    else void proxy.close().then(() => port.close());
  });
  post({ kind: "listening", port: proxy.port });
}

if (parentPort) await main(parentPort, workerData as WorkerData);
