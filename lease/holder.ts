/**
 * Holds the Lease of one grant: waits for it, renews it, notices its loss, gives it back.
 *
 * Does NOT stop a paused process from acting late: the permit's deadline is compared at each message of the wire
 * (INV-5), and the fence in PostgreSQL refuses whatever passes (INV-3).
 *
 * Invariants: renews and releases only what is ours by holder and generation, on the record just read, by
 * resourceVersion (INV-6); never creates a Lease; a loss is final (INV-7).
 */
import type { Clock } from "../platform/clock.ts";
import type { Logger } from "../platform/log.ts";
import { Pause } from "../platform/pause.ts";
import { jitter, type Random } from "../platform/random.ts";
import { type LeaseAnswer, type LeaseApi, SILENT_MS } from "./client.ts";
import type { Permit } from "./permit.ts";
import { type Grant, isOurs, type RawLease, readLease, releasedLease, renewedLease } from "./record.ts";
import { type LeaseTiming, permitDeadlineMs } from "./timing.ts";

export interface HolderParts {
  readonly api: LeaseApi;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Logger;
  readonly timing: LeaseTiming;
  readonly permit: Permit;
  /** This pod's UID. */
  readonly holder: string;
  /** What to tell the controller with the next renewal. */
  readonly report: () => string;
  /** A renewal was confirmed: the permit reaches further. */
  readonly confirmed?: () => void;
}

/** After an attempt that was not confirmed; doubled each time up to the renewal interval. */
const RETRY_MS = 250;
/** Each is bounded: a pod that ends has little time. */
const RELEASE_TRIES = 2;
/** After a watch that brought nothing; doubled each time. Many candidates wait for one API server … */
const WATCH_RETRY_MS = { min: 1_000, max: 8_000 };
/** … which may have ended all their watches at once: they come back far apart. */
const WATCH_RETRY_SPREAD = 0.5;
/** Bounds between which each watch draws its length: a candidate may wait for weeks, and there may be hundreds. */
const WATCH_SECONDS = { min: 300, max: 600 };
/**
 * A watch that brings nothing for so many durations, drawn by each, may be half dead, as of a server that has hung. An owner renews
 * three times in one; and a takeover is over in less than two, so that it costs no candidate a request.
 */
const SILENT_DURATIONS = { min: 2, max: 3 };

export class Holder {
  readonly #parts: HolderParts;
  #raw: RawLease | null = null;
  #reportAtGrant: string | null = null;
  /** Send times of renewals that the record may show, by their renewal time. */
  readonly #sentAtMs = new Map<string, number>();
  readonly #rest = new Pause();
  /** Asked to renew soon, perhaps while a renewal with the older report is on its way. */
  #poked = false;

  constructor(parts: HolderParts) {
    this.#parts = parts;
  }

  /** What the Lease said of the grant when it was found: of an earlier life of this sidecar, if of anybody. */
  get reportAtGrant(): string | null {
    return this.#reportAtGrant;
  }

  /** Resolves with the grant once the Lease names this pod. Goes on through every failure until aborted. */
  async waitForGrant(signal: AbortSignal): Promise<Grant> {
    const { api, clock, random, log, timing, holder } = this.#parts;
    const drawn = ({ min, max }: { min: number; max: number }): number => min + random.unit() * (max - min);
    for (let failures = 0; ; failures++) {
      const seconds = Math.round(drawn(WATCH_SECONDS));
      const silentMs = Math.min(SILENT_MS, timing.durationMs * drawn(SILENT_DURATIONS));
      // Without a version a watch begins with the present state: what was missed between two of them is seen.
      for await (const news of api.watch(undefined, signal, { seconds, silentMs })) {
        if (news.kind === "ended") log.info("the watch of the Lease ended; it begins anew", { why: news.message });
        else failures = 0;
        if (news.kind !== "lease") continue;
        const record = readLease(news.lease);
        if (record.holder !== holder || record.generation === null) continue;
        this.found(news.lease);
        return { holder, generation: record.generation };
      }
      signal.throwIfAborted();
      const ms = Math.min(WATCH_RETRY_MS.max, WATCH_RETRY_MS.min * 2 ** failures);
      await clock.sleep(jitter(random, ms, WATCH_RETRY_SPREAD), signal);
    }
  }

  /** The Lease as it was when it was granted, for a holder that has taken it itself. */
  found(lease: RawLease): void {
    this.#raw = lease;
    this.#reportAtGrant = readLease(lease).report;
  }

  /** Renews at once and then every interval, until ownership is lost (resolves with why) or `signal` aborts (resolves null). */
  async hold(grant: Grant, signal: AbortSignal): Promise<string | null> {
    const { clock, permit } = this.#parts;
    for (let failures = 0; !signal.aborted; ) {
      this.#poked = false;
      const sentAtMs = clock.monoMs();
      const outcome = await this.#renew(grant, sentAtMs);
      if (outcome.kind === "lost") {
        permit.lose();
        return outcome.why;
      }
      failures = outcome.kind === "confirmed" ? 0 : failures + 1;
      const ms = outcome.kind === "confirmed" ? this.#intervalMs(sentAtMs) : this.#retryMs(failures, outcome.askedMs);
      await this.#pause(ms, signal);
    }
    return null;
  }

  /** What is left of an interval from the last send. */
  #intervalMs(sentAtMs: number): number {
    const { clock, timing } = this.#parts;
    return Math.max(0, sentAtMs + timing.renewIntervalMs - clock.monoMs());
  }

  /** Soon, but ever later; and as late as the server asks, but in time for one more attempt before the permit ends. */
  #retryMs(failures: number, askedMs: number): number {
    const { clock, random, timing, permit } = this.#parts;
    const leftMs = permit.deadlineMs() - timing.requestTimeoutMs - clock.monoMs();
    const backoffMs = jitter(random, Math.min(timing.renewIntervalMs, RETRY_MS * 2 ** (failures - 1)));
    return Math.max(backoffMs, Math.min(askedMs, leftMs > 0 ? leftMs : timing.renewIntervalMs));
  }

  /** Makes the next renewal happen now, so that a changed report is told at once. */
  renewSoon(): void {
    this.#poked = true;
    this.#rest.wake();
  }

  /** Clears the holder if the Lease is still ours. Never a safety step: a failure costs the successor time only. */
  async release(grant: Grant): Promise<void> {
    const { api, clock, log, timing, report } = this.#parts;
    let answer: LeaseAnswer | undefined;
    for (let tries = 0; tries < RELEASE_TRIES; tries++) {
      answer = await api.get(timing.requestTimeoutMs);
      if (answer.kind === "notFound") return;
      if (answer.kind !== "ok") continue;
      if (!isOurs(readLease(answer.lease), grant)) return;
      answer = await api.replace(releasedLease(answer.lease, grant, clock.wall(), report()), timing.requestTimeoutMs);
      if (answer.kind === "ok") return;
    }
    log.warn("the Lease was not given back; the successor waits for it to run out", { answer });
  }

  /**
   * For a pod that ends before it has seen a grant: gives back what it was granted meanwhile. What the Lease tells of an earlier
   * life of its sidecar stays on it (INV-9).
   */
  async releaseUnseen(): Promise<void> {
    const { api, clock, log, timing, holder } = this.#parts;
    const read = await api.get(timing.requestTimeoutMs);
    if (read.kind !== "ok") return;
    const { generation, report, ...record } = readLease(read.lease);
    if (record.holder !== holder || generation === null) return;
    log.info("granted while it ends; given back", { generation });
    await api.replace(
      releasedLease(read.lease, { holder, generation }, clock.wall(), report ?? ""),
      timing.requestTimeoutMs,
    );
  }

  /**
   * What was not done, and the API server has neither refused nor taken its time for, is tried once more at once: after an answer of
   * 500, or somebody else's edit. Then without a read behind it: a server whose every other answer fails is not met in step.
   */
  async #renew(grant: Grant, sentAtMs: number): Promise<Outcome> {
    const { clock, timing } = this.#parts;
    const outcome = await this.#attempt(grant, sentAtMs);
    const nowMs = clock.monoMs();
    const tooLate = nowMs - sentAtMs >= timing.requestTimeoutMs;
    if (outcome.kind !== "unconfirmed" || !outcome.again || tooLate) return outcome;
    return this.#attempt(grant, nowMs, false);
  }

  async #attempt(grant: Grant, sentAtMs: number, reads = true): Promise<Outcome> {
    const { api, clock, log, timing, report } = this.#parts;
    if (!this.#raw) return this.#read(grant, null);
    const next = renewedLease(this.#raw, grant, clock.wall(), report());
    const renewTime = next.spec?.renewTime ?? "";
    // The earliest send wins should two renewals carry one time: a deadline too early is safe, one too late is not.
    if (!this.#sentAtMs.has(renewTime)) this.#sentAtMs.set(renewTime, sentAtMs);
    const answer = await api.replace(next, timing.requestTimeoutMs);
    if (answer.kind === "ok") return this.#adopt(answer.lease, grant, renewTime);
    if (answer.kind === "notFound") return { kind: "lost", why: "the Lease no longer exists" };
    if (answer.kind === "refused") log.warn("the API server refused a renewal", { answer });
    // A conflict or a missing answer says nothing about who holds the Lease: read it (INV-6). Too many requests are not
    // answered by one more.
    if (!reads || isThrottled(answer)) return unconfirmed(answer);
    const outcome = await this.#read(grant, renewTime);
    return outcome.kind === "unconfirmed" && answer.kind === "refused" ? unconfirmed(answer) : outcome;
  }

  async #read(grant: Grant, attempted: string | null): Promise<Outcome> {
    const answer = await this.#parts.api.get(this.#parts.timing.requestTimeoutMs);
    if (answer.kind === "ok") return this.#adopt(answer.lease, grant, attempted);
    if (answer.kind === "notFound") return { kind: "lost", why: "the Lease no longer exists" };
    this.#parts.log.warn("the renewal is not confirmed; it is tried again", { answer });
    return unconfirmed(answer);
  }

  /**
   * Takes a record just read as the present one; extends the permit if it shows a renewal of ours. Confirmed is the one
   * just attempted only: a record that shows an older one after a conflict or a lost request is renewed again soon.
   */
  #adopt(raw: RawLease, grant: Grant, attempted: string | null): Outcome {
    const { permit, timing } = this.#parts;
    const record = readLease(raw);
    if (!isOurs(record, grant)) {
      const whom =
        record.holder === null ? "nobody" : `${record.holderPod ?? record.holder} with generation ${record.generation}`;
      return { kind: "lost", why: `the Lease names ${whom}` };
    }
    // A Lease edited to a longer duration does not lengthen the permit; a shorter one shortens it.
    const durationMs = Math.min(record.durationMs || timing.durationMs, timing.durationMs);
    // Else the permit would have ended in front of each renewal: an owner that does not work, and that nobody succeeds.
    if (durationMs - timing.marginMs <= timing.renewIntervalMs) {
      return { kind: "lost", why: `the Lease was edited to ${durationMs / 1000} s, too short to be renewed` };
    }
    this.#raw = raw;
    const sentAtMs = this.#sentAtMs.get(record.renewTime ?? "");
    const notYet: Outcome = { kind: "unconfirmed", again: true, askedMs: 0 };
    if (sentAtMs === undefined) return notYet;
    for (const [renewTime, at] of this.#sentAtMs) if (at < sentAtMs) this.#sentAtMs.delete(renewTime);
    permit.extend(permitDeadlineMs(sentAtMs, durationMs, timing.marginMs));
    this.#parts.confirmed?.();
    return record.renewTime === attempted ? { kind: "confirmed" } : notYet;
  }

  async #pause(ms: number, signal: AbortSignal): Promise<void> {
    if (!this.#poked) await this.#rest.wait(this.#parts.clock, ms, signal);
  }
}

type Outcome =
  | { readonly kind: "confirmed" }
  | {
      readonly kind: "unconfirmed";
      /** The record just read is ours, and does not show it. */
      readonly again: boolean;
      /** How long the server asks to be left alone. */
      readonly askedMs: number;
    }
  | { readonly kind: "lost"; readonly why: string };

const isThrottled = (answer: LeaseAnswer): boolean => answer.kind === "refused" && answer.status === 429;

function unconfirmed(answer: LeaseAnswer): Outcome {
  return { kind: "unconfirmed", again: false, askedMs: answer.kind === "refused" ? answer.retryAfterMs : 0 };
}
