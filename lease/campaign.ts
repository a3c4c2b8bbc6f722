/**
 * How a process that is nobody's candidate takes a Lease itself: observe, wait, claim. For the controllers, among which
 * nobody grants.
 *
 * Does NOT end its predecessor: one that was paused may act once more when it wakes up. Its own permit stops it, and what
 * it had sent before is conditional on what it had read (INV-9).
 *
 * Invariants: a record that names another process is claimed only when it has stood unchanged for its whole duration on
 * our own clock, as far as we could see it (A07); conditional on the version seen; with a generation above all seen.
 */
import type { Clock } from "../platform/clock.ts";
import type { Logger } from "../platform/log.ts";
import { Pause } from "../platform/pause.ts";
import { jitter, type Random } from "../platform/random.ts";
import type { LeaseAnswer, LeaseClient, LeaseName } from "./client.ts";
import { type Observation, remainingMs, sight, unchangedMs } from "./observe.ts";
import {
  ELECTION_LABEL,
  type Grant,
  grantedLease,
  isOurs,
  type LeaseRecord,
  type RawLease,
  readLease,
} from "./record.ts";
import { type LeaseTiming, overdueMs, silentMs } from "./timing.ts";

export type CampaignApi = Pick<LeaseClient, "get" | "replace" | "create" | "watch">;

/** Who campaigns. */
export interface Campaigner {
  /** Its name, for people. */
  readonly pod: string;
  readonly podUid: string;
  /** Of this process: one that a kubelet starts anew in the same pod has another (A13). */
  readonly nonce: string;
}

export interface CampaignParts {
  readonly api: CampaignApi;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Logger;
  readonly timing: LeaseTiming;
  readonly lease: LeaseName;
  readonly me: Campaigner;
  /** The leader has missed a renewal, or was heard again; told at each look. */
  readonly silent: (silent: boolean) => void;
}

export interface Won {
  readonly grant: Grant;
  readonly lease: RawLease;
}

const CONTENDED_MS = 100;

type Turn = { readonly won: Won } | { readonly waitMs: number };

export class Campaign {
  readonly #parts: CampaignParts;
  readonly #holder: string;
  #seen: Observation | undefined;
  /** Above all generations that were seen: a Lease that was deleted and made anew must not begin again below them. */
  #highest = 0;
  #attempted: Grant | null = null;
  #failures = 0;
  #problem: string | null = null;
  #leader: string | null = null;
  /** What the watch has brought and nobody has looked at. */
  #news: RawLease | null = null;
  readonly #rest = new Pause();

  constructor(parts: CampaignParts) {
    this.#parts = parts;
    this.#holder = `${parts.me.podUid}/${parts.me.nonce}`;
  }

  /** What stands in the way, for people; null while nothing does. */
  get problem(): string | null {
    return this.#problem;
  }

  /** Resolves when the Lease names this process. Goes on through every failure; rejects once aborted. */
  async win(signal: AbortSignal): Promise<Won> {
    const over = new AbortController();
    this.#attempted = null;
    this.#news = null;
    const following = this.#follow(AbortSignal.any([signal, over.signal]));
    try {
      for (;;) {
        signal.throwIfAborted();
        const turn = await this.#turn();
        if ("won" in turn) return turn.won;
        await this.#pause(turn.waitMs, signal);
      }
    } finally {
      over.abort();
      await following;
    }
  }

  async #turn(): Promise<Turn> {
    const { api, timing } = this.#parts;
    const news = this.#news;
    this.#news = null;
    const answer: LeaseAnswer = news ? { kind: "ok", lease: news } : await api.get(timing.requestTimeoutMs);
    if (answer.kind === "ok") return this.#consider(answer.lease);
    if (answer.kind === "notFound") return this.#claim(null);
    return this.#notDone("read", answer);
  }

  async #consider(raw: RawLease): Promise<Turn> {
    const { clock, timing } = this.#parts;
    const record = readLease(raw);
    this.#highest = Math.max(this.#highest, record.generation ?? 0);
    // Our own claim, whose answer was lost.
    if (this.#attempted && isOurs(record, this.#attempted)) return this.#won(this.#attempted, raw);
    const nowMs = clock.monoMs();
    // Between two looks when the watch brings nothing.
    const lookMs = overdueMs(timing);
    this.#seen = sight(this.#seen, record, nowMs, lookMs + timing.requestTimeoutMs);
    this.#tell(record);
    const patienceMs = silentMs(timing) - unchangedMs(this.#seen, nowMs);
    this.#parts.silent(patienceMs <= 0);
    const waitMs = this.#isFree(record) ? 0 : remainingMs(this.#seen, record, timing.durationMs, nowMs);
    return waitMs === 0 ? this.#claim(raw) : this.#unhindered(Math.min(waitMs, patienceMs > 0 ? patienceMs : lookMs));
  }

  /** Given back, or of a process of this very pod: that has ended, or this one would not have been started. */
  #isFree({ holder }: LeaseRecord): boolean {
    return holder === null || holder.startsWith(`${this.#parts.me.podUid}/`);
  }

  async #claim(raw: RawLease | null): Promise<Turn> {
    const { api, clock, timing, lease, me } = this.#parts;
    const next = this.#highest + 1;
    // Edited to the end of the numbers: they begin anew, as who holds is told by the process, too.
    const grant = { holder: this.#holder, generation: Number.isSafeInteger(next) ? next : 1 };
    this.#attempted = grant;
    const labels = { [ELECTION_LABEL]: "true" };
    const granted = grantedLease(
      raw,
      { ...grant, ...lease, holderPod: me.pod, durationMs: timing.durationMs, labels, ownerReferences: [] },
      clock.wall(),
    );
    const answer = await (raw
      ? api.replace(granted, timing.requestTimeoutMs)
      : api.create(granted, timing.requestTimeoutMs));
    if (answer.kind === "ok") return this.#won(grant, answer.lease);
    // Not what was to be made is missing, but where: nobody was faster.
    if (!raw && answer.kind === "notFound") {
      const message = `there is no namespace ${lease.namespace}`;
      return this.#notDone("claimed", { kind: "refused", status: 404, message, retryAfterMs: 0 });
    }
    return this.#notDone("claimed", answer);
  }

  #won(grant: Grant, lease: RawLease): Turn {
    this.#highest = grant.generation;
    this.#leader = null;
    this.#unhindered(0);
    return { won: { grant, lease } };
  }

  #unhindered(waitMs: number): { waitMs: number } {
    this.#failures = 0;
    this.#problem = null;
    return { waitMs };
  }

  #notDone(what: "read" | "claimed", answer: Exclude<LeaseAnswer, { kind: "ok" }>): Turn {
    const { log, random, timing, lease } = this.#parts;
    // Somebody was faster, or it was ourselves: it is read.
    if (answer.kind === "conflict" || answer.kind === "notFound") return this.#unhindered(jitter(random, CONTENDED_MS));
    this.#problem = `Lease ${lease.namespace}/${lease.name} could not be ${what}: ${answer.message}`;
    const askedMs = answer.kind === "refused" ? answer.retryAfterMs : 0;
    // Down to twice a duration and no further: after an outage somebody leads within one.
    const backoffMs = Math.min(timing.durationMs / 2, timing.renewIntervalMs * 2 ** this.#failures++);
    const waitMs = Math.max(askedMs, jitter(random, backoffMs));
    log[answer.kind === "refused" ? "error" : "warn"]("not elected, and perhaps nobody is; it is tried again", {
      why: this.#problem,
      retryInMs: Math.round(waitMs),
    });
    return { waitMs };
  }

  #tell({ holder, holderPod, generation }: LeaseRecord): void {
    if (holder === null || holder === this.#leader) return;
    this.#leader = holder;
    this.#parts.log.info("standing by", { leader: holderPod, generation });
  }

  /** A hint that saves time: what it does not bring is read. */
  async #follow(signal: AbortSignal): Promise<void> {
    const { api, clock, random, timing } = this.#parts;
    for (let quiet = 0; !signal.aborted; quiet++) {
      for await (const news of api.watch(undefined, signal)) {
        if (news.kind === "lease") this.#news = news.lease;
        else if (news.kind !== "deleted") continue;
        quiet = 0;
        this.#rest.wake();
      }
      const backoffMs = Math.min(2 * timing.durationMs, timing.renewIntervalMs * 2 ** quiet);
      await clock.sleep(jitter(random, backoffMs), signal).catch(() => {});
    }
  }

  /** Until the watch brings something, and at most so long. */
  async #pause(ms: number, signal: AbortSignal): Promise<void> {
    if (!this.#news) await this.#rest.wait(this.#parts.clock, ms, signal);
  }
}
