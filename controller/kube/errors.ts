/** What the API server's refusals mean, in one place: callers ask these predicates and never look at status codes. */
import { HttpError, type HttpResponse, RETRY_AFTER_MS_MAX } from "../../platform/http.ts";

/** The `Status` object of an answer or of an ERROR event. */
interface Status {
  code?: number;
  reason?: string;
  message?: string;
  details?: { retryAfterSeconds?: number; causes?: { field?: string; message?: string }[] };
}

export class ApiError extends Error {
  readonly status: number;
  /** Kubernetes' own word: Conflict, AlreadyExists, NotFound, Invalid, Expired … */
  readonly reason: string;
  /** What each wrong field is, for an `Invalid` object. */
  readonly causes: readonly { field: string; message: string }[];
  /** How long the server asks to be left alone. */
  readonly retryAfterMs: number | undefined;

  constructor(what: string, code: number, status: Status, retryAfterSeconds?: number) {
    super(`${what}: ${status.message ?? `answered ${code}`}`);
    this.name = "ApiError";
    this.status = code;
    this.reason = status.reason ?? "";
    this.causes = (status.details?.causes ?? []).map(({ field = "", message = "" }) => ({ field, message }));
    const seconds = retryAfterSeconds ?? status.details?.retryAfterSeconds;
    this.retryAfterMs = seconds === undefined ? undefined : seconds * 1000;
  }
}

export function apiError(what: string, response: HttpResponse): ApiError {
  const seconds = Number(response.headers["retry-after"]);
  const body = typeof response.body === "object" && response.body !== null ? (response.body as Status) : {};
  return new ApiError(what, response.status, body, Number.isFinite(seconds) ? seconds : undefined);
}

export function watchError(what: string, object: unknown): ApiError {
  const status = (object ?? {}) as Status;
  return new ApiError(what, status.code ?? 500, status);
}

const has = (error: unknown, test: (error: ApiError) => boolean): boolean => error instanceof ApiError && test(error);

/** Somebody changed the object since it was read, or a precondition does not hold. */
export const isConflict = (error: unknown): boolean =>
  has(error, ({ status, reason }) => status === 409 && reason !== "AlreadyExists");

export const isAlreadyExists = (error: unknown): boolean =>
  has(error, ({ status, reason }) => status === 409 && reason === "AlreadyExists");

/** The object is not there. A 404 without the reason is about the path: a proxy's, or a resource that is not served. */
export const isNotFound = (error: unknown): boolean =>
  has(error, ({ status, reason }) => status === 404 && reason === "NotFound");

/** The server knows no such resource: its CRD is not there. One that is starting says so by 503. */
export const isNotServed = (error: unknown): boolean =>
  has(error, ({ status, reason }) => status === 404 && reason !== "NotFound");

/** The resource version or continue token is too old: list anew. */
export const isGone = (error: unknown): boolean => has(error, ({ status }) => status === 410);

/** The server did not take the request; see `retryAfterMs`. */
export const isThrottled = (error: unknown): boolean => has(error, ({ status }) => status === 429);

export const isUnauthorized = (error: unknown): boolean => has(error, ({ status }) => status === 401);

export const isForbidden = (error: unknown): boolean => has(error, ({ status }) => status === 403);

/** Nothing can be created there any more. */
export const isNamespaceEnding = (error: unknown): boolean =>
  has(error, ({ status, message }) => status === 403 && message.includes("because it is being terminated"));

/** What is not there is null. */
export async function ifThere<T>(answer: Promise<T>): Promise<T | null> {
  try {
    return await answer;
  } catch (error) {
    if (isNotFound(error)) return null;
    throw error;
  }
}

/** Gone already, or another one than was meant: null, and nothing is left to do. */
export async function unlessMoved<T>(answer: Promise<T>): Promise<T | null> {
  try {
    return await answer;
  } catch (error) {
    if (isNotFound(error) || isConflict(error)) return null;
    throw error;
  }
}

/** By somebody's webhook or policy, which answers with whatever code it likes. */
export const isDenied = (error: unknown): boolean =>
  has(error, ({ message }) => /\bdenied (the )?request\b/.test(message));

/** The server has looked at the request and will not do it, by its own rules or by somebody's. */
export const isRefused = (error: unknown): boolean =>
  has(error, ({ status }) => status >= 400 && status < 500 && ![404, 408, 409, 410, 429].includes(status));

/** There is no room for it now, which says nothing about the request. */
export const isQuotaExceeded = (error: unknown): boolean =>
  has(error, ({ status, message }) => status === 403 && message.includes("exceeded quota"));

/** The request itself is wrong: sent again unchanged it is refused again. */
export const isInvalid = (error: unknown): boolean =>
  has(error, ({ status }) => status === 400 || status === 413 || status === 415 || status === 422);

/** Somebody's admission webhook takes no part in dry runs: the API server then refuses all of them. */
export const isDryRunUnsupported = (error: unknown): boolean =>
  has(error, ({ status, message }) => status === 400 && message.includes("does not support dry run"));

/**
 * A write that may or may not have taken effect: read before anything else (INV-6). Every 5xx counts, also those that
 * refused for certain: an answer of 500 or 504 can hide a write that etcd committed.
 */
export const isUnknownOutcome = (error: unknown): boolean =>
  error instanceof HttpError ? error.sent : has(error, ({ status }) => status >= 500);

/** How long to wait at least before trying again, if the server said so; within bounds. */
export const retryAfterMs = (error: unknown): number =>
  error instanceof ApiError ? Math.min(error.retryAfterMs ?? 0, RETRY_AFTER_MS_MAX) : 0;
