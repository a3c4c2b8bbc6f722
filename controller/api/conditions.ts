/** metav1.Condition lists: one entry per type, the transition time moves only when the status changes. */
import { CONDITION_TYPES, type ConditionType, type Reason } from "./reasons.ts";
import type { Condition } from "./status.ts";

/** Conditions and events carry at most 1 KiB of text: an error of a database can be as long as it likes. */
const MESSAGE_CHARACTERS_MAX = 1024;

export interface ConditionChange {
  readonly status: "True" | "False" | "Unknown";
  readonly reason: Reason;
  readonly message: string;
}

export type Conditions = Readonly<Record<ConditionType, ConditionChange>>;

/** The list after `changes`; types that are not mentioned stay, or are Unknown on first sight. */
export function mergeConditions(
  current: readonly Condition[],
  changes: Partial<Conditions>,
  at: { wall: string; observedGeneration: number },
): Condition[] {
  return CONDITION_TYPES.map((type) => {
    const before = current.find((condition) => condition.type === type);
    const change = changes[type] ?? before ?? { status: "Unknown", reason: "Pending", message: "" };
    const same = before?.status === change.status;
    return {
      type,
      status: change.status,
      reason: change.reason,
      message: truncate(change.message),
      lastTransitionTime: same ? before.lastTransitionTime : at.wall,
      observedGeneration: at.observedGeneration,
    };
  });
}

/** Never half a character: the API server stores another one in its place, and the status would be written anew each time. */
export function truncate(text: string, charactersMax = MESSAGE_CHARACTERS_MAX): string {
  const fits =
    text.length <= charactersMax ? text : `${text.slice(0, charactersMax - 1).replace(/[\ud800-\udbff]$/, "")}…`;
  return fits.toWellFormed();
}
