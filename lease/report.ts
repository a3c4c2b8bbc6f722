/**
 * What the owner's sidecar tells the controller: an annotation that it writes with its renewals, since its own Lease
 * is the only object that it may change. The controller believes it for the current grant only (INV-9).
 */

export interface RaisedFence {
  readonly database: string;
  readonly generation: number;
  readonly previousGeneration: number | null;
  readonly incarnation: string;
  readonly tookMs: number;
  readonly sessionsEnded: number;
  /** The generation was given up there: nobody writes until the next raise. */
  readonly closed: boolean;
}

export interface RaiseFailure {
  readonly database: string;
  /** SQLSTATE of class LF, see fence/codes.ts. */
  readonly code: string;
  readonly message: string;
  readonly hint: string;
  /** This pod can never raise: it must be replaced. */
  readonly final: boolean;
  /** Highest generation that the database has accepted, when it said so: the issuer's floor (INV-8). */
  readonly floor: number | null;
  /** The other control plane that raised the fence last; only with code LF005. */
  readonly issuer?: string;
}

export interface Report {
  readonly generation: number;
  readonly fences: readonly RaisedFence[];
  readonly failures: readonly RaiseFailure[];
  /** Of databases that have left the spec: why their fence is not closed yet. LF001, final: another generation is above ours there. */
  readonly unclosed?: readonly RaiseFailure[];
  /** The application has had a session of this generation, or was started under it: from then on its end counts (INV-9). */
  readonly served: boolean;
}

/** At the end of its life a sidecar leaves this as the container's termination message. */
export interface LastWords {
  readonly generation: number;
  /** Writes and commits of this pod that were refused because its generation was over or unconfirmed. */
  readonly rejectedWrites: number;
}

/** Annotations are limited to 256 KiB in all; a report with more databases than fit would fail the renewal itself. */
const REPORT_BYTES_MAX = 32 * 1024;

export function formatReport(report: Report): string {
  const text = JSON.stringify(report);
  if (text.length <= REPORT_BYTES_MAX) return text;
  const short = (failure: RaiseFailure): RaiseFailure => ({
    ...failure,
    message: failure.message.slice(0, 200),
    hint: "",
  });
  return JSON.stringify({ ...report, failures: report.failures.map(short), unclosed: report.unclosed?.map(short) });
}

/** null when there is none or it is not one: a Lease can be edited by anybody with the right to. */
export function parseReport(text: string | null): Report | null {
  const value = parseObject(text);
  if (!value || !isGeneration(value.generation)) return null;
  const { generation, fences, failures, unclosed = [] } = value;
  if (!Array.isArray(fences) || !fences.every(isFence)) return null;
  if (!Array.isArray(failures) || !failures.every(isFailure)) return null;
  if (!Array.isArray(unclosed) || !unclosed.every(isFailure)) return null;
  // A sidecar of an older version does not close.
  return {
    generation,
    fences: fences.map((fence) => ({ ...fence, closed: fence.closed === true })),
    failures,
    ...(unclosed.length && { unclosed }),
    served: value.served === true,
  };
}

const isGeneration = (value: unknown): value is number => Number.isSafeInteger(value) && Number(value) >= 1;
/** null: none; 0 in a floor: the database knows the job, and nothing was raised. */
const isGenerationOrNone = (value: unknown): boolean => value === null || value === 0 || isGeneration(value);
const areTexts = (...values: unknown[]): boolean => values.every((value) => typeof value === "string");

function isFence(value: unknown): value is RaisedFence {
  const { database, generation, previousGeneration, incarnation, tookMs, sessionsEnded } = fieldsOf(value);
  if (!areTexts(database, incarnation) || !isGeneration(generation)) return false;
  return isGenerationOrNone(previousGeneration) && Number.isFinite(tookMs) && Number.isSafeInteger(sessionsEnded);
}

function isFailure(value: unknown): value is RaiseFailure {
  const { database, code, message, hint, final, floor, issuer = "" } = fieldsOf(value);
  if (!areTexts(database, code, message, hint, issuer) || typeof final !== "boolean") return false;
  return isGenerationOrNone(floor);
}

export function parseLastWords(text: string | null | undefined): LastWords | null {
  const value = parseObject(text ?? null);
  if (!value || !Number.isSafeInteger(value.generation) || !Number.isSafeInteger(value.rejectedWrites)) return null;
  return value as unknown as LastWords;
}

function parseObject(text: string | null): Record<string, unknown> | null {
  if (text === null) return null;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? fieldsOf(value) : null;
  } catch {
    return null;
  }
}

const fieldsOf = (value: unknown): Record<string, unknown> => (value ?? {}) as Record<string, unknown>;
