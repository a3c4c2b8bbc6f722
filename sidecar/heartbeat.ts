/**
 * The owner's heartbeat in one database: notices that the name leads to another server, or that the database was set back,
 * while no session of the application has asked (INV-7, B18).
 *
 * Does NOT take a database that cannot be reached for a loss: the owner stays the owner, and is told of it.
 */
import type { Connect } from "../fence/connection.ts";
import type { DatabaseAddress, FenceIdentity } from "../fence/database.ts";
import { type FenceError, toFenceError } from "../fence/errors.ts";
import { beat, type Witness } from "../fence/witness.ts";
import type { Clock } from "../platform/clock.ts";
import type { Logger } from "../platform/log.ts";
import { jitter, type Random } from "../platform/random.ts";
import type { RaisedDatabase } from "./raiser.ts";

export interface HeartbeatParts {
  readonly one: RaisedDatabase;
  /** By the address that leads there now. */
  readonly reach: <T>(use: (address: DatabaseAddress) => Promise<T>) => Promise<T>;
  readonly identity: FenceIdentity;
  readonly intervalMs: number;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Logger;
  readonly connect: Connect;
  /** The pair stands in the database: no session is admitted any more where it does not. `address` led there. */
  readonly confirmed: (witness: Witness, address: DatabaseAddress) => void;
  /** This generation cannot go on there. */
  readonly lost: (why: string) => void;
  /** It has failed for a while … */
  readonly failed: (error: FenceError) => void;
  /** … and does not any more. */
  readonly mended: () => void;
}

const NONCE_BYTES = 16;
const BEAT_MS_MAX = 5_000;
/** A restart of the server is not worth a condition. */
const TOLD_AFTER_MS = 10_000;

/** Until `signal` aborts or the generation is lost there. */
export async function keepBeating(parts: HeartbeatParts, signal: AbortSignal): Promise<void> {
  const { one, identity, intervalMs, clock, random, log, connect } = parts;
  const { raised, database } = one;
  const { jobId, incarnation } = raised;
  let { witness } = raised;
  let next = newNonce(random);
  let failingSinceMs: number | undefined;
  for (;;) {
    await clock.sleep(jitter(random, intervalMs), signal).catch(() => {});
    if (signal.aborted) return;
    const sentAtMs = clock.monoMs();
    let { address } = one;
    try {
      const options = { jobId, incarnation, witness, next, timeoutMs: BEAT_MS_MAX, clock, signal, connect };
      witness = await parts.reach((to) => {
        address = to;
        return beat(to, identity, options);
      });
    } catch (error) {
      if (signal.aborted) return;
      const failure = toFenceError(error, address, "heartbeat");
      const { code, message, detail } = failure;
      if (code === "LF001" || code === "LF003") return parts.lost([message, detail].filter(Boolean).join(" "));
      log.warn("no heartbeat in the database", { database: database.name, code, message, detail });
      failingSinceMs ??= sentAtMs;
      if (clock.monoMs() - failingSinceMs >= TOLD_AFTER_MS) parts.failed(failure);
      continue;
    }
    next = newNonce(random);
    parts.confirmed(witness, address);
    if (failingSinceMs !== undefined) parts.mended();
    failingSinceMs = undefined;
  }
}

const newNonce = (random: Random): string => random.bytes(NONCE_BYTES).toString("hex");
