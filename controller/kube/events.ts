/**
 * Events for people, as `kubectl describe` shows them (events.k8s.io/v1).
 *
 * Does NOT promise that an event arrives: nothing may depend on one, what matters is in conditions. `record` never waits
 * and never throws. The same event again raises the count of the first one; a flood about one object is cut off.
 */
import { microTime } from "../../lease/time.ts";
import type { Clock, Wall } from "../../platform/clock.ts";
import { HttpError } from "../../platform/http.ts";
import type { Logger } from "../../platform/log.ts";
import type { Random } from "../../platform/random.ts";
import { apiVersionOf, type KubeApi, RESOURCES } from "./api.ts";
import { isForbidden, isInvalid, isNotFound } from "./errors.ts";
import { type KubeObject, keyOf } from "./objects.ts";

/** The API server refuses longer ones. */
const NOTE_BYTES_MAX = 1024;
const REASON_CHARS_MAX = 128;
/** Events remembered for counting, and those not yet sent. */
const REMEMBERED_MAX = 2000;
const PENDING_MAX = 500;
/** The same event after this time is a new one. */
const SERIES_MS = 10 * 60_000;
/** Events about one object: so many at once, then one per interval. */
const BURST_MAX = 25;
const REFILL_MS = 30_000;
/** Between two updates of one event's count, and after a failed attempt. */
const UPDATE_MS = 5000;
const ATTEMPTS_MAX = 3;

export interface EventText {
  type: "Normal" | "Warning";
  /** PascalCase, from a fixed list. */
  reason: string;
  /** What was being done, PascalCase. */
  action: string;
  note: string;
}

export interface RecorderOptions {
  api: KubeApi;
  clock: Clock;
  random: Random;
  log: Logger;
  /** `fencedjob.dev/controller`: what `describe` shows as From. */
  controller: string;
  /** This pod. */
  instance: string;
}

interface Regarding
  extends Record<"apiVersion" | "kind" | "namespace" | "uid" | "resourceVersion", string | undefined> {
  name: string;
}

/** One event as it is, or is to be, at the API server. */
interface Known {
  key: string;
  /** Not the object itself, whose template may be as long as it likes: so many are remembered. */
  regarding: Regarding;
  text: EventText;
  name: string;
  count: number;
  /** The count that the server has; 0 before the event is there. */
  sentCount: number;
  firstTime: string;
  lastTime: string;
  lastMs: number;
  notBeforeMs: number;
  attempts: number;
}

export class EventRecorder {
  readonly counters = { sent: 0, dropped: 0, failed: 0 };

  readonly #options: RecorderOptions;
  #order = 0;
  /** In order of use, so that the oldest goes first. */
  readonly #known = new Map<string, Known>();
  readonly #pending = new Set<Known>();
  readonly #budgets = new Map<string, { tokens: number; atMs: number }>();
  #sending: Promise<void> | undefined;
  #cancelTimer: () => void = () => {};

  constructor(options: RecorderOptions) {
    this.#options = options;
  }

  /** Says something about `object`, which has `kind` and `metadata.uid`. */
  record(object: KubeObject, text: EventText): void {
    try {
      this.#record(object, { ...text, reason: text.reason.slice(0, REASON_CHARS_MAX), note: truncate(text.note) });
    } catch (error) {
      this.#drop("an event could not be recorded", { reason: text.reason, error });
    }
  }

  /** Sends what is pending, for at most `waitMs`; for the end of the process. */
  async flush(waitMs: number): Promise<void> {
    for (const known of this.#pending) known.notBeforeMs = 0;
    this.#pump();
    const { promise, resolve } = Promise.withResolvers<void>();
    const cancel = this.#options.clock.after(waitMs, resolve);
    await Promise.race([this.#sending, promise]);
    cancel();
    this.#cancelTimer();
  }

  #record(object: KubeObject, text: EventText): void {
    const { clock, random } = this.#options;
    const nowMs = clock.monoMs();
    const time = microTime(clock.wall());
    const key = [object.kind, object.metadata.uid ?? keyOf(object), text.type, text.reason, text.note].join("\n");
    let known = this.#known.get(key);
    if (known && nowMs - known.lastMs < SERIES_MS) {
      Object.assign(known, { count: known.count + 1, lastTime: time, lastMs: nowMs });
    } else {
      if (!this.#takeToken(object.metadata.uid ?? keyOf(object), nowMs)) {
        this.#drop("too many events about one object", { object: keyOf(object), reason: text.reason });
        return;
      }
      known = {
        key,
        regarding: regardingOf(object),
        text,
        name: eventName(object.metadata.name, this.#order++, clock.wall(), random),
        count: 1,
        sentCount: 0,
        firstTime: time,
        lastTime: time,
        lastMs: nowMs,
        notBeforeMs: nowMs,
        attempts: 0,
      };
    }
    remember(this.#known, key, known, REMEMBERED_MAX);
    this.#enqueue(known);
  }

  #enqueue(known: Known): void {
    if (!this.#pending.has(known) && this.#pending.size >= PENDING_MAX) {
      this.#drop("too many events wait to be sent", { reason: known.text.reason });
      return;
    }
    this.#pending.add(known);
    this.#pump();
  }

  #takeToken(object: string, nowMs: number): boolean {
    const { tokens, atMs } = this.#budgets.get(object) ?? { tokens: BURST_MAX, atMs: nowMs };
    const refilled = Math.min(BURST_MAX, tokens + (nowMs - atMs) / REFILL_MS);
    const granted = refilled >= 1;
    remember(this.#budgets, object, { tokens: granted ? refilled - 1 : refilled, atMs: nowMs }, REMEMBERED_MAX);
    return granted;
  }

  #pump(): void {
    this.#cancelTimer();
    this.#sending ??= this.#sendDue().finally(() => {
      this.#sending = undefined;
      this.#schedule();
    });
  }

  /** Sends what is due, one after the other. */
  async #sendDue(): Promise<void> {
    await Promise.resolve();
    for (const known of this.#pending) {
      if (known.notBeforeMs > this.#options.clock.monoMs()) continue;
      this.#pending.delete(known);
      await this.#sendOne(known);
    }
  }

  #schedule(): void {
    if (this.#pending.size === 0) return;
    const { clock } = this.#options;
    const dueMs = Math.min(...[...this.#pending].map(({ notBeforeMs }) => notBeforeMs));
    this.#cancelTimer = clock.after(Math.max(1, dueMs - clock.monoMs()), () => this.#pump());
  }

  async #sendOne(known: Known): Promise<void> {
    const { count } = known;
    const { api, clock } = this.#options;
    try {
      if (known.sentCount === 0) await api.create(RESOURCES.events, this.#event(known));
      else await api.patch(RESOURCES.events, this.#keyOf(known), { series: seriesOf(known) });
      Object.assign(known, { sentCount: count, attempts: 0, notBeforeMs: clock.monoMs() + UPDATE_MS });
      this.counters.sent++;
      if (known.count > count) this.#enqueue(known);
    } catch (error) {
      this.#failed(known, error);
    }
  }

  #failed(known: Known, error: unknown): void {
    const { clock, log, random } = this.#options;
    // The server has forgotten it (events live an hour): begin a new one. A write of unknown outcome may have made it
    // already, so that one gets another name too: twice is better than never.
    if (isNotFound(error) || error instanceof HttpError) {
      Object.assign(known, {
        name: eventName(known.regarding.name, this.#order++, clock.wall(), random),
        sentCount: 0,
      });
    }
    known.attempts++;
    known.notBeforeMs = clock.monoMs() + UPDATE_MS;
    // Forbidden: no right, or a namespace that is being deleted.
    if (known.attempts < ATTEMPTS_MAX && !isForbidden(error) && !isInvalid(error)) {
      this.#enqueue(known);
      return;
    }
    this.counters.failed++;
    this.#known.delete(known.key);
    log.warn("an event could not be sent", { reason: known.text.reason, error });
  }

  #event(known: Known): KubeObject & Record<string, unknown> {
    const { regarding, text } = known;
    return {
      apiVersion: apiVersionOf(RESOURCES.events),
      kind: RESOURCES.events.kind,
      metadata: this.#keyOf(known),
      eventTime: known.firstTime,
      reportingController: this.#options.controller,
      reportingInstance: this.#options.instance.slice(0, REASON_CHARS_MAX),
      regarding,
      ...text,
      ...(known.count > 1 && { series: seriesOf(known) }),
    };
  }

  #keyOf(known: Known): { namespace: string; name: string } {
    return { namespace: known.regarding.namespace ?? "default", name: known.name };
  }

  #drop(message: string, fields: Record<string, unknown>): void {
    this.counters.dropped++;
    this.#options.log.warn(message, { ...fields, dropped: this.counters.dropped });
  }
}

function regardingOf({ apiVersion, kind, metadata }: KubeObject): Regarding {
  const { namespace, name, uid, resourceVersion } = metadata;
  return { apiVersion, kind, namespace, name, uid, resourceVersion };
}

function seriesOf({ count, lastTime }: Known): { count: number; lastObservedTime: string } {
  return { count, lastObservedTime: lastTime };
}

/** Names sort as the events came: `kubectl describe` shows those without a legacy time in the order of their names. */
function eventName(name: string, order: number, wall: Wall, random: Random): string {
  const ms = wall.getTime().toString(16).padStart(11, "0");
  const sequence = (order % 4096).toString(16).padStart(3, "0");
  return `${name.slice(0, 230)}.${ms}${sequence}${random.bytes(2).toString("hex")}`;
}

/** At most `NOTE_BYTES_MAX` bytes of UTF-8, never half a character. */
function truncate(note: string): string {
  const bytes = Buffer.from(note);
  if (bytes.length <= NOTE_BYTES_MAX) return note;
  let end = NOTE_BYTES_MAX - 3;
  while (((bytes[end] ?? 0) & 0xc0) === 0x80) end--;
  return `${bytes.subarray(0, end).toString()}…`;
}

function remember<V>(map: Map<string, V>, key: string, value: V, max: number): void {
  map.delete(key);
  map.set(key, value);
  for (const oldest of map.keys()) {
    if (map.size <= max) return;
    map.delete(oldest);
  }
}
