/**
 * What goes wrong with a fence, for the person who is woken up by it: what happened, what it means, what to do.
 *
 * A FenceError never says that a transaction did not commit unless that is known: a lost connection is LF015 and
 * leaves the outcome open (INV-10).
 */
import { FENCE_CODES, type FenceCode, isFenceCode } from "./codes.ts";
import { type DatabaseAddress, whereIs } from "./database.ts";
import { TlsFailure } from "./socket.ts";

export interface FenceErrorText {
  readonly message: string;
  readonly detail?: string | undefined;
  /** What to do; the code's own hint if absent. */
  readonly hint?: string | undefined;
  readonly cause?: unknown;
}

export class FenceError extends Error {
  override readonly name = "FenceError";
  readonly code: FenceCode;
  readonly detail: string;
  readonly hint: string;
  /** No retry of this pod can succeed, ever. */
  readonly final: boolean;

  constructor(code: FenceCode, text: FenceErrorText) {
    const message = text.message.startsWith(`${code}: `) ? text.message : `${code}: ${text.message}`;
    super(message, text.cause === undefined ? {} : { cause: text.cause });
    this.code = code;
    this.detail = text.detail ?? "";
    this.hint = text.hint ?? FENCE_CODES[code].hint;
    this.final = FENCE_CODES[code].final;
  }
}

/** The server asks for a login that cannot be given, or gives none that can be believed. */
export class LoginError extends Error {
  override name = "LoginError";
}

/** None of several servers could be used. */
export class NoServer extends Error {
  override name = "NoServer";
  readonly failures: readonly { readonly where: string; readonly error: unknown }[];

  constructor(failures: NoServer["failures"]) {
    super(failures.map(({ where, error }) => `${where}: ${error instanceof Error ? error.message : error}`).join("; "));
    this.failures = failures;
  }
}

/** SQLSTATEs of PostgreSQL that mean one of our codes wherever they appear before protected work has begun. */
const BY_SQLSTATE: Readonly<Record<string, FenceCode>> = {
  "3F000": "LF011", // schema does not exist
  "42P01": "LF011", // table does not exist
  "42883": "LF011", // function does not exist
  "42501": "LF012", // insufficient privilege
  "25006": "LF013", // read-only transaction
  "28P01": "LF016", // wrong password
  "28000": "LF016", // no pg_hba line, role does not exist
  "3D000": "LF015", // database does not exist
  "53300": "LF015", // too many connections
  "57P01": "LF015", // ended by an administrator
  "57P02": "LF015", // ended by a crash
  "57P03": "LF015", // starting up or shutting down
  "08006": "LF015",
  "08P01": "LF015",
};

/** The code for an SQLSTATE of a server's error, or `fallback`; a code of ours is itself. */
export function codeOfSqlState(sqlState: string, fallback: FenceCode): FenceCode {
  if (isFenceCode(sqlState)) return sqlState;
  return BY_SQLSTATE[sqlState] ?? fallback;
}

interface ErrorLike {
  readonly code?: unknown;
  readonly message?: unknown;
  readonly detail?: unknown;
  readonly hint?: unknown;
  readonly severity?: unknown;
}

/** SQLSTATE of an error that a PostgreSQL server sent, else undefined. */
export function sqlStateOf(error: unknown): string | undefined {
  const { code, severity } = (error ?? {}) as ErrorLike;
  return typeof code === "string" && typeof severity === "string" && code.length === 5 ? code : undefined;
}

/** Any failure while `doing` something with the database at `address`, as a FenceError. */
export function toFenceError(error: unknown, address: DatabaseAddress, doing: string): FenceError {
  if (error instanceof FenceError) return error;
  const sqlState = sqlStateOf(error);
  const original = error instanceof Error ? error.message : String(error);
  if (error instanceof NoServer) return noServer(error, address, doing);
  if (sqlState === undefined) return connectionError(error, original, address, doing);
  const { detail, hint } = error as ErrorLike;
  const code = codeOfSqlState(sqlState, "LF015");
  if (isFenceCode(sqlState)) {
    return new FenceError(code, {
      message: original,
      detail: typeof detail === "string" ? detail : undefined,
      hint: typeof hint === "string" ? hint : undefined,
      cause: error,
    });
  }
  const text = SERVER_TEXT[sqlState]?.(address) ?? {
    message: `${doing} failed in database "${address.database}"`,
    // The database has answered: its address is not what is wrong.
    ...(!Object.hasOwn(BY_SQLSTATE, sqlState) && { hint: "See what PostgreSQL says. It is tried again by itself." }),
  };
  return new FenceError(code, {
    ...text,
    detail: `PostgreSQL says: ${original} (SQLSTATE ${sqlState}).`,
    cause: error,
  });
}

type Describe = (address: DatabaseAddress) => { message: string; hint?: string };

const missingSchema: Describe = ({ database }) => ({
  message: `the fence schema is missing or incomplete in database "${database}"`,
  hint: "Nothing is fenced there yet. Run, as an administrator of the database: fencedjob db install --database-url …",
});

const SERVER_TEXT: Readonly<Record<string, Describe>> = {
  "3F000": missingSchema,
  "42P01": missingSchema,
  "42883": missingSchema,
  "42501": ({ user, database }) => ({
    message: `role "${user}" lacks a right in database "${database}"`,
    hint: `Make it a proper role of a fenced application: fencedjob db role --database-url … --name ${user}`,
  }),
  "25006": ({ database }) => ({
    message: `database "${database}" takes no writes`,
    hint: "It is read-only or a standby: give the address of the primary, one that follows a failover. Or an event trigger writes at each login, where the session's default is read-only already: it must leave the job's role out.",
  }),
  "28P01": ({ user }) => ({
    message: `the database refuses the password of role "${user}"`,
    hint: "Correct the password in the job's Secret; it is tried again by itself.",
  }),
  "28000": ({ user, database }) => ({
    message: `the database does not let role "${user}" into database "${database}"`,
    hint: "The role is missing, cannot log in, or pg_hba.conf has no line for this client (or demands TLS).",
  }),
  "3D000": (address) => ({
    message: `database "${address.database}" does not exist at ${whereIs(address)}`,
    hint: "Correct dbname in the job's Secret; it is tried again by itself.",
  }),
  "53300": (address) => ({
    message: `the database at ${whereIs(address)} has no free connection`,
    hint: "Raise max_connections or close idle clients: a takeover needs up to two connections. It is tried again by itself.",
  }),
  "57P03": (address) => ({
    message: `the database at ${whereIs(address)} is starting or stopping`,
    hint: "Wait: it is tried again by itself.",
  }),
};

/** What `db install` and `db role` have failed with: an administrator runs them, and needs another right than an application. */
export function toAdministrator(error: unknown, address: DatabaseAddress): unknown {
  const sqlState = sqlStateOf(error);
  const detail = `PostgreSQL says: ${error instanceof Error ? error.message : error}. Nothing was changed.`;
  // There is no fence_sidecar that could be granted.
  if (sqlState === "42704") return new FenceError("LF011", { ...missingSchema(address), detail, cause: error });
  if (sqlState !== "42501") return error;
  return new FenceError("LF012", {
    message: `role "${address.user}" is no administrator of database "${address.database}"`,
    detail,
    hint: "Run it as an administrator: a superuser, or a role with CREATEROLE, and CREATE on the database; from PostgreSQL 16 on the one that installed the fence schema.",
    cause: error,
  });
}

function connectionError(error: unknown, original: string, address: DatabaseAddress, doing: string): FenceError {
  const code = String((error as ErrorLike | undefined)?.code ?? "");
  const where = whereIs(address);
  const detail = `The original error is: ${original}${code ? ` (${code})` : ""}.`;
  if (error instanceof TlsFailure) {
    return new FenceError("LF015", {
      message: `no TLS connection with ${where} under sslmode=${address.sslmode}`,
      detail,
      hint: "Check sslmode and ca.crt in the job's Secret, and that the certificate names the host.",
      cause: error,
    });
  }
  if (/password must be/.test(original)) {
    return new FenceError("LF016", {
      ...SERVER_TEXT["28P01"]?.(address),
      message: `the database demands a password of role "${address.user}", and there is none`,
      detail,
      cause: error,
    });
  }
  if (error instanceof LoginError) {
    return new FenceError("LF016", { message: `cannot log in to the database: ${original}`, cause: error });
  }
  return new FenceError("LF015", {
    message: `the database at ${where} cannot be reached (${doing})`,
    detail,
    hint: "Check host and port in the job's Secret, network policies, and that the server runs; it is tried again by itself.",
    cause: error,
  });
}

function noServer(error: NoServer, address: DatabaseAddress, doing: string): FenceError {
  const onlyStandbys = error.failures.every(({ error: one }) => (one as ErrorLike | undefined)?.code === "LF013");
  const message = onlyStandbys
    ? `none of the servers ${whereIs(address)} is a primary`
    : `none of the servers ${whereIs(address)} can be used (${doing})`;
  return new FenceError(onlyStandbys ? "LF013" : "LF015", { message, detail: `${error.message}.`, cause: error });
}
