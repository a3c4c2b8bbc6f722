/** The wire's own errors as ErrorResponse: what happened, what it means, what to do. */
import { FENCE_CODES, type FenceCode } from "../../fence/codes.ts";
import type { FenceIdentity } from "../../fence/database.ts";
import type { FenceError } from "../../fence/errors.ts";
import { BACK, type ErrorFields, errorMessage } from "./messages.ts";
import type { Verdict } from "./verdict.ts";

export interface WireError {
  readonly severity: "ERROR" | "FATAL";
  /** SQLSTATE. */
  readonly code: string;
  readonly message: string;
  readonly detail?: string | undefined;
  readonly hint?: string | undefined;
}

export function errorBytes(error: WireError): Buffer {
  const fields: ErrorFields = new Map([
    ["S", error.severity],
    ["V", error.severity],
    ["C", error.code],
    ["M", error.message],
  ]);
  if (error.detail) fields.set("D", error.detail);
  if (error.hint) fields.set("H", error.hint);
  return errorMessage(BACK.error, fields);
}

/** An error of class LF with the severity and, unless given, the hint of the catalogue. */
export function fenceWireError(code: FenceCode, text: { message: string; detail?: string; hint?: string }): WireError {
  const entry = FENCE_CODES[code];
  const message = text.message.startsWith(`${code}: `) ? text.message : `${code}: ${text.message}`;
  return { severity: entry.severity, code, message, detail: text.detail, hint: text.hint ?? entry.hint };
}

/** Ownership is over: LF001, or LF003 when the database's history is another one. */
export function lostError(identity: FenceIdentity, verdict: Verdict, transactionOpen: boolean): WireError {
  const { fenceName, generation } = identity;
  const nothing = transactionOpen ? "Nothing of this transaction was committed. " : "";
  if (verdict.kind === "incarnation") {
    return fenceWireError("LF003", {
      message: `the history of the database is not the one in which generation ${generation} of FencedJob "${fenceName}" was raised`,
      detail: `The fence was raised in ${verdict.recorded}; this database is ${verdict.present}.`,
      hint: `${nothing}${FENCE_CODES.LF003.hint}`,
    });
  }
  return fenceWireError("LF001", {
    message: `generation ${generation} of FencedJob "${fenceName}" is over`,
    detail: whoTookOver(identity, verdict),
    hint: `${nothing}${FENCE_CODES.LF001.hint}`,
  });
}

/** What a client hears that was held for a generation which has ended before its first session. */
export function neverServed(fenceName: string, generation: number, why: string): WireError {
  return fenceWireError("LF001", {
    message: `generation ${generation} of FencedJob "${fenceName}" is over before it was raised`,
    detail: `${why.replace(/\.$/, "")}.`,
  });
}

/** The answer to a COMMIT was lost with the connection, and the fence is another's now (INV-10: unknown, not refused). */
export function unknownOutcome(identity: FenceIdentity, verdict: Verdict): WireError {
  return {
    severity: "FATAL",
    code: "08007",
    message: "the outcome of the transaction in flight is unknown: the database connection ended before its answer",
    detail: verdict.kind === "ours" || verdict.kind === "unknown" ? undefined : whoTookOver(identity, verdict),
    hint: "It has either been committed as a whole or not at all. Look in the database before doing it again.",
  };
}

export function connectionLost(): WireError {
  return {
    severity: "FATAL",
    code: "08006",
    message: "the connection to the database was lost",
    detail: "The server closed it without giving a reason. Nothing was in flight.",
    hint: "Connect again.",
  };
}

export function unconfirmedError(identity: FenceIdentity, endedMsAgo: number): WireError {
  return fenceWireError("LF002", {
    message: `this pod cannot confirm that it still owns "${identity.fenceName}"`,
    detail: `Its permission for generation ${identity.generation} ended ${(endedMsAgo / 1000).toFixed(1)} s ago, and no renewal has been confirmed since.`,
  });
}

export function besideBracket(): WireError {
  return fenceWireError("LF020", {
    message: "the proxy does not support other statements beside one that runs outside of transactions",
    detail:
      "CALL, DO, VACUUM, CREATE INDEX CONCURRENTLY and the like are fenced by a lock of the session, others by one of their transaction.",
    hint: "Send Sync between them.",
  });
}

export function twoPhaseRefused(words: string): WireError {
  return fenceWireError("LF021", {
    message: `${words} cannot be fenced`,
    detail: "A prepared transaction outlives its session and its generation; it could be committed after a takeover.",
    hint: "Use a plain COMMIT.",
  });
}

/** A name of the proxy in a message of the client. */
export function reservedName(): WireError {
  return {
    severity: "ERROR",
    code: "42939",
    message: "names of prepared statements and portals that begin with _fencedjob_ are reserved",
    detail: "The sidecar's proxy keeps the statements that enter the gate under such names.",
    hint: "Use another name.",
  };
}

export const SHUTTING_DOWN: WireError = {
  severity: "FATAL",
  code: "57P01",
  message: "the FencedJob sidecar is shutting down",
  hint: "An open transaction was rolled back.",
};

export const FULL: WireError = {
  severity: "FATAL",
  code: "53300",
  message: "the FencedJob sidecar has no free connection",
};

export function encodingRefused(encoding: string): WireError {
  return {
    ...notSupported(
      `client_encoding ${encoding}`,
      "Use UTF8; in this encoding a byte of a character can look like a backslash or a quote.",
    ),
    severity: "FATAL",
  };
}

export function notSupported(what: string, hint: string): WireError {
  return fenceWireError("LF020", { message: `the proxy does not support ${what} yet`, hint });
}

/** An error of the fence's client, or of a session's start, as the end of a connection. */
export function fatalOf(error: FenceError): WireError {
  return { severity: "FATAL", code: error.code, message: error.message, detail: error.detail, hint: error.hint };
}

function whoTookOver(identity: FenceIdentity, verdict: Verdict): string {
  if (verdict.kind === "closed") {
    return `It was closed at ${verdict.closedAt.slice(11, 19)}Z, and nobody has raised the next one.`;
  }
  if (verdict.kind !== "superseded") {
    return `The Lease names another holder; this pod holds generation ${identity.generation}.`;
  }
  const at = verdict.raisedAt ? ` at ${verdict.raisedAt.slice(11, 19)}Z` : "";
  return `Pod ${verdict.holderName} raised the fence to generation ${verdict.generation}${at}; this pod holds generation ${identity.generation}.`;
}
