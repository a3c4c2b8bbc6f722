/**
 * The SQLSTATEs of class `LF` that FencedJob adds: the one place that says what each of them means.
 *
 * The same codes are raised by the SQL of `fence/migrations`, by the fence's client and by the wire. Every message
 * starts with its code, because most drivers show the message and hide the SQLSTATE.
 */

export const FENCE_CODES = {
  LF001: {
    severity: "FATAL",
    final: true,
    meaning: "The generation of this pod is over, or was never its own.",
    hint: "This process must end; its successor continues from the last checkpoint.",
  },
  LF002: {
    severity: "ERROR",
    final: false,
    meaning: "Ownership cannot be confirmed now; it may come back under the same generation.",
    hint: "Retry: if ownership is confirmed again the session continues under the same generation.",
  },
  LF003: {
    severity: "FATAL",
    final: true,
    meaning: "The database's history is not the one in which this generation was raised (promotion, restore, copy).",
    hint: "This pod must be replaced: the next generation is raised in the present history.",
  },
  LF004: {
    severity: "ERROR",
    final: false,
    meaning: "Somebody who did not come through the proxy blocks the raise; the detail names who.",
    hint: "End what is named in the detail; the raise is tried again by itself.",
  },
  LF005: {
    severity: "FATAL",
    final: false,
    meaning: "Another control plane (cluster) raised the fence of this name last.",
    hint: "If its work has moved here for good, say so with spec.takeOver; else give one of the two jobs another spec.fenceName.",
  },
  LF010: {
    severity: "FATAL",
    final: false,
    meaning: "The role of this session ignores the privileges of a gate, so it cannot be refused.",
    hint: "Create a role for the application: fencedjob db role --database-url … --name invoice_app",
  },
  LF011: {
    severity: "FATAL",
    final: false,
    meaning: "The fence schema is missing in this database, or of a version that this program does not support.",
    hint: "Run, as an administrator of the database: fencedjob db install --database-url …",
  },
  LF012: {
    severity: "FATAL",
    final: false,
    meaning: "A right is missing in the database.",
    hint: "Look at what is missing: fencedjob db status --database-url …",
  },
  LF013: {
    severity: "FATAL",
    final: false,
    meaning: "The database is read-only or a standby: nothing can be fenced there.",
    hint: "Give the address of the primary, one that follows a failover.",
  },
  LF014: {
    severity: "FATAL",
    final: false,
    meaning: "A pooler in between does not give each session one of the server, or drops the read-only default.",
    hint: "Give the address of the server itself, or of a pooler in session mode as docs/connecting.md describes it.",
  },
  LF015: {
    severity: "FATAL",
    final: false,
    meaning: "The database cannot be reached; the detail keeps the original error.",
    hint: "Check the address and the TLS settings in the job's Secret; it is tried again by itself.",
  },
  LF016: {
    severity: "FATAL",
    final: false,
    meaning: "The database does not let this role in.",
    hint: "Check user and password in the job's Secret, and pg_hba.conf; it is tried again by itself.",
  },
  LF017: {
    severity: "FATAL",
    final: false,
    meaning: "The Secret of a database is missing, or gives no address.",
    hint: "Create or correct the Secret; it is read again by itself.",
  },
  LF018: {
    severity: "FATAL",
    final: false,
    meaning: "The proxy's port is taken by another process of the pod.",
    hint: "Choose another port in spec.databases.",
  },
  LF020: {
    severity: "ERROR",
    final: false,
    meaning: "The proxy does not support this yet.",
    hint: "Use what the message names instead.",
  },
  LF021: {
    severity: "ERROR",
    final: false,
    meaning: "This statement cannot be fenced.",
    hint: "Run it as an administrator outside the job.",
  },
  LF030: {
    severity: "ERROR",
    final: false,
    meaning: "A write to a protected table from outside of the fence of its job.",
    hint: "Write through the job's sidecar, or call fence.enter first in the same transaction.",
  },
  LF031: {
    severity: "ERROR",
    final: false,
    meaning: "A table cannot be protected or unprotected like that, or not now; the message says why.",
    hint: "See docs/protect.md for what can be protected.",
  },
} as const satisfies Record<string, FenceCodeEntry>;

export interface FenceCodeEntry {
  /** FATAL ends the session; ERROR leaves it usable. */
  readonly severity: "ERROR" | "FATAL";
  /** Final: no retry of this pod can succeed, ever (INV-7). */
  readonly final: boolean;
  readonly meaning: string;
  /** What to do when nothing more precise is known. */
  readonly hint: string;
}

export type FenceCode = keyof typeof FENCE_CODES;

export function isFenceCode(code: unknown): code is FenceCode {
  return typeof code === "string" && Object.hasOwn(FENCE_CODES, code);
}
