/** Counts of the wire in shared memory: its thread writes them, the sidecar's main thread reads them at any time. */

const NAMES = ["sessionsOpen", "sessionsTotal", "messages", "refusedLost", "refusedUnconfirmed", "held"] as const;
export type Counts = Record<(typeof NAMES)[number], number>;

/** Places of the counters; numbers, because one is counted at each message. */
export const COUNTER = {
  sessionsOpen: 0,
  sessionsTotal: 1,
  messages: 2,
  refusedLost: 3,
  refusedUnconfirmed: 4,
  held: 5,
} as const;
type Counter = (typeof COUNTER)[keyof typeof COUNTER];

export class Counters {
  readonly memory: SharedArrayBuffer;
  readonly #values: Float64Array;

  /** Takes the memory of existing counters (in another thread), or makes new ones at zero. */
  constructor(memory: SharedArrayBuffer = new SharedArrayBuffer(8 * NAMES.length)) {
    this.memory = memory;
    this.#values = new Float64Array(memory);
  }

  add(counter: Counter, by = 1): void {
    this.#values[counter] = (this.#values[counter] as number) + by;
  }

  /**
   * `refusedLost`: messages answered with LF001, LF003 or, in flight at the loss, 08007; `refusedUnconfirmed`: messages
   * answered with LF002; `held`: clients that wait for the raise now.
   */
  read(): Counts {
    return Object.fromEntries(NAMES.map((name) => [name, this.#values[COUNTER[name]] ?? 0])) as Counts;
  }
}
