/**
 * Simple queries: the fence goes into their text, so that text and fence are one message, one transaction and one
 * answer. Mixing it from the extended protocol would lose commits on PostgreSQL 18.
 */
import { BARE_BYTES_MAX } from "./bare.ts";
import type { Core } from "./core.ts";
import { notSupported, twoPhaseRefused, type WireError } from "./errors.ts";
import { type Action, DROP, HOLD, PASS } from "./framer.ts";
import { type Injection, planQuery } from "./inject.ts";
import { type Lexed, lex, TooManyStatements } from "./lexer.ts";
import { FRONT, IDLE, IN_BLOCK, query, readyForQuery } from "./messages.ts";
import type { Outgoing } from "./outgoing.ts";
import { readFingerprint } from "./reads.ts";
import * as reply from "./replies.ts";
import type { Statement } from "./statements.ts";

/** Text of one simple query; larger goes as parameters or COPY. It is read as a whole to find its transactions. */
export const QUERY_BYTES_MAX = 16 * 1024 * 1024;

export class SimpleProtocol {
  readonly #core: Core;
  readonly #out: Outgoing;

  constructor(core: Core, out: Outgoing) {
    this.#core = core;
    this.#out = out;
  }

  query(bytes: Buffer, start: number, end: number, total: number): Action {
    const core = this.#core;
    if (core.replies.readies > 0 || core.cancelling) return this.#out.wait();
    if (core.inGroup && (core.status === IDLE || core.uncertain)) {
      // On PostgreSQL 18 a group without Sync in front of a simple query loses what the query committed.
      return this.#out.fatal(notSupported("a simple query inside an unfinished extended group", "Send Sync first."));
    }
    if (total > QUERY_BYTES_MAX) {
      const hint = `Send it in pieces of at most ${QUERY_BYTES_MAX} bytes, or its values as parameters or COPY.`;
      return this.#refuseQuery(notSupported(`a simple query of ${total} bytes`, hint));
    }
    if (core.inGroup && !isPlainAscii(bytes, start + 5, end)) {
      // The group may have changed how such a text is read, and tells it only with its ReadyForQuery.
      const what = "a simple query with a backslash or non-ASCII characters inside an unfinished extended group";
      return this.#out.fatal(notSupported(what, "Send Sync first."));
    }
    if (this.#goesBare(bytes, start, end, total)) return PASS;
    const text = this.#lex(bytes, start + 5, end - 1);
    if (!text) return this.#refuseQuery(notSupported("so many statements in one message", "Send it in pieces."));
    const first = text.statements[0];
    // What stands behind a ROLLBACK is work (INV-5).
    const passes = text.count > 1 && first && undoes(first) ? undefined : first;
    const blocked = this.#out.blocked(passes, text.count === 0);
    if (blocked === "hold") return HOLD;
    if (blocked) return this.#refuseQuery(blocked);
    const plan = planQuery(core, text);
    if (plan.kind === "refuse") return this.#refuseQuery(twoPhaseRefused(plan.words));
    if (plan.kind === "bracket") return this.#bracketQuery(bytes, start, end);
    core.readOnly = plan.readOnly;
    core.readOnlyDefault = plan.readOnlyDefault;
    core.readOnlyDefaultCommitted = plan.readOnlyDefaultCommitted;
    core.readOnlyDefaultsInFlight.push(...plan.readOnlyDefaults);
    if (plan.commits) core.commitInFlight = true;
    core.unpredictable = true;
    // Its ReadyForQuery ends the group in front of it.
    core.inGroup = false;
    core.copyEndsAhead = 0;
    core.replies.push(reply.QUERY);
    if (plan.injections.length === 0) {
      core.query = undefined;
      return PASS;
    }
    this.#sendRewritten(bytes, start, end, plan.injections);
    return DROP;
  }

  /** A read outside of a block goes as it is (bare.ts). */
  #goesBare(bytes: Buffer, start: number, end: number, total: number): boolean {
    const core = this.#core;
    if (!this.#out.mayGoBare || total > BARE_BYTES_MAX) return false;
    const fingerprint = readFingerprint(bytes, start + 5, end - 1, core.standardStrings);
    if (fingerprint === 0 || core.bare.writers.has(fingerprint)) return false;
    if (this.#out.blocked(undefined, false)) return false;
    core.bare.begin(fingerprint, bytes, start, end);
    core.readOnly = core.readOnlyDefault;
    core.unpredictable = true;
    core.copyEndsAhead = 0;
    core.query = undefined;
    core.replies.push(reply.QUERY);
    return true;
  }

  #bracketQuery(bytes: Buffer, start: number, end: number): Action {
    const core = this.#core;
    if (core.bracketFailure) {
      // Nothing was sent for it, and nothing is in flight: the server is idle, as the client is told.
      this.#out.answer(core.bracketFailure);
      this.#out.answer(readyForQuery(IDLE));
      core.bracketFailure = undefined;
      return DROP;
    }
    if (core.bracket === "none") return this.#out.openBracket();
    core.commitInFlight = true;
    core.unpredictable = true;
    core.replies.push(reply.QUERY);
    core.query = undefined;
    this.#out.push(bytes.subarray(start, end));
    this.#out.closeBracket();
    return DROP;
  }

  #lex(bytes: Buffer, start: number, end: number): Lexed | undefined {
    try {
      return lex(bytes, start, end, this.#core);
    } catch (error) {
      if (error instanceof TooManyStatements) return undefined;
      throw error;
    }
  }

  #sendRewritten(bytes: Buffer, start: number, end: number, injections: readonly Injection[]): void {
    const { fence, host } = this.#core;
    const textStart = start + 5;
    const planned: { ordinal: number; skips: number; position: number; characters: number }[] = [];
    let added = 0;
    let counted = 0;
    let characters = 0;
    for (const { offset, ordinal, writable } of injections) {
      const text = writable ? fence.writableText : fence.readOnlyText;
      // Places in the rewritten text count in characters; the fence's own text is ASCII.
      characters += countCharacters(bytes, textStart + counted, textStart + offset);
      counted = offset;
      const position = characters + added;
      planned.push({ ordinal, skips: writable ? 2 : 1, position, characters: text.length });
      added += text.length;
    }
    const header = Buffer.allocUnsafe(5);
    header[0] = FRONT.query;
    header.writeUInt32BE(end - start - 1 + added, 1);
    this.#out.push(header);
    let at = textStart;
    for (const { offset, writable } of injections) {
      const text = writable ? fence.writableText : fence.readOnlyText;
      if (textStart + offset > at) host.toServer.push(bytes, at, textStart + offset);
      host.toServer.push(text, 0, text.length);
      at = textStart + offset;
    }
    host.toServer.push(bytes, at, end);
    const atStart = planned[0]?.ordinal === 0;
    this.#core.query = {
      injections: planned,
      next: atStart ? 1 : 0,
      completed: 0,
      skipLeft: atStart ? (planned[0]?.skips ?? 0) : 0,
    };
  }

  #refuseQuery(error: WireError): Action {
    const core = this.#core;
    this.#out.push(query(this.#out.refusalText(error)));
    core.replies.push(reply.QUERY | reply.REFUSAL);
    core.query = undefined;
    core.unpredictable = true;
    // Its ReadyForQuery ends the group in front of it, and says that the block has failed (INV-10).
    core.inGroup = false;
    // The bracket that was opened for it meanwhile, or was not.
    core.bracketFailure = undefined;
    if (core.bracket === "open") this.#out.closeBracket();
    return DROP;
  }

  functionCall(): Action {
    const core = this.#core;
    if (core.replies.readies > 0 || core.cancelling) return this.#out.wait();
    if (core.inGroup && (core.status === IDLE || core.uncertain)) {
      return this.#out.fatal(notSupported("a function call inside an unfinished group", "Send Sync first."));
    }
    const blocked = this.#out.blocked(undefined, false);
    if (blocked === "hold") return HOLD;
    if (blocked) return this.#refuseQuery(blocked);
    if (core.status === IDLE) {
      return this.#refuseQuery(notSupported("the FunctionCall message outside of a block", "Send BEGIN first."));
    }
    if (core.status === IN_BLOCK && !core.entered) {
      this.#out.enter();
      core.entersFunction = true;
    }
    core.inGroup = false;
    core.unpredictable = true;
    core.replies.push(reply.FUNCTION);
    return PASS;
  }
}

const undoes = ({ kind }: Statement): boolean => kind === "rollback" || kind === "rollbackTo";

function isPlainAscii(bytes: Buffer, start: number, end: number): boolean {
  for (let at = start; at < end; at++) if ((bytes[at] as number) >= 0x80 || bytes[at] === 0x5c) return false;
  return true;
}

/** Characters of UTF-8 (or of a one-byte encoding) in `bytes[start..end)`. */
function countCharacters(bytes: Buffer, start: number, end: number): number {
  let count = 0;
  for (let i = start; i < end; i++) if (((bytes[i] as number) & 0xc0) !== 0x80) count++;
  return count;
}
