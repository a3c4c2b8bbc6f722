/**
 * A Lease in memory that keeps resource versions as the API server does, and misbehaves when told to: for tests of what a
 * holder does with lost answers. The real API server is in sidecar/leaseclient.api.test.ts and in e2e/.
 */

import type { CampaignApi } from "../lease/campaign.ts";
import { type LeaseAnswer, type LeaseNews, SILENT_MS, type WatchBounds } from "../lease/client.ts";
import { type Grant, grantedLease, type RawLease } from "../lease/record.ts";
import type { Clock } from "../platform/clock.ts";

/** One Lease with resource versions; each call takes `latencyMs`, and may be told to misbehave. */
export class ModelledLease implements CampaignApi {
  latencyMs = 10;
  /** For the next replace: done but not answered, or neither, or somebody's edit is done in front of it. */
  fault: "done-unanswered" | "lost" | "edited" | null = null;
  /** While true a watch brings the present state, then nothing, and is given up as silent. */
  silent = false;
  /** While true each replace is refused. */
  forbidden = false;
  /** While true its namespace is not there. */
  nowhere = false;
  /** While set each replace is too much, and the server asks to be left alone for so long. */
  throttledMs: number | null = null;
  /** While true nobody is answered. */
  down = false;
  gets = 0;
  replaces = 0;
  watches = 0;
  readonly #clock: Clock;
  readonly #server: { lease: RawLease | null; version: number };

  /** The Lease grants `grant` from the beginning; or it is the one that somebody else sees, over another way to the server. */
  constructor(clock: Clock, origin: Grant | ModelledLease | null) {
    this.#clock = clock;
    this.#server = origin instanceof ModelledLease ? origin.#server : { lease: null, version: 1 };
    if (origin && !(origin instanceof ModelledLease)) this.#grant(origin);
  }

  get lease(): RawLease | null {
    return this.#server.lease;
  }

  set lease(lease: RawLease | null) {
    this.#server.lease = lease;
  }

  #grant(grant: Grant): void {
    this.lease = this.#stored(
      grantedLease(
        null,
        {
          ...grant,
          name: "run",
          namespace: "n",
          holderPod: "run-1",
          durationMs: 10_000,
          labels: {},
          ownerReferences: [],
        },
        this.#clock.wall(),
      ),
    );
  }

  change(spec: object, annotations: Record<string, string> = {}): void {
    const { lease } = this;
    if (!lease) return;
    this.lease = this.#stored({
      ...lease,
      metadata: { ...lease.metadata, annotations: { ...lease.metadata.annotations, ...annotations } },
      spec: { ...lease.spec, ...spec },
    });
  }

  async get(timeoutMs: number): Promise<LeaseAnswer> {
    this.gets++;
    if (!(await this.#reached(timeoutMs))) return { kind: "unknown", message: "timeout", sent: true };
    return this.lease ? { kind: "ok", lease: this.lease } : { kind: "notFound" };
  }

  async replace(next: RawLease, timeoutMs: number): Promise<LeaseAnswer> {
    this.replaces++;
    const { fault } = this;
    this.fault = null;
    if (this.forbidden) return { kind: "refused", status: 403, message: "no", retryAfterMs: 0 };
    if (this.throttledMs !== null)
      return { kind: "refused", status: 429, message: "too many requests", retryAfterMs: this.throttledMs };
    if (!(await this.#reached(timeoutMs)) || fault === "lost")
      return { kind: "unknown", message: "timeout", sent: true };
    if (!this.lease) return { kind: "notFound" };
    if (fault === "edited") this.change({}, { "example.com/note": "x" });
    if (next.metadata.resourceVersion !== this.lease.metadata.resourceVersion) return { kind: "conflict" };
    this.lease = this.#stored(next);
    if (fault === "done-unanswered") {
      await this.#clock.sleep(timeoutMs);
      return { kind: "unknown", message: "timeout", sent: true };
    }
    return { kind: "ok", lease: this.lease };
  }

  async create(lease: RawLease, timeoutMs: number): Promise<LeaseAnswer> {
    const { fault } = this;
    this.fault = null;
    if (this.forbidden) return { kind: "refused", status: 403, message: "no", retryAfterMs: 0 };
    if (!(await this.#reached(timeoutMs)) || fault === "lost")
      return { kind: "unknown", message: "timeout", sent: true };
    if (this.nowhere) return { kind: "notFound" };
    if (this.lease) return { kind: "conflict" };
    const stored = this.#stored(lease);
    this.lease = stored;
    return { kind: "ok", lease: stored };
  }

  async *watch(
    _resourceVersion: string | undefined,
    signal: AbortSignal,
    { silentMs = SILENT_MS }: WatchBounds = {},
  ): AsyncGenerator<LeaseNews, void, void> {
    this.watches++;
    await this.#clock.sleep(this.latencyMs);
    if (this.down) {
      yield { kind: "ended", gone: false, message: "refused" };
      return;
    }
    if (this.lease) yield { kind: "lease", lease: this.lease };
    await this.#clock.sleep(this.silent ? silentMs : 500, signal).catch(() => {});
    if (!signal.aborted) yield { kind: "ended", gone: false, message: "the server ended the watch" };
  }

  async #reached(timeoutMs: number): Promise<boolean> {
    await this.#clock.sleep(Math.min(this.latencyMs, timeoutMs));
    return !this.down && this.latencyMs < timeoutMs;
  }

  #stored(lease: RawLease): RawLease {
    return structuredClone({
      ...lease,
      metadata: { ...lease.metadata, uid: "u", resourceVersion: String(this.#server.version++) },
    });
  }
}
