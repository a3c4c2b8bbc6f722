/**
 * What lies between processes and servers: delays, losses, cuts. A message that a cut has caught is lost, or comes when
 * the cut is over: late, as the ones that do harm do.
 */
import type { Random } from "../platform/random.ts";
import type { Process } from "./process.ts";
import { streamOf } from "./process.ts";
import type { Scheduler } from "./scheduler.ts";

const DELAY_MS_MIN = 0.5;
const DELAY_MS_USUAL = 8;
/** A message now and then is slow: a retransmission, a busy peer. */
const SLOW_SHARE = 0.01;
const SLOW_MS_MAX = 1_500;
/** With the answer's delay some requests are within their limit. */
const FADED_MS_MAX = 1_700;
/** Of the messages that meet a cut: they come after it. */
const HELD_SHARE = 0.5;

/** A server that can be cut off. */
export type Place = string;

export class Network {
  readonly #scheduler: Scheduler;
  readonly #seed: number;
  readonly #streams = new Map<string, Random>();
  /** Until when, by process (or `*`) and place. */
  readonly #cutUntilMs = new Map<string, number>();
  readonly #cutForGood = new Set<string>();
  readonly #fadingUntilMs = new Map<string, number>();
  readonly #lags = new Map<string, { readonly untilMs: number; readonly ms: number }>();
  #slowUntilMs = 0;
  #slowMs = 0;

  constructor(scheduler: Scheduler, seed: number) {
    this.#scheduler = scheduler;
    this.#seed = seed;
  }

  /** `from`: the name of a process, `*` for each. */
  cut(from: string, to: Place, ms: number): void {
    const key = `${from}>${to}`;
    this.#cutUntilMs.set(key, Math.max(this.#cutUntilMs.get(key) ?? 0, this.#scheduler.nowMs + ms));
  }

  /** Each message on the way takes longer, close to the limit of a request; then it is cut. */
  fade(from: string, to: Place, fadesMs: number, cutMs: number): void {
    const { nowMs } = this.#scheduler;
    this.#fadingUntilMs.set(`${from}>${to}`, nowMs + fadesMs);
    this.#scheduler.at(nowMs + fadesMs, () => this.cut(from, to, cutMs));
  }

  /** Every message takes up to so much longer for a while. */
  slow(ms: number, delayMs: number): void {
    this.#slowUntilMs = this.#scheduler.nowMs + ms;
    this.#slowMs = delayMs;
  }

  /** What a process hears of these objects is that much behind all else for a while, as a server's cache can be. */
  lag(from: string, plural: string, ms: number, lagMs: number): void {
    this.#lags.set(`${from}<${plural}`, { untilMs: this.#scheduler.nowMs + ms, ms: lagMs });
  }

  lagMs(from: string, plural: string): number {
    const lag = this.#lags.get(`${from}<${plural}`);
    return lag && this.#scheduler.nowMs < lag.untilMs ? lag.ms : 0;
  }

  /** As `cut`, and nobody mends it. */
  cutForGood(from: string, to: Place): void {
    this.#cutForGood.add(`${from}>${to}`);
  }

  heal(): void {
    this.#cutUntilMs.clear();
    this.#lags.clear();
    this.#slowUntilMs = 0;
  }

  /** Until when nothing passes between the two; in the past when something does. */
  #cutUntil(from: string, to: Place): number {
    return Math.max(this.#cutUntilMs.get(`${from}>${to}`) ?? 0, this.#cutUntilMs.get(`*>${to}`) ?? 0);
  }

  /** Runs `arrive` when the message is there; never, if it is lost. Messages may overtake each other. */
  send(process: Process, to: Place, arrive: () => void): void {
    const atMs = this.#arrivalMs(process, to);
    if (atMs !== undefined) this.#scheduler.at(atMs, arrive);
  }

  /**
   * As `send`, but behind what arrives at `lastMs`; returns when it arrives. On one connection nothing is lost alone: what
   * follows a lost message is lost, too (`Infinity`). `lagMs`: the sender has it that much later.
   */
  sendBehind(
    process: Process,
    to: Place,
    arrive: () => void,
    { lastMs, lagMs }: { lastMs: number; lagMs: number },
  ): number {
    const atMs = this.#arrivalMs(process, to) ?? Number.POSITIVE_INFINITY;
    const behindMs = Math.max(atMs + lagMs, lastMs);
    if (behindMs < Number.POSITIVE_INFINITY) this.#scheduler.at(behindMs, arrive);
    return behindMs;
  }

  #arrivalMs(process: Process, to: Place): number | undefined {
    const random = this.#streamOf(process.name);
    const { nowMs } = this.#scheduler;
    const [share, lost, slow] = [random.unit(), random.unit(), random.unit()];
    if (this.#cutForGood.has(`${process.name}>${to}`)) return undefined;
    let atMs = nowMs + DELAY_MS_MIN + share * DELAY_MS_USUAL;
    if (slow < SLOW_SHARE) atMs += (slow / SLOW_SHARE) * SLOW_MS_MAX;
    if (nowMs < this.#slowUntilMs) atMs += share * this.#slowMs;
    if (nowMs < (this.#fadingUntilMs.get(`${process.name}>${to}`) ?? 0)) atMs += share * FADED_MS_MAX;
    const cutUntilMs = this.#cutUntil(process.name, to);
    if (nowMs < cutUntilMs) {
      if (lost >= HELD_SHARE) return undefined;
      atMs += cutUntilMs - nowMs;
    }
    return atMs;
  }

  /** A request and its answer, either of which may not arrive: then the promise stays as it is. */
  call<T>(process: Process, to: Place, serve: () => T | Promise<T>): Promise<T> {
    const { promise, resolve, reject } = Promise.withResolvers<T>();
    const answer = (settle: () => void): void => this.send(process, to, () => process.deliver(settle));
    this.send(process, to, () => {
      void Promise.resolve()
        .then(serve)
        .then(
          (result) => answer(() => resolve(result)),
          (error: unknown) => answer(() => reject(error)),
        );
    });
    return promise;
  }

  #streamOf(name: string): Random {
    const known = this.#streams.get(name) ?? streamOf(this.#seed, `network ${name}`);
    this.#streams.set(name, known);
    return known;
  }
}
