/**
 * Which prepared statements and portals of a session are not plain: a Bind of "s1" may be a COMMIT.
 *
 * A Parse, Bind or Close may fail, or be skipped behind an error; then the name means what it meant before. So each
 * change is noted with its previous meaning until its answer has come. Whoever notes one lets the next group wait.
 */

import { ProtocolError } from "./framer.ts";
import type { Statement } from "./lexer.ts";
import { cstringEnd } from "./messages.ts";

/** Names of one session that are not plain. */
const NAMES_MAX = 10_000;

/** After a DEALLOCATE in SQL a name may be given to another text, in SQL too: it is handled as the worst of both. */
const UNKNOWN: Statement = { kind: "unknown", offset: 0, ordinal: 0, words: "" };

type Table = Map<string, Statement>;

export class Names {
  readonly #statements: Table = new Map();
  readonly #portals: Table = new Map();
  readonly #changes: { table: Table; name: string; previous: Statement | undefined }[] = [];

  /** `bytes[start..end)`: the name of a prepared statement. Nothing is decoded while nothing is noted. */
  statement(bytes: Buffer, start: number, end: number): Statement | undefined {
    return this.#statements.size === 0 ? undefined : this.#statements.get(bytes.toString("latin1", start, end));
  }

  portal(bytes: Buffer, start: number, end: number): Statement | undefined {
    return this.#portals.size === 0 ? undefined : this.#portals.get(bytes.toString("latin1", start, end));
  }

  /** A Parse gives the name at `start` a meaning. True: the change was noted, its answer is to be told. */
  parse(bytes: Buffer, start: number, end: number, statement: Statement | undefined): boolean {
    return this.#set(this.#statements, bytes, start, end, statement);
  }

  bind(bytes: Buffer, start: number, end: number, statement: Statement | undefined): boolean {
    return this.#set(this.#portals, bytes, start, end, statement);
  }

  /** `start`: of the body of a Close or Describe message, the letter S or P and a name. */
  close(bytes: Buffer, start: number, end: number): boolean {
    const table = bytes[start] === 0x53 ? this.#statements : this.#portals;
    return this.#set(table, bytes, start + 1, cstringEnd(bytes, start + 1, end), undefined);
  }

  described(bytes: Buffer, start: number, end: number): Statement | undefined {
    return bytes[start] === 0x53 ? this.statement(bytes, start + 1, end) : this.portal(bytes, start + 1, end);
  }

  /** The oldest noted change has succeeded. */
  confirmed(): void {
    this.#changes.shift();
  }

  /** What was noted and not confirmed has failed or was skipped. */
  failed(): void {
    for (let change = this.#changes.pop(); change; change = this.#changes.pop()) {
      if (change.previous) change.table.set(change.name, change.previous);
      else change.table.delete(change.name);
    }
  }

  /** DEALLOCATE ALL or DISCARD ALL. */
  clear(): void {
    this.#statements.clear();
  }

  /** DEALLOCATE of one name in SQL, which is not known. */
  doubt(): void {
    for (const name of this.#statements.keys()) this.#statements.set(name, UNKNOWN);
  }

  #set(table: Table, bytes: Buffer, start: number, end: number, statement: Statement | undefined): boolean {
    if (statement === undefined && table.size === 0) return false;
    const name = bytes.toString("latin1", start, end);
    const previous = table.get(name);
    if (statement === undefined && previous === undefined) return false;
    if (table.size >= NAMES_MAX) throw new ProtocolError("too many prepared transaction statements");
    this.#changes.push({ table, name, previous });
    if (statement) table.set(name, statement);
    else table.delete(name);
    return true;
  }
}
