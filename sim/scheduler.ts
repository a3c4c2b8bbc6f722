/**
 * Virtual time: whatever happens in a simulated world, in one order that its seed decides.
 *
 * Does NOT interrupt code: what a process does between two awaits happens at one moment. Slow messages, pauses between
 * events and clocks that differ stand for what can come in between on a real machine.
 */

/** Of one history; many times what one has. */
const EVENTS_MAX = 300_000;

/** A rejection that nobody handles ends this process, as it would end a real one: Node looks for them in its own turns. */
const EVENTS_PER_TURN = 32;

interface Event {
  readonly atMs: number;
  readonly order: number;
  fn: (() => void) | null;
}

export class Scheduler {
  nowMs = 0;
  /** Events that have happened. */
  happened = 0;
  readonly #heap: Event[] = [];
  #order = 0;

  /** Calls `fn` at that moment of true time, behind what was planned for it before; returns how to cancel. */
  at(atMs: number, fn: () => void): () => void {
    const event: Event = { atMs: Math.max(this.nowMs, atMs), order: this.#order++, fn };
    this.#push(event);
    return () => {
      event.fn = null;
    };
  }

  /** Lets time pass; everything that only waits for promises runs between two events. */
  async run(untilMs: number, check: () => void): Promise<void> {
    await settled();
    for (;;) {
      const next = this.#heap[0];
      if (!next || next.atMs > untilMs) break;
      this.#pop();
      if (!next.fn) continue;
      this.nowMs = next.atMs;
      this.happened++;
      if (this.happened > EVENTS_MAX) throw new Error(`more than ${EVENTS_MAX} events: something goes in circles`);
      next.fn();
      await settled();
      if (this.happened % EVENTS_PER_TURN === 0) await turned();
      check();
    }
    this.nowMs = untilMs;
  }

  #push(event: Event): void {
    const heap = this.#heap;
    let at = heap.push(event) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (before(heap[parent] as Event, event)) break;
      heap[at] = heap[parent] as Event;
      at = parent;
    }
    heap[at] = event;
  }

  #pop(): void {
    const heap = this.#heap;
    const last = heap.pop() as Event;
    if (heap.length === 0) return;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && before(heap[child + 1] as Event, heap[child] as Event)) child++;
      if (before(last, heap[child] as Event)) break;
      heap[at] = heap[child] as Event;
      at = child;
    }
    heap[at] = last;
  }
}

const before = (a: Event, b: Event): boolean => a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order);

/** Microtasks, and the microtasks that they made, have run. Five times as fast as a turn of the event loop. */
const settled = (): Promise<void> => new Promise((resolve) => process.nextTick(resolve));
const turned = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
