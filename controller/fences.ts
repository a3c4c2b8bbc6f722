/** What the owner's report says about the fences: status list, condition and events. Pure. */
import type { RaisedFence, RaiseFailure, Report } from "../lease/report.ts";
import { type ConditionChange, truncate } from "./api/conditions.ts";
import type { Reason } from "./api/reasons.ts";
import type { FencedJobSpec } from "./api/spec.ts";
import type { FencedJobStatus, Owner } from "./api/status.ts";

type Fence = FencedJobStatus["fences"][number];

export interface FenceChange {
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
  atWork: boolean,
): FenceChange {
  const { inSpec, removed } = fencesAfter(spec, report, before.fences);
  const fence = inSpec.length < spec.databases.length ? null : Math.min(...inSpec.map(({ generation }) => generation));
  return {
    fence,
    condition: withRemoved(condition(owner, spec, report, before, atWork), removed, report),
    events: events(report?.fences ?? [], report?.failures ?? [], before),
  };
}

/** What is known of the fences with what the report says; `removed`: of databases that have left the spec. */
export function fencesAfter({ databases }: FencedJobSpec, report: Report | null, before: readonly Fence[]) {
  const raised = report?.fences ?? [];
  const inSpec = databases.flatMap(({ name, secretName }) => {
    const now = raised.find(({ database }) => database === name);
    if (now) return [entryOf(now, secretName)];
    return before.filter((fence) => fence.database === name && !isOver(fence, report));
  });
  // Until they are closed, or raised by somebody else above ours.
  const removed = before.flatMap((fence) => {
    if (fence.closed || databases.some(({ name }) => name === fence.database)) return [];
    if (isOver(fence, report)) return [];
    // Not by LF003: in the history that is there now nobody has closed it.
    const superseded = ({ database, code, final }: RaiseFailure): boolean =>
      final && code === "LF001" && database === fence.database;
    if (report?.unclosed?.some(superseded)) return [];
    const now = raised.find(({ database }) => database === fence.database);
    if (now?.closed) return [];
    return [now ? entryOf(now, fence.secretName) : fence];
  });
  return { inSpec, removed };
}

/** Raised, and out of the spec before that was seen: its Secret is known by the pod alone. */
export function leftUnseen(
  { databases }: FencedJobSpec,
  report: Report | null,
  before: readonly Fence[],
  told: readonly { readonly name: string; readonly secretName: string }[],
): Fence[] {
  const known = [...databases.map(({ name }) => name), ...before.map(({ database }) => database)];
  return (report?.fences ?? []).flatMap((raised) => {
    const secretName = told.find(({ name }) => name === raised.database)?.secretName;
    return secretName && !known.includes(raised.database) ? [entryOf(raised, secretName)] : [];
  });
}

/**
 * INV-3: at most one gate of a job is open. So whoever has raised above a fence of ours has closed it; another cluster too, which is the
 * last one that has raised where it refuses us.
 */
export function isOver({ database, generation }: Fence, report: Report | null): boolean {
  return [...(report?.failures ?? []), ...(report?.unclosed ?? [])].some(
    ({ database: where, code, floor }) => where === database && (code === "LF005" || (floor ?? 0) > generation),
  );
}

/** Whether another cluster issues generations for the same fence: never a silent duel. */
export function issuerCondition(report: Report | null, spec: FencedJobSpec): ConditionChange | null {
  const foreign = report?.failures.find(({ code }) => code === "LF005");
  if (foreign) return { status: "True", reason: "RaisedElsewhere", message: text(foreign) };
  const all = spec.databases.every(({ name }) => report?.fences.some(({ database }) => database === name));
  return all ? { status: "False", reason: "OneIssuer", message: "this cluster raised the fence last" } : null;
}

/** A Lease can be edited: what the API server stores otherwise than it was written would be written anew each time. */
function entryOf({ database, generation, closed, ...raised }: RaisedFence, secretName: string | undefined): Fence {
  const incarnation = truncate(raised.incarnation);
  return { database, generation, incarnation, ...(secretName && { secretName }), ...(closed && { closed }) };
}

function condition(
  owner: Owner,
  spec: FencedJobSpec,
  report: Report | null,
  before: FencedJobStatus,
  atWork: boolean,
): ConditionChange {
  const failure = report?.failures[0];
  if (failure) {
    const reason = REASON_OF_CODE[failure.code] ?? "RaiseFailed";
    return { status: "False", reason, message: failuresText(report?.failures ?? []) };
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
  // INV-4: an application that is at work has all databases that its pod knows of; the rest came into the spec later.
  if (waiting.length && !(atWork && names.length)) {
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
  // Told before, each by itself; cut off at the condition's bound, the message as a whole says whether anything is new.
  const told = before.conditions.find(({ type }) => type === "FenceRaised")?.message ?? "";
  const isTold = told === truncate(failuresText(failures));
  const news = raised.filter(
    ({ database, generation }) =>
      !before.fences.some((fence) => fence.database === database && fence.generation === generation),
  );
  return [
    ...news.map((fence) => ({ type: "Normal" as const, reason: "FenceRaised" as const, message: raisedText(fence) })),
    ...failures
      .filter((failure) => !isTold && !told.includes(text(failure)))
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

const failuresText = (failures: readonly RaiseFailure[]): string => failures.map(text).join("; ");

function text({ database, code, message, hint }: RaiseFailure): string {
  // What comes from the database begins with its code: most drivers show nothing else.
  const said = message.startsWith(code) ? message : `${code} ${message}`;
  return `${database}: ${said}${hint ? ` ${hint}` : ""}`;
}
