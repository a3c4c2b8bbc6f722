/**
 * Which prepared statements and portals of a session are not plain: a Bind of "s1" may be a COMMIT.
 *
 * Does NOT see what SQL does inside a DO or a function: DEALLOCATE and PREPARE there give a name to another statement,
 * always a plain one. So what a name stands for is marked doubtful; only the unnamed ones are certain.
 *
 * A Parse, Bind or Close may fail, or be skipped behind an error; then the name means what it meant before. So what the
 * server has confirmed is kept apart from what is on its way. Whoever notes a change lets the next group wait; the
 * groups before it are still in flight, and an error of theirs takes nothing of it back.
 */

import { ProtocolError } from "./framer.ts";
import { cstringEnd, FRONT } from "./messages.ts";
import type { Statement } from "./statements.ts";

/** Names of prepared statements and portals that begin so are the proxy's; a client's message that uses one is refused. */
export const OWN_NAME_PREFIX = "_fencedjob_";

/** PostgreSQL cuts names to this (NAMEDATALEN - 1). */
const NAME_BYTES_MAX = 63;

/** Names of one session that are not plain. */
const NAMES_MAX = 10_000;

/** Of a name that cannot be compared: handled as the worst of all. */
const UNKNOWN: Statement = { kind: "unknown", offset: 0, ordinal: 0, words: "" };

type Table = Map<string, Statement>;

/** A change on its way; without a statement the name becomes a plain one. */
interface Change {
  readonly names: NamesOfAKind;
  readonly name: string;
  readonly statement: Statement | undefined;
}

/** Prepared statements, or portals. */
class NamesOfAKind {
  /** What the server has confirmed. */
  readonly #confirmed: Table = new Map();
  /** What the names mean to the client's next message. */
  readonly #table: Table = new Map();

  get size(): number {
    return this.#table.size;
  }

  get(name: string): Statement | undefined {
    return this.#table.get(name);
  }

  note({ name, statement }: Change): void {
    apply(this.#table, name, statement);
  }

  confirm({ name, statement }: Change): void {
    apply(this.#confirmed, name, statement);
  }

  clear(): void {
    const unnamed = this.#confirmed.get("");
    this.#confirmed.clear();
    if (unnamed) this.#confirmed.set("", unnamed);
  }

  end(): void {
    this.#confirmed.clear();
    this.#table.clear();
  }

  /** To what was confirmed, and `changes` that are still on their way. */
  rebuild(changes: readonly Change[]): void {
    this.#table.clear();
    for (const [name, statement] of this.#confirmed) this.#table.set(name, statement);
    for (const change of changes) if (change.names === this) this.note(change);
  }
}

function apply(table: Table, name: string, statement: Statement | undefined): void {
  if (statement) table.set(name, statement);
  else table.delete(name);
}

export class Names {
  readonly #statements = new NamesOfAKind();
  readonly #portals = new NamesOfAKind();
  /** On their way, the oldest first. */
  readonly #changes: Change[] = [];

  /** `bytes[start..end)`: the name of a prepared statement. */
  statement(bytes: Buffer, start: number, end: number): Statement | undefined {
    return find(this.#statements, bytes, start, end);
  }

  portal(bytes: Buffer, start: number, end: number): Statement | undefined {
    return find(this.#portals, bytes, start, end);
  }

  /** A Parse gives the name at `start` a meaning. True: the change was noted, its answer is to be told. */
  parse(bytes: Buffer, start: number, end: number, statement: Statement | undefined): boolean {
    return this.#note(this.#statements, bytes, start, end, statement);
  }

  bind(bytes: Buffer, start: number, end: number, statement: Statement | undefined): boolean {
    return this.#note(this.#portals, bytes, start, end, statement);
  }

  /** `start`: of the body of a Close or Describe message, the letter S or P and a name. */
  close(bytes: Buffer, start: number, end: number): boolean {
    const names = bytes[start] === 0x53 ? this.#statements : this.#portals;
    return this.#note(names, bytes, start + 1, cstringEnd(bytes, start + 1, end), undefined);
  }

  described(bytes: Buffer, start: number, end: number): Statement | undefined {
    return bytes[start] === 0x53 ? this.statement(bytes, start + 1, end) : this.portal(bytes, start + 1, end);
  }

  /** The oldest noted change has succeeded. */
  confirmed(): void {
    const change = this.#changes.shift();
    change?.names.confirm(change);
  }

  /** The oldest `count` noted changes have failed, or were skipped. */
  failed(count: number): void {
    if (count === 0) return;
    this.#changes.splice(0, count);
    this.#rebuild();
  }

  /** DEALLOCATE ALL or DISCARD ALL was done, which leaves the unnamed statement alone; what is noted is behind it. */
  clear(): void {
    this.#statements.clear();
    this.#rebuild();
  }

  /** No portal outlives its transaction; nothing is on its way. */
  portalsEnd(): void {
    if (this.#portals.size > 0) this.#portals.end();
  }

  #rebuild(): void {
    this.#statements.rebuild(this.#changes);
    this.#portals.rebuild(this.#changes);
  }

  #note(names: NamesOfAKind, bytes: Buffer, start: number, end: number, statement: Statement | undefined): boolean {
    if (statement === undefined && names.size === 0) return false;
    const name = keyOf(bytes, start, end);
    if (name === undefined) return false;
    if (statement === undefined && names.get(name) === undefined) return false;
    if (statement && names.size >= NAMES_MAX) throw new ProtocolError("too many prepared transaction statements");
    const meaning = statement && name !== "" ? { ...statement, doubtful: true } : statement;
    const change: Change = { names, name, statement: meaning };
    this.#changes.push(change);
    names.note(change);
    return true;
  }
}

/** Nothing is decoded while nothing is noted. */
function find(names: NamesOfAKind, bytes: Buffer, start: number, end: number): Statement | undefined {
  if (names.size === 0) return isComparable(bytes, start, end) ? undefined : UNKNOWN;
  const name = keyOf(bytes, start, end);
  return name === undefined ? UNKNOWN : names.get(name);
}

/** The name as PostgreSQL compares it; undefined when that depends on encodings. */
function keyOf(bytes: Buffer, start: number, end: number): string | undefined {
  if (!isComparable(bytes, start, end)) return undefined;
  return bytes.toString("latin1", start, Math.min(end, start + NAME_BYTES_MAX));
}

/** Whether the name at `start`, up to a NUL or `end`, means the same in every client encoding. */
export function isComparable(bytes: Buffer, start: number, end: number): boolean {
  const stop = Math.min(end, start + NAME_BYTES_MAX);
  for (let at = start; at < stop && bytes[at] !== 0; at++) if ((bytes[at] as number) >= 0x80) return false;
  return true;
}

/** Whether a name in the message begins as the proxy's own do. */
export function usesOwnName(type: number, bytes: Buffer, start: number, end: number): boolean {
  const at = start + 5;
  switch (type) {
    case FRONT.bind:
      return isOwnName(bytes, at, end) || isOwnName(bytes, cstringEnd(bytes, at, end) + 1, end);
    case FRONT.close:
    case FRONT.describe:
      return isOwnName(bytes, at + 1, end);
    default:
      return isOwnName(bytes, at, end);
  }
}

function isOwnName(bytes: Buffer, at: number, end: number): boolean {
  if (bytes[at] !== 0x5f) return false; // _
  const stop = Math.min(end, at + OWN_NAME_PREFIX.length);
  return bytes.toString("latin1", at, stop) === OWN_NAME_PREFIX;
}
