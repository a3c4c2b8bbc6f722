/** The renewals of one Lease, as a watch shows them: from send to send, by the times that the holder wrote into it. */
import type { LeaseClient } from "../lease/client.ts";
import { readLease } from "../lease/record.ts";
import { wallMsOf } from "../platform/clock.ts";

export class Renewals {
  /** Between two of one holder. */
  readonly gapsMs: number[] = [];
  /** Holder and generation of each grant. */
  readonly grants = new Set<string>();
  #lastMs: number | undefined;

  async follow(lease: LeaseClient, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      for await (const news of lease.watch(undefined, signal)) {
        if (news.kind !== "lease") continue;
        const { holder, generation, renewTime } = readLease(news.lease);
        if (!this.grants.has(`${holder} ${generation}`)) this.#lastMs = undefined;
        this.grants.add(`${holder} ${generation}`);
        const ms = wallMsOf(renewTime ?? "");
        if (this.#lastMs !== undefined && ms > this.#lastMs) this.gapsMs.push(ms - this.#lastMs);
        this.#lastMs = ms;
      }
    }
  }
}
