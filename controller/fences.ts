/** What the owner's report says about the fences: status list, condition and events. Pure. */
import type { RaisedFence, RaiseFailure, Report } from "../lease/report.ts";
import type { ConditionChange } from "./api/conditions.ts";
import type { Reason } from "./api/reasons.ts";
import type { FencedJobSpec } from "./api/spec.ts";
import type { FencedJobStatus, Owner } from "./api/status.ts";

type Fence = FencedJobStatus["fences"][number];

export interface FenceChange {
  readonly fences: FencedJobStatus["fences"];
  /** The lowest generation that every database accepts; null while one of them has none. */
  readonly fence: number | null;
  readonly condition: ConditionChange;
  readonly events: readonly { type: "Normal" | "Warning"; reason: Reason; message: string }[];
}

/** SQLSTATE of class LF (fence/codes.ts) → reason of the condition FenceRaised. */
const REASON_OF_CODE: Readonly<Record<string, Reason>> = {
  LF001: "RaiseRefused",
  LF003: "RaiseRefused",
  LF004: "RaiseBlocked",
  LF005: "RaisedElsewhere",
  LF010: "RoleNotFenceable",
  LF011: "SchemaMissing",
  LF012: "MissingRights",
  LF013: "DatabaseReadOnly",
  LF014: "PoolerInBetween",
  LF015: "DatabaseUnreachable",
  LF016: "AuthenticationFailed",
  LF017: "SecretMissing",
  LF018: "PortTaken",
};

export function fenceChange(
  owner: Owner,
  spec: FencedJobSpec,
  report: Report | null,
  before: FencedJobStatus,
  applicationStarted: boolean,
): FenceChange {
  const raised = report?.fences ?? [];
  const inSpec = spec.databases.flatMap(({ name, secretName }) => {
    const now = raised.find(({ database }) => database === name);
    if (now) return [entryOf(now, secretName)];
    return before.fences.filter(({ database }) => database === name);
  });
  // Of databases that have left the spec: until they are closed, or raised by somebody else above ours.
  const removed = before.fences.flatMap((fence) => {
    if (fence.closed || spec.databases.some(({ name }) => name === fence.database)) return [];
    if (report?.unclosed?.some(({ database, final }) => final && database === fence.database)) return [];
    const now = raised.find(({ database }) => database === fence.database);
    if (now?.closed) return [];
    return [now ? entryOf(now, fence.secretName) : fence];
  });
  const fences = [...inSpec, ...removed];
  const fence = inSpec.length < spec.databases.length ? null : Math.min(...inSpec.map(({ generation }) => generation));
  return {
    fences,
    fence,
    condition: withRemoved(condition(owner, spec, report, before, applicationStarted), removed, report),
    events: events(raised, report?.failures ?? [], before),
  };
}

/** Whether another cluster issues generations for the same fence: never a silent duel. */
export function issuerCondition(report: Report | null, spec: FencedJobSpec): ConditionChange | null {
  const foreign = report?.failures.find(({ code }) => code === "LF005");
  if (foreign) return { status: "True", reason: "RaisedElsewhere", message: text(foreign) };
  const all = spec.databases.every(({ name }) => report?.fences.some(({ database }) => database === name));
  return all ? { status: "False", reason: "OneIssuer", message: "this cluster raised the fence last" } : null;
}

function entryOf({ database, generation, incarnation, closed }: RaisedFence, secretName: string | undefined): Fence {
  return { database, generation, incarnation, ...(secretName && { secretName }), ...(closed && { closed }) };
}

function condition(
  owner: Owner,
  spec: FencedJobSpec,
  report: Report | null,
  before: FencedJobStatus,
  applicationStarted: boolean,
): ConditionChange {
  const failure = report?.failures[0];
  if (failure) {
    const reason = REASON_OF_CODE[failure.code] ?? "RaiseFailed";
    return { status: "False", reason, message: text(failure) };
  }
  if (owner.closes) {
    const open = before.fences.filter(({ closed }) => !closed).map(({ database }) => database);
    const message = `${owner.pod} raises the fence of ${open.join(", ")} to ${owner.generation} and closes it`;
    return { status: "False", reason: "FenceClosing", message };
  }
  const isRaised = (name: string): boolean => report?.fences.some(({ database }) => database === name) ?? false;
  const all = spec.databases.map(({ name }) => name);
  const names = all.filter(isRaised);
  const waiting = all.filter((name) => !isRaised(name));
  // INV-4: an application that has started has all databases that its pod knows of; the rest came into the spec later.
  if (waiting.length && !(applicationStarted && names.length)) {
    return {
      status: "False",
      reason: "Raising",
      message: `${owner.pod} is raising the fence of ${waiting.join(", ")} to ${owner.generation}`,
    };
  }
  const accept = names.length === 1 ? "accepts" : "accept";
  return {
    status: "True",
    reason: "Raised",
    message: `${names.join(", ")} ${accept} generation ${owner.generation} only${waiting.length ? `; ${waiting.join(", ")} joins with the next owner` : ""}`,
  };
}

/** A fence that nobody needs any more and that is still open is no reason not to work, and not passed over either. */
function withRemoved(told: ConditionChange, removed: readonly Fence[], report: Report | null): ConditionChange {
  if (told.reason !== "Raised" || !removed.length) return told;
  const open = removed.map(({ database, generation }) => {
    const why = report?.unclosed?.find((failure) => failure.database === database);
    return `${database}, which has left the spec, still lets generation ${generation} in${why ? ` (${text(why)})` : " until the next owner closes it"}`;
  });
  return { ...told, message: [told.message, ...open].join("; ") };
}

function events(
  raised: readonly RaisedFence[],
  failures: readonly RaiseFailure[],
  before: FencedJobStatus,
): FenceChange["events"] {
  const told = before.conditions.find(({ type }) => type === "FenceRaised")?.message;
  const news = raised.filter(
    ({ database, generation }) =>
      !before.fences.some((fence) => fence.database === database && fence.generation === generation),
  );
  return [
    ...news.map((fence) => ({ type: "Normal" as const, reason: "FenceRaised" as const, message: raisedText(fence) })),
    ...failures
      .filter((failure) => text(failure) !== told)
      .map((failure) => ({
        type: "Warning" as const,
        reason: REASON_OF_CODE[failure.code] ?? ("RaiseFailed" as const),
        message: text(failure),
      })),
  ];
}

function raisedText({ database, previousGeneration, generation, tookMs, sessionsEnded }: RaisedFence): string {
  const ended = sessionsEnded ? `, ${sessionsEnded} older session${sessionsEnded === 1 ? "" : "s"} ended` : "";
  return `${database}: fence ${previousGeneration ?? "none"} → ${generation} in ${Math.round(tookMs)} ms${ended}`;
}

function text({ database, code, message, hint }: RaiseFailure): string {
  // What comes from the database begins with its code: most drivers show nothing else.
  const said = message.startsWith(code) ? message : `${code} ${message}`;
  return `${database}: ${said}${hint ? ` ${hint}` : ""}`;
}
