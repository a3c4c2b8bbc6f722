/** Locks as PostgreSQL's: shared and exclusive, granted in the order in which they were asked for, given back at the end. */
import type { Scheduler } from "./scheduler.ts";
import { SqlError } from "./sqlerror.ts";

export type Mode = "share" | "exclusive";

export interface LockOwner {
  /** Given up: the wait ends with this. */
  readonly onEnd: (fn: (why: SqlError) => void) => () => void;
}

interface Waiter {
  readonly owner: LockOwner;
  readonly mode: Mode;
  readonly grant: () => void;
}

interface Lock {
  readonly holders: Map<LockOwner, Mode>;
  readonly queue: Waiter[];
}

export class Locks {
  readonly #scheduler: Scheduler;
  readonly #locks = new Map<string, Lock>();

  constructor(scheduler: Scheduler) {
    this.#scheduler = scheduler;
  }

  /** Rejects with 55P03 after `timeoutMs`, or with why its owner has ended. */
  take(name: string, owner: LockOwner, mode: Mode, timeoutMs: number): Promise<void> {
    const lock: Lock = this.#locks.get(name) ?? { holders: new Map(), queue: [] };
    this.#locks.set(name, lock);
    if (lock.queue.length === 0 && isFree(lock, owner, mode)) {
      hold(lock, owner, mode);
      return Promise.resolve();
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const waiter: Waiter = { owner, mode, grant: resolve };
    lock.queue.push(waiter);
    const leave = (why: SqlError): void => {
      const at = lock.queue.indexOf(waiter);
      if (at === -1) return;
      lock.queue.splice(at, 1);
      reject(why);
      this.#grant(lock);
    };
    const cancel = Number.isFinite(timeoutMs)
      ? this.#scheduler.at(this.#scheduler.nowMs + timeoutMs, () => leave(new SqlError("55P03", "lock timeout")))
      : () => {};
    const forget = owner.onEnd(leave);
    return promise.finally(() => {
      cancel();
      forget();
    });
  }

  release(owner: LockOwner): void {
    for (const lock of this.#locks.values()) if (lock.holders.delete(owner)) this.#grant(lock);
  }

  /** Whether anybody but `owner` holds it. */
  heldByOthers(name: string, owner: LockOwner): boolean {
    return [...(this.#locks.get(name)?.holders.keys() ?? [])].some((holder) => holder !== owner);
  }

  #grant(lock: Lock): void {
    for (let next = lock.queue[0]; next && isFree(lock, next.owner, next.mode); next = lock.queue[0]) {
      lock.queue.shift();
      hold(lock, next.owner, next.mode);
      next.grant();
    }
  }
}

function isFree(lock: Lock, owner: LockOwner, mode: Mode): boolean {
  for (const [holder, held] of lock.holders) {
    if (holder !== owner && (mode === "exclusive" || held === "exclusive")) return false;
  }
  return true;
}

function hold(lock: Lock, owner: LockOwner, mode: Mode): void {
  if (lock.holders.get(owner) !== "exclusive") lock.holders.set(owner, mode);
}
