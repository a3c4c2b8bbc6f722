/**
 * The permit: the sidecar's local permission to start protected work (INV-5).
 *
 * Does NOT make a late writer harmless: the fence in PostgreSQL does. The permit only stops a sidecar that cannot
 * confirm its ownership from starting more work.
 *
 * The holder's thread writes it, the wire's thread reads it at each message, through shared memory: a timer alone
 * would let a paused process act after its deadline.
 */

export type PermitState =
  /** Not raised yet: nothing may reach the database (INV-4). */
  | "closed"
  /** Raised, and the last confirmed renewal still covers the present moment. */
  | "valid"
  /** Raised, but no renewal was confirmed in time; valid again if a later one still finds us the holder. */
  | "unconfirmed"
  /** Another holder, another generation, or a missing Lease: over for good. */
  | "lost";

const CLOSED = 0;
const OPEN = 1;
const LOST = 2;

/** Bytes of the shared memory: the deadline (float64, monotonic ms) and the state (int32), padded. */
const PERMIT_BYTES = 16;

export class Permit {
  readonly memory: SharedArrayBuffer;
  readonly #deadline: Float64Array;
  readonly #state: Int32Array;

  /** Takes the memory of an existing permit (in another thread), or makes a closed one. */
  constructor(memory: SharedArrayBuffer = new SharedArrayBuffer(PERMIT_BYTES)) {
    this.memory = memory;
    this.#deadline = new Float64Array(memory, 0, 1);
    this.#state = new Int32Array(memory, 8, 1);
  }

  /** The state at `nowMs` (monotonic). Called at each message of the wire: no allocation. */
  state(nowMs: number): PermitState {
    const state = Atomics.load(this.#state, 0);
    if (state === LOST) return "lost";
    if (state === CLOSED) return "closed";
    return nowMs < (this.#deadline[0] ?? 0) ? "valid" : "unconfirmed";
  }

  /** The monotonic deadline in ms; 0 while nothing was confirmed. */
  deadlineMs(): number {
    return this.#deadline[0] ?? 0;
  }

  /** A renewal was confirmed: the permit reaches to `deadlineMs`, never back. */
  extend(deadlineMs: number): void {
    if (deadlineMs > (this.#deadline[0] ?? 0)) this.#deadline[0] = deadlineMs;
  }

  /** The raise has committed in every database: protected work may start. Not possible once lost. */
  open(): void {
    Atomics.compareExchange(this.#state, 0, CLOSED, OPEN);
  }

  /** Ownership is over for good (INV-6, INV-7). */
  lose(): void {
    Atomics.store(this.#state, 0, LOST);
  }
}
