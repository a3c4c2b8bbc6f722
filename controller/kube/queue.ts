/**
 * The work queue: which keys are to be reconciled, and when.
 *
 * Does NOT remember why a key was added: whoever reconciles looks at the present state and decides anew, also whether it
 * wants to be called again. A key is worked on by one worker at a time, and waits once however often it is added.
 *
 * A run that waits lends its place: calls that hang, such as those that a webhook of one namespace never answers, hold up that
 * key and no other one.
 *
 * A failed key comes back after a growing delay. While it fails, an event brings it forward to at most one run per
 * `FAILING_MS_MIN`: a reconcile that writes and then fails would else drive itself in circles.
 */
import type { Clock } from "../../platform/clock.ts";
import type { Logger } from "../../platform/log.ts";
import { jitter, type Random } from "../../platform/random.ts";
import { within } from "../../platform/within.ts";
import { isConflict, retryAfterMs } from "./errors.ts";

export type Outcome =
  | { kind: "done" }
  /** Again after this time, or earlier if something changes. */
  | { kind: "requeueAfter"; ms: number }
  /** Something failed: again, later, as behind an error that is thrown, but no later than after this time, which waits for nobody. */
  | { kind: "failed"; error: unknown; ms: number }
  /** Nothing to do until the object changes. */
  | { kind: "terminal"; reason: string };

/** An error means: again, later. The signal aborts when the time for one run is over, or at the end of a shutdown. */
export type Reconcile = (key: string, signal: AbortSignal) => Promise<Outcome>;

export interface QueueOptions {
  reconcile: Reconcile;
  /** Runs at once, beside those that wait for somebody. */
  workers: number;
  clock: Clock;
  random: Random;
  log: Logger;
  backoffMs?: { min: number; max: number };
  /** For one run. */
  runMsMax?: number;
  /** Of a queue before this one, to count on. */
  counters?: WorkQueue["counters"];
}

const BACKOFF_MS = { min: 50, max: 60_000 };
const RUN_MS_MAX = 60_000;
const FAILING_MS_MIN = 1000;
/** A run of which as much has passed waits for somebody; most take some ten milliseconds. */
const SLOW_MS = 1000;
/** Beyond the workers: what waits costs memory, a connection (platform/http.ts), and a place in the API server's own queues. */
const SLOW_RUNS_MAX = 64;
/** What an aborted run gets to notice. */
const ABORTED_MS = 1000;

export class WorkQueue {
  readonly counters: { runs: number; failures: number; conflicts: number };

  readonly #options: QueueOptions;
  readonly #ready = new Set<string>();
  readonly #running = new Set<string>();
  /** Of those that run. */
  readonly #slow = new Set<string>();
  /** Added while they ran. */
  readonly #again = new Set<string>();
  readonly #waiting = new Map<string, { dueMs: number; cancel: () => void }>();
  /** Failures in a row, and the end of the last run. */
  readonly #failing = new Map<string, { times: number; endMs: number }>();
  readonly #stop = new AbortController();
  #state: "new" | "started" | "draining" = "new";
  #idle: () => void = () => {};

  constructor(options: QueueOptions) {
    this.#options = options;
    this.counters = options.counters ?? { runs: 0, failures: 0, conflicts: 0 };
  }

  /** Keys that wait for a worker, that a worker has, and that wait for a time. */
  depth(): { ready: number; running: number; waiting: number } {
    return { ready: this.#ready.size, running: this.#running.size, waiting: this.#waiting.size };
  }

  add(key: string): void {
    if (this.#state === "draining") return;
    const failing = this.#failing.get(key);
    if (this.#running.has(key)) this.#again.add(key);
    else if (failing) this.addAfter(key, failing.endMs + FAILING_MS_MIN - this.#options.clock.monoMs());
    else this.#makeReady(key);
  }

  /** The earliest time wins. */
  addAfter(key: string, ms: number): void {
    if (this.#state === "draining" || this.#ready.has(key)) return;
    if (ms <= 0) {
      this.#makeReady(key);
      return;
    }
    const { clock } = this.#options;
    const dueMs = clock.monoMs() + ms;
    const waiting = this.#waiting.get(key);
    if (waiting && waiting.dueMs <= dueMs) return;
    waiting?.cancel();
    const cancel = clock.after(ms, () => {
      if (this.#running.has(key)) {
        this.#waiting.delete(key);
        this.#again.add(key);
      } else this.#makeReady(key);
    });
    this.#waiting.set(key, { dueMs, cancel });
  }

  /** Lets the workers begin; keys added before have waited. */
  start(): void {
    if (this.#state === "new") this.#state = "started";
    this.#pump();
  }

  /** Begins nothing more, waits for what runs, aborts it after `waitMs`. Returns the keys that ended not even then. */
  async drain(waitMs: number): Promise<string[]> {
    this.#state = "draining";
    for (const { cancel } of this.#waiting.values()) cancel();
    this.#waiting.clear();
    this.#ready.clear();
    this.#again.clear();
    await this.#idleWithin(waitMs);
    this.#stop.abort(new Error("the controller is shutting down"));
    await this.#idleWithin(ABORTED_MS);
    return [...this.#running];
  }

  async #idleWithin(ms: number): Promise<void> {
    if (this.#running.size === 0) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#idle = resolve;
    const cancel = this.#options.clock.after(ms, resolve);
    await promise;
    cancel();
  }

  #makeReady(key: string): void {
    this.#waiting.get(key)?.cancel();
    this.#waiting.delete(key);
    this.#ready.add(key);
    this.#pump();
  }

  #pump(): void {
    for (const key of this.#ready) {
      const lent = Math.min(this.#slow.size, SLOW_RUNS_MAX);
      if (this.#state !== "started" || this.#running.size >= this.#options.workers + lent) return;
      this.#ready.delete(key);
      this.#running.add(key);
      void this.#run(key);
    }
  }

  async #run(key: string): Promise<void> {
    const cancel = this.#options.clock.after(SLOW_MS, () => {
      this.#slow.add(key);
      this.#pump();
    });
    const delayMs = await this.#reconcile(key);
    cancel();
    this.#slow.delete(key);
    this.#running.delete(key);
    if (this.#running.size === 0) this.#idle();
    if (delayMs !== undefined) this.addAfter(key, delayMs);
    if (this.#again.delete(key)) this.add(key);
    this.#pump();
  }

  /** Runs once and returns after how long to run again, if at all. */
  async #reconcile(key: string): Promise<number | undefined> {
    const { clock, log, reconcile } = this.#options;
    const timeoutMs = this.#options.runMsMax ?? RUN_MS_MAX;
    const late = (): Error => new Error(`not done within ${timeoutMs} ms`);
    this.counters.runs++;
    try {
      const bounds = { clock, timeoutMs, signal: this.#stop.signal };
      const outcome = await within(bounds, (signal) => reconcile(key, signal), late);
      if (outcome.kind === "failed") return this.#failed(key, outcome.error, outcome.ms);
      this.#failing.delete(key);
      if (outcome.kind === "terminal") log.info("nothing more to do", { key, reason: outcome.reason });
      return outcome.kind === "requeueAfter" ? outcome.ms : undefined;
    } catch (error) {
      return this.#failed(key, error, Number.POSITIVE_INFINITY);
    }
  }

  #failed(key: string, error: unknown, msMax: number): number | undefined {
    if (this.#stop.signal.aborted) return undefined;
    const { clock, random, log } = this.#options;
    const times = (this.#failing.get(key)?.times ?? 0) + 1;
    this.#failing.set(key, { times, endMs: clock.monoMs() });
    const { min, max } = this.#options.backoffMs ?? BACKOFF_MS;
    const backoffMs = Math.max(retryAfterMs(error), jitter(random, Math.min(max, min * 2 ** (times - 1))));
    const delayMs = Math.min(backoffMs, msMax);
    // A conflict says that our view was old, not that something is wrong.
    if (isConflict(error)) this.counters.conflicts++;
    else this.counters.failures++;
    log[isConflict(error) ? "info" : "error"]("reconcile failed", {
      key,
      times,
      retryInMs: Math.round(delayMs),
      error,
    });
    return delayMs;
  }
}
