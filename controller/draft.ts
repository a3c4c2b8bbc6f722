/** One plan while it is being made: everything that `decide` concludes ends in status, conditions, events or actions. */
import { isoSeconds } from "../platform/clock.ts";
import { type Conditions, mergeConditions } from "./api/conditions.ts";
import type { Reason } from "./api/reasons.ts";
import type { FencedJobStatus } from "./api/status.ts";
import type { Snapshot } from "./snapshot.ts";

export type Action =
  /** Kubernetes keeps the FencedJob until it is taken away again. */
  | { readonly kind: "addFinalizer" }
  | { readonly kind: "removeFinalizer" }
  /** `closes`: what is to be closed, by a closer all that is open, by a candidate what has left the spec. */
  | {
      readonly kind: "createPod";
      readonly attempt: number;
      readonly closer: boolean;
      readonly closes: readonly OpenFence[];
    }
  | { readonly kind: "deletePod"; readonly pod: string; readonly uid: string }
  /** Write the Lease for the owner that the plan's status names, conditional on the observed version. */
  | { readonly kind: "grant" }
  /** Take the name of an ended holder off the Lease. */
  | { readonly kind: "clearLease"; readonly holder: string; readonly generation: number }
  | { readonly kind: "deleteJob" };

export interface OpenFence {
  readonly database: string;
  readonly secretName: string;
}

export interface EventDraft {
  readonly type: "Normal" | "Warning";
  readonly reason: Reason;
  readonly message: string;
}

export interface Plan {
  readonly status: FencedJobStatus;
  readonly events: readonly EventDraft[];
  readonly actions: readonly Action[];
  /** Look again after so long even if nothing changes; null = only on a change. */
  readonly requeueAfterMs: number | null;
}

export class Draft {
  readonly snapshot: Snapshot;
  readonly status: FencedJobStatus;
  readonly wall: string;
  readonly actions: Action[] = [];
  readonly #events: EventDraft[] = [];
  readonly #conditions: Partial<Record<keyof Conditions, Conditions[keyof Conditions]>> = {};
  #requeueAfterMs = Number.POSITIVE_INFINITY;

  constructor(snapshot: Snapshot) {
    this.snapshot = snapshot;
    this.status = structuredClone(snapshot.status);
    this.wall = isoSeconds(snapshot.wallMs);
  }

  event(type: EventDraft["type"], reason: Reason, message: string): void {
    this.#events.push({ type, reason, message });
  }

  condition(type: keyof Conditions, status: "True" | "False" | "Unknown", reason: Reason, message: string): void {
    this.#conditions[type] = { status, reason, message };
  }

  /** The condition before this plan, so that an event is told once per change. */
  reasonBefore(type: keyof Conditions): string | undefined {
    return this.snapshot.status.conditions.find((condition) => condition.type === type)?.reason;
  }

  lookAgainIn(ms: number): void {
    this.#requeueAfterMs = Math.min(this.#requeueAfterMs, Math.max(0, ms));
  }

  plan(): Plan {
    const { generation } = this.snapshot.job;
    this.status.observedGeneration = generation;
    this.status.conditions = mergeConditions(this.status.conditions, this.#conditions, {
      wall: this.wall,
      observedGeneration: generation,
    });
    return {
      status: this.status,
      events: this.#events,
      actions: this.actions,
      requeueAfterMs: Number.isFinite(this.#requeueAfterMs) ? this.#requeueAfterMs : null,
    };
  }
}

export function count(n: number, noun: string): string {
  return `${n} ${noun}${n === 1 ? "" : "s"}`;
}
