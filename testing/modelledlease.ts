/**
 * A Lease in memory that keeps resource versions as the API server does, and misbehaves when told to: for tests of what a
 * holder does with lost answers. The real API server is in sidecar/leaseclient.api.test.ts and in e2e/.
 */

import type { LeaseAnswer, LeaseApi, LeaseNews } from "../lease/client.ts";
import { type Grant, grantedLease, type RawLease } from "../lease/record.ts";
import type { Clock } from "../platform/clock.ts";

/** One Lease with resource versions; each call takes `latencyMs`, and may be told to misbehave. */
export class ModelledLease implements LeaseApi {
  lease: RawLease | null;
  latencyMs = 10;
  /** For the next replace: done but not answered, or neither. */
  fault: "done-unanswered" | "lost" | null = null;
  /** While true a watch brings the present state, then nothing, and does not end. */
  silent = false;
  /** While true each replace is refused. */
  forbidden = false;
  /** While true nobody is answered. */
  down = false;
  replaces = 0;
  readonly #clock: Clock;
  #version = 1;

  /** The Lease grants `grant` from the beginning. */
  constructor(clock: Clock, grant: Grant) {
    this.#clock = clock;
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
        clock.wall(),
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
    if (!(await this.#reached(timeoutMs))) return { kind: "unknown", message: "timeout", sent: true };
    return this.lease ? { kind: "ok", lease: this.lease } : { kind: "notFound" };
  }

  async replace(next: RawLease, timeoutMs: number): Promise<LeaseAnswer> {
    this.replaces++;
    const { fault } = this;
    this.fault = null;
    if (this.forbidden) return { kind: "refused", status: 403, message: "no", retryAfterMs: 0 };
    if (!(await this.#reached(timeoutMs)) || fault === "lost")
      return { kind: "unknown", message: "timeout", sent: true };
    if (!this.lease) return { kind: "notFound" };
    if (next.metadata.resourceVersion !== this.lease.metadata.resourceVersion) return { kind: "conflict" };
    this.lease = this.#stored(next);
    if (fault === "done-unanswered") {
      await this.#clock.sleep(timeoutMs);
      return { kind: "unknown", message: "timeout", sent: true };
    }
    return { kind: "ok", lease: this.lease };
  }

  async *watch(_resourceVersion: string | undefined, signal: AbortSignal): AsyncGenerator<LeaseNews, void, void> {
    await this.#clock.sleep(this.latencyMs);
    if (this.lease) yield { kind: "lease", lease: this.lease };
    if (this.silent)
      await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
    else await this.#clock.sleep(500);
    if (!signal.aborted) yield { kind: "ended", gone: false, message: "the server ended the watch" };
  }

  async #reached(timeoutMs: number): Promise<boolean> {
    await this.#clock.sleep(Math.min(this.latencyMs, timeoutMs));
    return !this.down && this.latencyMs < timeoutMs;
  }

  #stored(lease: RawLease): RawLease {
    return structuredClone({
      ...lease,
      metadata: { ...lease.metadata, uid: "u", resourceVersion: String(this.#version++) },
    });
  }
}
