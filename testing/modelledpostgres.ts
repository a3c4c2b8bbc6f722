/**
 * A modelled session of PostgreSQL as the wire sees it: bytes in, bytes out. What it knows of SQL is in
 * `modelledsql.ts`, what that does in `modelledtransactions.ts`.
 *
 * Does NOT bound what it takes: the wire in front of it must.
 */
import { type Action, DROP, Framer, type MessageHandler } from "../sidecar/wire/framer.ts";
import {
  BACK,
  cstring,
  cstringEnd,
  errorMessage,
  FRONT,
  message,
  parameterStatus,
  readyForQuery,
} from "../sidecar/wire/messages.ts";
import { type ModelledStatement, readSql } from "./modelledsql.ts";
import { ModelledTransactions, SqlError } from "./modelledtransactions.ts";

/** COPY FROM STDIN that waits for data: of a simple query, and what follows in its text, or of an Execute. */
interface CopyIn {
  readonly rest: readonly ModelledStatement[] | undefined;
}

const BODILESS = new Map([..."123Ins"].map((letter) => [letter, message(letter.charCodeAt(0), Buffer.alloc(0))]));
const ROW_DESCRIPTION = message(BACK.rowDescription, Buffer.alloc(2));
const DATA_ROW = message(BACK.dataRow, Buffer.alloc(2));
const PARAMETER_DESCRIPTION = message(0x74, Buffer.alloc(2));
const SUSPENDED = Buffer.concat([DATA_ROW, message(BACK.portalSuspended, Buffer.alloc(0))]);
const COPY_IN = message(BACK.copyIn, Buffer.alloc(3));
const FUNCTION_RESULT = message(0x56, Buffer.alloc(4, 0xff));
const GIVES_ROWS = new Set([
  "read",
  "writingRead",
  "show",
  "fails",
  "enterSelect",
  "bracketLock",
  "bracketUnlock",
  "checkOwner",
  "refuse",
]);

export class ModelledPostgres implements MessageHandler {
  readonly transactions: ModelledTransactions;
  /** The connection is closed. */
  ended = false;
  readonly #send: (bytes: Buffer) => void;
  readonly #framer = new Framer(this, { push: () => {} });
  #told: ModelledTransactions["settings"];
  #copy: CopyIn | undefined;
  /** After an error, up to Sync. */
  #skipping = false;

  /** `defaultReadOnly`: of its startup message. */
  constructor(send: (bytes: Buffer) => void, { defaultReadOnly = true } = {}) {
    this.#send = send;
    this.transactions = new ModelledTransactions(defaultReadOnly);
    this.#told = this.transactions.settings;
  }

  receive(bytes: Buffer): void {
    if (!this.ended) this.#framer.feed(bytes, 0, bytes.length);
  }

  /** The next generation is raised: a session inside is ended, or each is. */
  raise(everybody: boolean): void {
    if (everybody || this.transactions.inside) this.#die("57P01");
    this.transactions.gateOpen = false;
  }

  bytesNeeded(_type: number, total: number): number {
    return total;
  }

  message(type: number, bytes: Buffer, start: number, end: number): Action {
    if (this.ended) return DROP;
    const simple = type === FRONT.query || type === FRONT.functionCall;
    this.#caught(simple, () => this.#message(type, bytes.subarray(start + 5, end)));
    return DROP;
  }

  #message(type: number, body: Buffer): void {
    if (type === FRONT.terminate) {
      this.ended = true;
      return;
    }
    if (this.#copy) return this.#copying(type, this.#copy);
    if (type === FRONT.sync) {
      this.#skipping = false;
      return this.#endOfMessage();
    }
    if (this.#skipping) return;
    switch (type) {
      case FRONT.flush:
        if (body.length > 0) throw new SqlError("08P01");
        return;
      case FRONT.copyData:
      case FRONT.copyDone:
      case FRONT.copyFail:
        return;
      case FRONT.query:
        return this.#query(body);
      case FRONT.functionCall:
        this.transactions.run({ kind: "write" }, false);
        this.#send(FUNCTION_RESULT);
        return this.#endOfMessage();
      case FRONT.parse:
        return this.#parse(body);
      case FRONT.bind:
        return this.#bind(body);
      case FRONT.describe:
        return this.#describe(body);
      case FRONT.close:
        this.#table(body).delete(name(body, 1).text);
        return this.#sendBodiless("3");
      case FRONT.execute:
        return this.#execute(body);
      default:
        return this.#die("08P01");
    }
  }

  // ---- simple protocol ----

  #query(body: Buffer): void {
    const { text, next } = name(body, 0);
    if (next !== body.length) throw new SqlError("08P01");
    this.transactions.statements.delete("");
    this.transactions.portals.delete("");
    const statements = readSql(text, this.transactions.settings.standardStrings);
    if (!statements) throw new SqlError("42601");
    if (statements.length === 0) this.#sendBodiless("I");
    this.#run(statements, statements.length > 1);
  }

  #run(statements: readonly ModelledStatement[], several: boolean): void {
    for (const [at, statement] of statements.entries()) {
      this.transactions.prepare(statement);
      if (GIVES_ROWS.has(statement.kind)) this.#send(ROW_DESCRIPTION);
      const tag = this.transactions.run(statement, several);
      const copy = this.#copyOf(statement);
      if (copy) return this.#beginCopy(copy, statements.slice(at + 1));
      this.#complete(tag);
    }
    this.#endOfMessage();
  }

  // ---- extended protocol ----

  #parse(body: Buffer): void {
    const statement = name(body, 0);
    const text = name(body, statement.next);
    if (text.next + 2 > body.length) throw new SqlError("08P01");
    const { statements, settings } = this.transactions;
    this.transactions.begin();
    const read = readSql(text.text, settings.standardStrings);
    if (!read || read.length > 1) throw new SqlError("42601");
    this.transactions.prepare(read[0]);
    if (statement.text !== "" && statements.has(statement.text)) throw new SqlError("42P05");
    statements.set(statement.text, read[0]);
    this.#sendBodiless("1");
  }

  #bind(body: Buffer): void {
    const portal = name(body, 0);
    const statement = name(body, portal.next);
    if (statement.next + 6 > body.length) throw new SqlError("08P01");
    const { statements, portals } = this.transactions;
    this.transactions.begin();
    if (!statements.has(statement.text)) throw new SqlError("26000");
    const bound = statements.get(statement.text);
    this.transactions.prepare(bound);
    if (portal.text !== "" && portals.has(portal.text)) throw new SqlError("42P03");
    portals.set(portal.text, bound);
    this.#sendBodiless("2");
  }

  #describe(body: Buffer): void {
    const { text } = name(body, 1);
    const table = this.#table(body);
    this.transactions.begin();
    if (!table.has(text)) throw new SqlError("26000");
    const statement = table.get(text);
    if (table === this.transactions.statements) this.#send(PARAMETER_DESCRIPTION);
    if (statement && GIVES_ROWS.has(statement.kind)) this.#send(ROW_DESCRIPTION);
    else this.#sendBodiless("n");
  }

  #execute(body: Buffer): void {
    const { text, next } = name(body, 0);
    if (next + 4 !== body.length) throw new SqlError("08P01");
    this.transactions.begin();
    if (!this.transactions.portals.has(text)) throw new SqlError("34000");
    const statement = this.transactions.portals.get(text);
    if (!statement) return this.#sendBodiless("I");
    const tag = this.transactions.run(statement, false);
    const rowsMax = body.readInt32BE(next);
    const copy = this.#copyOf(statement);
    if (copy) this.#beginCopy(copy, undefined);
    else if (rowsMax === 1 && tag === "SELECT 1") this.#send(SUSPENDED);
    else this.#complete(tag);
  }

  #table(body: Buffer): Map<string, ModelledStatement | undefined> {
    return body[0] === 0x53 ? this.transactions.statements : this.transactions.portals;
  }

  // ---- COPY ----

  /** The statement if it is a COPY, or that which it executes. */
  #copyOf(statement: ModelledStatement): ModelledStatement | undefined {
    if (statement.kind === "copyIn" || statement.kind === "copyInFails") return statement;
    const executed = statement.kind === "execute" && this.transactions.statements.get(statement.name.toLowerCase());
    return executed ? this.#copyOf(executed) : undefined;
  }

  #beginCopy({ kind }: ModelledStatement, rest: CopyIn["rest"]): void {
    this.#send(COPY_IN);
    if (kind === "copyInFails") throw new SqlError("42809");
    this.#copy = { rest };
  }

  #copying(type: number, copy: CopyIn): void {
    if (type === FRONT.copyData || type === FRONT.flush || type === FRONT.sync) return;
    // The server has not read the message when it sees that it is none of COPY: from there on it is lost.
    if (type !== FRONT.copyDone && type !== FRONT.copyFail) return this.#die("08P01");
    this.#copy = undefined;
    const simple = copy.rest !== undefined;
    this.#caught(simple, () => {
      if (type === FRONT.copyFail) throw new SqlError("57014");
      this.#complete("COPY 1");
      if (copy.rest) this.#run(copy.rest, true);
    });
  }

  // ---- answers ----

  #caught(simple: boolean, step: () => void): void {
    try {
      step();
    } catch (error) {
      if (!(error instanceof SqlError)) throw error;
      this.#send(failure("ERROR", error.code));
      this.transactions.fail();
      if (simple) this.#endOfMessage();
      else this.#skipping = true;
    }
  }

  #endOfMessage(): void {
    this.transactions.endOfMessage();
    const { defaultReadOnly, standardStrings } = this.transactions.settings;
    if (this.#told.defaultReadOnly !== defaultReadOnly) this.#tell("default_transaction_read_only", defaultReadOnly);
    if (this.#told.standardStrings !== standardStrings) this.#tell("standard_conforming_strings", standardStrings);
    this.#told = this.transactions.settings;
    this.#send(readyForQuery(this.transactions.status));
  }

  #tell(setting: string, on: boolean): void {
    this.#send(parameterStatus(setting, on ? "on" : "off"));
  }

  #complete(tag: string): void {
    if (tag === "SELECT 1") this.#send(DATA_ROW);
    this.#send(message(BACK.commandComplete, cstring(tag)));
  }

  #sendBodiless(letter: string): void {
    this.#send(BODILESS.get(letter) as Buffer);
  }

  #die(code: string): void {
    if (this.ended) return;
    this.#send(failure("FATAL", code));
    this.ended = true;
  }
}

function failure(severity: string, code: string): Buffer {
  return errorMessage(BACK.error, new Map(Object.entries({ S: severity, V: severity, C: code, M: "modelled" })));
}

/** A string of a message. */
function name(body: Buffer, at: number): { text: string; next: number } {
  const stop = cstringEnd(body, at, body.length);
  if (stop >= body.length) throw new SqlError("08P01");
  return { text: body.toString("latin1", at, stop), next: stop + 1 };
}
