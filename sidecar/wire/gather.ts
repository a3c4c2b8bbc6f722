/**
 * Buffers in which small writes are gathered into one, shared by all channels of the thread: a channel has one only
 * while it has something unsent, so that idle sessions cost no memory.
 */

/** Larger runs are written in pieces of it. */
const GATHER_BYTES = 32 * 1024;
/** Kept for the next use. */
const SPARE_MAX = 8;
/** Up to this length the view of a buffer's beginning is kept, as making one costs as much as copying. */
const VIEW_BYTES_MAX = 1024;

export class Gather {
  readonly #bytes = Buffer.allocUnsafeSlow(GATHER_BYTES);
  readonly #views: (Buffer | undefined)[] = [];
  #length = 0;

  get full(): boolean {
    return this.#length === GATHER_BYTES;
  }

  /** Takes as much of `bytes[start..end)` as there is room for; returns where the rest begins. */
  take(bytes: Buffer, start: number, end: number): number {
    const stop = Math.min(end, start + GATHER_BYTES - this.#length);
    bytes.copy(this.#bytes, this.#length, start, stop);
    this.#length += stop - start;
    return stop;
  }

  /** What was gathered. */
  view(): Buffer {
    const length = this.#length;
    if (length > VIEW_BYTES_MAX) return this.#bytes.subarray(0, length);
    const view = this.#views[length] ?? this.#bytes.subarray(0, length);
    this.#views[length] = view;
    return view;
  }

  clear(): void {
    this.#length = 0;
  }
}

const spares: Gather[] = [];

export const takeGather = (): Gather => spares.pop() ?? new Gather();

export function giveBack(gather: Gather): void {
  gather.clear();
  if (spares.length < SPARE_MAX) spares.push(gather);
}
