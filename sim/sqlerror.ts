/** An error as node-postgres brings it: `code` is the SQLSTATE. */
export class SqlError extends Error {
  readonly code: string;
  readonly severity: string;
  readonly detail = "";
  readonly hint = "";

  constructor(code: string, message: string, severity = "ERROR") {
    super(message);
    this.name = "SqlError";
    this.code = code;
    this.severity = severity;
  }
}
