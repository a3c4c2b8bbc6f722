/**
 * One heartbeat of an owner in a database: over a fresh connection by name, so that it meets whatever server the name leads to
 * now; compares history, row and the pair that it wrote last, and writes the next one.
 *
 * Does NOT notice a rollback to a time behind the last heartbeat: that much of its own writes an owner can lose in silence
 * when a volume is set back while it runs.
 */
import type { Clock } from "../platform/clock.ts";
import { type Connect, onDatabase } from "./connection.ts";
import type { DatabaseAddress, FenceIdentity } from "./database.ts";

/** What the owner wrote last, as far as he knows: of the raise, counter 0 and its nonce. */
export interface Witness {
  readonly counter: number;
  readonly nonce: string;
}

export interface BeatOptions {
  readonly jobId: number;
  /** History that the raise was answered from. */
  readonly incarnation: string;
  readonly witness: Witness;
  /** Random; the same again as long as no answer came, for the attempt before may have been written. */
  readonly next: string;
  readonly timeoutMs: number;
  readonly clock: Clock;
  readonly signal?: AbortSignal;
  readonly connect?: Connect | undefined;
}

/** Returns the pair that stands there now. Throws FenceErrors: LF001 and LF003 are loss, all others say nothing about it. */
export async function beat(address: DatabaseAddress, identity: FenceIdentity, options: BeatOptions): Promise<Witness> {
  const { jobId, incarnation, witness, next } = options;
  const { generation, holder } = identity;
  await onDatabase(address, { ...options, doing: "heartbeat" }, async (client) => {
    // Whatever the role has as its defaults.
    await client.query("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");
    await client.query("SELECT fence.beat($1, $2, $3, $4, $5, $6, $7)", [
      ...[jobId, generation, holder, incarnation],
      ...[witness.counter, witness.nonce, next],
    ]);
    await client.query("COMMIT");
  });
  return { counter: witness.counter + 1, nonce: next };
}
