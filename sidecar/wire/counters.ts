/** Counts of the wire in shared memory: its thread writes them, the sidecar's main thread reads them at any time. */

const NAMES = ["sessionsOpen", "sessionsTotal", "messages", "refusedLost", "refusedUnconfirmed"] as const;
export type CounterName = (typeof NAMES)[number];
export type Counts = Record<CounterName, number>;

const INDEX = Object.fromEntries(NAMES.map((name, index) => [name, index])) as Record<CounterName, number>;

export class Counters {
  readonly memory: SharedArrayBuffer;
  readonly #values: Float64Array;

  /** Takes the memory of existing counters (in another thread), or makes new ones at zero. */
  constructor(memory: SharedArrayBuffer = new SharedArrayBuffer(8 * NAMES.length)) {
    this.memory = memory;
    this.#values = new Float64Array(memory);
  }

  add(name: CounterName, by = 1): void {
    const index = INDEX[name];
    this.#values[index] = (this.#values[index] as number) + by;
  }

  /**
   * `refusedLost`: messages answered with LF001, LF003 or, in flight at the loss, 08007; `refusedUnconfirmed`: messages
   * answered with LF002.
   */
  read(): Counts {
    return Object.fromEntries(NAMES.map((name) => [name, this.#values[INDEX[name]] ?? 0])) as Counts;
  }
}
