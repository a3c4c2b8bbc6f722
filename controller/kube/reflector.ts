/**
 * Keeps a store equal to what the API server has, for one resource: list, then watch, for ever.
 *
 * Does NOT promise to be up to date (`stalenessMs` tells) and does NOT deliver every intermediate state: subscribers get
 * keys and read the present state. It never gives up, and never connects more often than once per `RECONNECT_MS_MIN`.
 *
 * - A clean end, a broken connection or throttling resumes at the last resource version.
 * - Everything that leaves a doubt lists anew: 410, an ERROR event, a line that is no JSON, and silence. A live server
 *   sends a bookmark each minute; a silent one is half dead.
 * - So does a server that counts below what it has said before: its etcd was restored. From our version on it would say
 *   nothing until it has come so far again, so it is asked where it is before a broken watch is resumed.
 * - After a list every key is delivered, changed or not: a restored etcd can reuse a resource version.
 */
import type { Clock } from "../../platform/clock.ts";
import { HttpError } from "../../platform/http.ts";
import type { Logger } from "../../platform/log.ts";
import { jitter, type Random } from "../../platform/random.ts";
import type { KubeApi, Resource, Selection } from "./api.ts";
import { isThrottled, retryAfterMs } from "./errors.ts";
import { countsBelow, keyOf, type ObjectLike } from "./objects.ts";
import { type Change, type Indexer, Store } from "./store.ts";

const RECONNECT_MS_MIN = 1000;
const RECONNECT_MS_MAX = 30_000;
/** A watch that lived as long has shown that the server is well. */
const HEALTHY_MS = 5000;
/** Bookmarks come each minute, the first one of a quiet resource after up to two (seen on 1.36). */
const SILENT_MS = 150_000;
const LIST_PAGE_MS = 30_000;

export interface ReflectorOptions<T> {
  api: KubeApi;
  resource: Resource;
  selection?: Selection;
  indexers?: Readonly<Record<string, Indexer<T>>>;
  clock: Clock;
  random: Random;
  log: Logger;
  /** Longest time without event or bookmark before the list is read anew. */
  silentMs?: number;
  /** Bounds between which each watch draws its length. */
  watchSeconds?: { min: number; max: number };
  /** Objects per page of a list. */
  pageLimit?: number;
}

interface Subscription<T> {
  keysOf: (change: Change<T>) => readonly string[];
  enqueue: (key: string) => void;
}

interface Cycle {
  /** Whether the watch lived long, or at least brought something. */
  healthy: "long" | "heard" | false;
  /** Ended by the server as agreed. */
  ended: boolean;
  /** What the server asked for. */
  serverWaitMs: number;
}

export class Reflector<T extends ObjectLike> {
  readonly store: Store<T>;
  /** Resolves after the first complete list; rejects if stopped before. */
  readonly synced: Promise<void>;
  /** For metrics. */
  readonly counters = { lists: 0, watches: 0, failures: 0, badObjects: 0 };

  readonly #options: ReflectorOptions<T>;
  readonly #log: Logger;
  readonly #subscriptions: Subscription<T>[] = [];
  readonly #stop = new AbortController();
  readonly #synced = Promise.withResolvers<void>();
  #running: Promise<void> | undefined;
  /** Where to go on watching; null means list first. */
  #resourceVersion: string | null = null;
  /** The last watch broke: the server may be another one. */
  #broken = false;
  #freshMs = Number.NEGATIVE_INFINITY;
  #problem: string | null = null;
  /** Of the list and the watch under way, or of the wait between two. */
  #life = new AbortController();
  #refreshed: (() => void)[] = [];

  constructor(options: ReflectorOptions<T>) {
    this.#options = options;
    this.#log = options.log.with({ resource: options.resource.plural });
    this.store = new Store(options.indexers);
    this.synced = this.#synced.promise;
    this.synced.catch(() => {});
  }

  /**
   * For each change `keysOf` says which keys it concerns (the owner of a pod, say), and `enqueue` gets them. Neither may
   * wait; what they throw is logged and stops nothing. Subscribe before `start`.
   */
  subscribe(keysOf: (change: Change<T>) => readonly string[], enqueue: (key: string) => void): void {
    this.#subscriptions.push({ keysOf, enqueue });
  }

  start(): void {
    this.#running ??= this.#run();
  }

  /** Nothing is requested or delivered after it has resolved. */
  async stop(): Promise<void> {
    this.#stop.abort(new Error("the reflector was stopped"));
    await this.#running;
    this.#synced.reject(new Error(`${this.#options.resource.plural}: stopped before the first list`));
  }

  /**
   * Lists anew, now: for whoever is about to act on what a watch told that may be half dead. Resolves when the store is as
   * the server was after this call; not if the reflector is stopped before.
   */
  refresh(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#refreshed.push(resolve);
    this.#resourceVersion = null;
    this.#life.abort(new Error("a list is wanted"));
    return promise;
  }

  /** Why the last attempt failed, for people; null once the server is heard of again. */
  get problem(): string | null {
    return this.#problem;
  }

  /** Since the server was last heard of; grows to about a minute while nothing changes. Infinite before the first list. */
  stalenessMs(): number {
    return this.#options.clock.monoMs() - this.#freshMs;
  }

  async #run(): Promise<void> {
    const { clock, random } = this.#options;
    const { signal } = this.#stop;
    let failures = 0;
    while (!signal.aborted) {
      this.#life = new AbortController();
      const life = AbortSignal.any([signal, this.#life.signal]);
      const { healthy, ended, serverWaitMs } = await this.#cycle(life);
      failures = healthy ? 0 : failures + 1;
      if (life.aborted || (healthy === "long" && ended)) continue;
      const backoffMs = jitter(random, Math.min(RECONNECT_MS_MAX, RECONNECT_MS_MIN * 2 ** failures));
      await clock.sleep(Math.max(serverWaitMs, backoffMs), life).catch(() => {});
    }
  }

  /** One list, if one is needed, and one watch. */
  async #cycle(signal: AbortSignal): Promise<Cycle> {
    const { clock } = this.#options;
    let startMs = Number.POSITIVE_INFINITY;
    let ended = false;
    let serverWaitMs = 0;
    try {
      if (this.#broken && this.#resourceVersion !== null && (await this.#isBelow(this.#resourceVersion, signal))) {
        this.#resourceVersion = null;
      }
      if (this.#resourceVersion === null) await this.#list(signal);
      this.#broken = false;
      startMs = clock.monoMs();
      await this.#watch(this.#resourceVersion ?? "", signal);
      ended = true;
    } catch (error) {
      if (!signal.aborted) {
        this.counters.failures++;
        this.#broken = true;
        serverWaitMs = retryAfterMs(error);
        if (!resumable(error)) this.#resourceVersion = null;
        this.#problem = error instanceof Error ? error.message : String(error);
        this.#log.warn("the watch ended early", { error, next: this.#resourceVersion === null ? "list" : "watch" });
      }
    }
    const long = clock.monoMs() - startMs >= HEALTHY_MS;
    return { healthy: long ? "long" : this.#freshMs > startMs && "heard", ended, serverWaitMs };
  }

  async #isBelow(known: string, signal: AbortSignal): Promise<boolean> {
    const { api, resource, selection } = this.#options;
    const version = await api.version(resource, selection, { signal });
    const below = countsBelow(version, known);
    if (below)
      this.#log.warn("the API server counts below what it has said before: its etcd was restored", { version, known });
    return below;
  }

  async #list(signal: AbortSignal): Promise<void> {
    const { length } = this.#refreshed;
    const { api, resource, selection, pageLimit } = this.#options;
    this.counters.lists++;
    const list = await api.list<T>(resource, selection, {
      signal,
      timeoutMs: LIST_PAGE_MS,
      ...(pageLimit !== undefined && { limit: pageLimit }),
    });
    const present = new Set<string>();
    for (const object of list.items) {
      if (!this.#readable(object)) continue;
      present.add(keyOf(object));
      this.#put(object);
    }
    for (const object of this.store.list()) {
      const key = keyOf(object);
      if (!present.has(key)) this.#deliver(this.store.remove(key));
    }
    this.#heard();
    this.#synced.resolve();
    for (const resolve of this.#refreshed.splice(0, length)) resolve();
    if (!signal.aborted) this.#resourceVersion = list.resourceVersion;
  }

  async #watch(resourceVersion: string, signal: AbortSignal): Promise<void> {
    const { api, resource, selection, random, silentMs, watchSeconds } = this.#options;
    const { min, max } = watchSeconds ?? { min: 300, max: 600 };
    this.counters.watches++;
    const events = api.watch<T>(resource, {
      ...selection,
      resourceVersion,
      // Drawn anew, so that the watches of many controllers do not end together.
      timeoutSeconds: Math.round(min + random.unit() * (max - min)),
      silentMs: silentMs ?? SILENT_MS,
      signal,
    });
    for await (const { type, object } of events) {
      if (signal.aborted) return;
      this.#heard();
      const { resourceVersion: version = "" } = object?.metadata ?? {};
      if (countsBelow(version, resourceVersion))
        throw new HttpError("malformed", `version ${version} after ${resourceVersion}`, true);
      if (type === "DELETED" && this.#readable(object)) this.#deliver(this.store.remove(keyOf(object)));
      else if (type !== "BOOKMARK" && this.#readable(object)) this.#put(object);
      if (!signal.aborted) this.#resourceVersion = object?.metadata?.resourceVersion ?? this.#resourceVersion;
    }
  }

  #heard(): void {
    this.#freshMs = this.#options.clock.monoMs();
    this.#problem = null;
  }

  #readable(object: T): boolean {
    if (object?.metadata?.name) return true;
    this.counters.badObjects++;
    this.#log.warn("an object without a name was left out");
    return false;
  }

  #put(object: T): void {
    try {
      this.#deliver(this.store.put(object));
    } catch (error) {
      this.counters.badObjects++;
      this.#log.warn("an object was left out", { key: keyOf(object), error });
    }
  }

  #deliver(changes: readonly Change<T>[]): void {
    for (const change of changes) {
      for (const { keysOf, enqueue } of this.#subscriptions) {
        try {
          for (const key of keysOf(change)) enqueue(key);
        } catch (error) {
          this.#log.error("a subscriber threw", { key: change.key, error });
        }
      }
    }
  }
}

/** Whether the last resource version is still good, as far as the error tells. */
function resumable(error: unknown): boolean {
  if (error instanceof HttpError) return error.kind === "reset" || error.kind === "refused" || error.kind === "tls";
  return isThrottled(error);
}
