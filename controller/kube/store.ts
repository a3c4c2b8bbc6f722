/**
 * The last known state of one resource, as the watch told it; always somewhat old. Whoever writes does so conditionally.
 *
 * Objects are frozen: many readers share them. Copy (`structuredClone`) before changing one.
 */
import { keyOf, type ObjectLike } from "./objects.ts";

/**
 * What happened to one key. Created: no `before`. Deleted: no `after`. An object that was deleted and created again while
 * nobody looked is two changes, for another uid is another object.
 */
export interface Change<T> {
  key: string;
  before: T | undefined;
  after: T | undefined;
}

/** Values by which an object is found besides its key: for a pod, the key of its FencedJob. */
export type Indexer<T> = (object: T) => readonly string[];

export class Store<T extends ObjectLike> {
  readonly #objects = new Map<string, T>();
  readonly #indexers: Readonly<Record<string, Indexer<T>>>;
  /** index → value → keys. */
  readonly #indexes = new Map<string, Map<string, Set<string>>>();

  constructor(indexers: Readonly<Record<string, Indexer<T>>> = {}) {
    this.#indexers = indexers;
    for (const name of Object.keys(indexers)) this.#indexes.set(name, new Map());
  }

  get(key: string): T | undefined {
    return this.#objects.get(key);
  }

  list(): T[] {
    return [...this.#objects.values()];
  }

  get size(): number {
    return this.#objects.size;
  }

  by(index: string, value: string): T[] {
    const keys = this.#indexes.get(index)?.get(value) ?? [];
    return [...keys].flatMap((key) => this.#objects.get(key) ?? []);
  }

  put(object: T): Change<T>[] {
    const key = keyOf(object);
    const before = this.#objects.get(key);
    const values = Object.entries(this.#indexers).map(([name, valuesOf]) => [name, valuesOf(object)] as const);
    const after = freeze(object);
    this.#forget(key);
    this.#objects.set(key, after);
    for (const [name, list] of values) for (const value of list) this.#index(name, value).add(key);
    if (before === undefined || before.metadata.uid === after.metadata.uid) return [{ key, before, after }];
    return [
      { key, before, after: undefined },
      { key, before: undefined, after },
    ];
  }

  remove(key: string): Change<T>[] {
    const before = this.#objects.get(key);
    this.#forget(key);
    return before === undefined ? [] : [{ key, before, after: undefined }];
  }

  #forget(key: string): void {
    const object = this.#objects.get(key);
    if (object === undefined) return;
    this.#objects.delete(key);
    for (const [name, valuesOf] of Object.entries(this.#indexers)) {
      for (const value of valuesOf(object)) {
        const keys = this.#index(name, value);
        keys.delete(key);
        if (keys.size === 0) this.#indexes.get(name)?.delete(value);
      }
    }
  }

  #index(name: string, value: string): Set<string> {
    const index = this.#indexes.get(name) ?? new Map<string, Set<string>>();
    const keys = index.get(value) ?? new Set<string>();
    index.set(value, keys);
    return keys;
  }
}

function freeze<T>(value: T): T {
  if (typeof value !== "object" || value === null || Object.isFrozen(value)) return value;
  for (const inner of Object.values(value)) freeze(inner);
  return Object.freeze(value);
}
