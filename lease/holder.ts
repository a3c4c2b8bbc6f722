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
import { jitter, type Random } from "../platform/random.ts";
import type { LeaseApi } from "./client.ts";
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
/** After a watch that brought nothing; doubled each time. Many candidates wait for one API server. */
const WATCH_RETRY_MS = { min: 1_000, max: 8_000 };
/** A watch can be half dead in silence: each begins anew with the present state after this, so a grant is seen at last. */
const WATCH_MS_MAX = 30_000;

export class Holder {
  readonly #parts: HolderParts;
  #raw: RawLease | null = null;
  #reportAtGrant: string | null = null;
  /** Send times of renewals that the record may show, by their renewal time. */
  readonly #sentAtMs = new Map<string, number>();
  #wake: () => void = () => {};
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
    const { api, clock, random, log, holder } = this.#parts;
    for (let failures = 0; ; failures++) {
      const life = new AbortController();
      const cancel = clock.after(jitter(random, WATCH_MS_MAX), () => life.abort());
      // Without a version a watch begins with the present state: what was missed between two of them is seen.
      for await (const news of api.watch(undefined, AbortSignal.any([signal, life.signal]))) {
        if (news.kind === "ended") log.warn("the watch of the Lease ended; it begins anew", { why: news.message });
        else failures = 0;
        if (news.kind !== "lease") continue;
        const record = readLease(news.lease);
        if (record.holder !== holder || record.generation === null) continue;
        cancel();
        this.found(news.lease);
        return { holder, generation: record.generation };
      }
      cancel();
      signal.throwIfAborted();
      if (life.signal.aborted) continue;
      const { min, max } = WATCH_RETRY_MS;
      await clock.sleep(jitter(random, Math.min(max, min * 2 ** failures)), signal);
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
    for (let unconfirmed = 0; !signal.aborted; ) {
      this.#poked = false;
      const sentAtMs = clock.monoMs();
      const outcome = await this.#renew(grant, sentAtMs);
      if (outcome.kind === "lost") {
        permit.lose();
        return outcome.why;
      }
      unconfirmed = outcome.kind === "confirmed" ? 0 : unconfirmed + 1;
      await this.#pause(this.#untilNextMs(sentAtMs, unconfirmed), signal);
    }
    return null;
  }

  /** An interval from the last send; after attempts that were not confirmed sooner, but ever less often. */
  #untilNextMs(sentAtMs: number, unconfirmed: number): number {
    const { clock, random, timing } = this.#parts;
    if (unconfirmed === 0) return Math.max(0, sentAtMs + timing.renewIntervalMs - clock.monoMs());
    return jitter(random, Math.min(timing.renewIntervalMs, RETRY_MS * 2 ** (unconfirmed - 1)));
  }

  /** Makes the next renewal happen now, so that a changed report is told at once. */
  renewSoon(): void {
    this.#poked = true;
    this.#wake();
  }

  /** Clears the holder if the Lease is still ours. Never a safety step: a failure costs the successor time only. */
  async release(grant: Grant): Promise<void> {
    const { api, clock, log, timing, report } = this.#parts;
    const read = await api.get(timing.requestTimeoutMs);
    if (read.kind !== "ok" || !isOurs(readLease(read.lease), grant)) return;
    const answer = await api.replace(releasedLease(read.lease, grant, clock.wall(), report()), timing.requestTimeoutMs);
    if (answer.kind !== "ok")
      log.warn("the Lease was not given back; the successor waits for it to run out", { answer });
  }

  async #renew(grant: Grant, sentAtMs: number): Promise<Outcome> {
    const { api, clock, timing, report } = this.#parts;
    if (!this.#raw) return this.#read(grant, null);
    const next = renewedLease(this.#raw, grant, clock.wall(), report());
    const renewTime = next.spec?.renewTime ?? "";
    // The earliest send wins should two renewals carry one time: a deadline too early is safe, one too late is not.
    if (!this.#sentAtMs.has(renewTime)) this.#sentAtMs.set(renewTime, sentAtMs);
    const answer = await api.replace(next, timing.requestTimeoutMs);
    if (answer.kind === "ok") return this.#adopt(answer.lease, grant, renewTime);
    if (answer.kind === "notFound") return { kind: "lost", why: "the Lease no longer exists" };
    if (answer.kind === "refused") this.#parts.log.warn("the API server refused a renewal", { answer });
    // A conflict or a missing answer says nothing about who holds the Lease: read it (INV-6).
    return this.#read(grant, renewTime);
  }

  async #read(grant: Grant, attempted: string | null): Promise<Outcome> {
    const answer = await this.#parts.api.get(this.#parts.timing.requestTimeoutMs);
    if (answer.kind === "ok") return this.#adopt(answer.lease, grant, attempted);
    if (answer.kind === "notFound") return { kind: "lost", why: "the Lease no longer exists" };
    this.#parts.log.warn("the renewal is not confirmed; it is tried again", { answer });
    return { kind: "unconfirmed" };
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
    this.#raw = raw;
    const sentAtMs = this.#sentAtMs.get(record.renewTime ?? "");
    if (sentAtMs === undefined) return { kind: "unconfirmed" };
    for (const [renewTime, at] of this.#sentAtMs) if (at < sentAtMs) this.#sentAtMs.delete(renewTime);
    // A Lease edited to a longer duration does not lengthen the permit; a shorter one shortens it.
    const durationMs = Math.min(record.durationMs || timing.durationMs, timing.durationMs);
    permit.extend(permitDeadlineMs(sentAtMs, durationMs, timing.marginMs));
    this.#parts.confirmed?.();
    return { kind: record.renewTime === attempted ? "confirmed" : "unconfirmed" };
  }

  async #pause(ms: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted || this.#poked) return;
    const woken = new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
    const timer = new AbortController();
    const sleep = this.#parts.clock.sleep(ms, AbortSignal.any([signal, timer.signal])).catch(() => {});
    await Promise.race([woken, sleep]);
    timer.abort();
  }
}

type Outcome =
  | { readonly kind: "confirmed" }
  | { readonly kind: "unconfirmed" }
  | { readonly kind: "lost"; readonly why: string };
