/**
 * The client's messages: each is passed, gets the fence in front of it, waits, or is refused before it starts.
 *
 * Does NOT make a refusal up by itself: in place of a refused message PostgreSQL gets a statement that fails, so that
 * its transaction state and the client's idea of it stay one (the reply goes through `Back`).
 */

import { isFenceCode } from "../../fence/codes.ts";
import { refuseSql } from "../../fence/enter.ts";
import type { Core } from "./core.ts";
import {
  besideBracket,
  errorBytes,
  notSupported,
  twoPhaseRefused,
  unconfirmedError,
  type WireError,
} from "./errors.ts";
import { type Action, DROP, Framer, HOLD, type MessageHandler, PASS, ProtocolError } from "./framer.ts";
import { type Injection, needsBracket, planQuery } from "./inject.ts";
import { type Lexed, lex, lexFirst, type Statement, TooManyStatements } from "./lexer.ts";
import {
  bind,
  copyFail,
  cstringEnd,
  execute,
  FAILED,
  FRONT,
  IDLE,
  IN_BLOCK,
  parse,
  query,
  readyForQuery,
  sync,
} from "./messages.ts";
import * as reply from "./replies.ts";

/** Text of one simple query; larger goes as parameters or COPY. It is read as a whole to find its transactions. */
export const QUERY_BYTES_MAX = 16 * 1024 * 1024;
/** Beginning of a Parse that is looked at. */
const PARSE_BYTES_SEEN = 64 * 1024;
/** Beginning of a Bind that must hold its two names. */
const BIND_BYTES_SEEN = 4 * 1024;
/** Messages that are one name or nothing. */
const SMALL_BYTES_MAX = 64 * 1024;
/** Requests in flight after which the next group waits. */
const REQUESTS_BEFORE_WAIT = 65_536;

/** A text without a statement: needs no fence, changes nothing. */
const EMPTY_STATEMENT: Statement = { kind: "session", offset: 0, ordinal: 0, words: "" };

const REFUSE_STATEMENT = "_fencedjob_refuse";

export class Front implements MessageHandler {
  readonly framer: Framer;
  readonly #core: Core;
  /** Called when ownership turns out to be lost: ends the session with the reason. */
  readonly lost: () => void;

  constructor(core: Core, lost: () => void) {
    this.#core = core;
    this.lost = lost;
    this.framer = new Framer(this, core.host.toServer);
  }

  bytesNeeded(type: number, total: number): number {
    switch (type) {
      case FRONT.query:
        return total > QUERY_BYTES_MAX ? 5 : total;
      case FRONT.parse:
        return Math.min(total, PARSE_BYTES_SEEN);
      case FRONT.bind:
        return Math.min(total, BIND_BYTES_SEEN);
      case FRONT.copyData:
      case FRONT.functionCall:
        return 5;
      case FRONT.describe:
      case FRONT.execute:
      case FRONT.close:
      case FRONT.copyFail:
      case FRONT.sync:
      case FRONT.flush:
      case FRONT.copyDone:
      case FRONT.terminate:
        if (total > SMALL_BYTES_MAX) throw new ProtocolError(`message ${String.fromCharCode(type)} of ${total} bytes`);
        return total;
      default:
        throw new ProtocolError(`unknown message type 0x${type.toString(16)} from the client`);
    }
  }

  message(type: number, bytes: Buffer, start: number, end: number, total: number): Action {
    const core = this.#core;
    if (core.ending && type !== FRONT.terminate) return HOLD;
    core.host.counters.add("messages");
    if (type !== FRONT.sync && type !== FRONT.terminate) {
      if (core.dropping) return DROP;
      if (core.discarding) return PASS;
    }
    switch (type) {
      case FRONT.copyData:
      case FRONT.flush:
        return PASS;
      case FRONT.terminate:
        core.terminated = true;
        return PASS;
      case FRONT.copyDone:
      case FRONT.copyFail:
        return this.#copyEnd(type);
      case FRONT.sync:
        return this.#sync();
      case FRONT.query:
        return this.#query(bytes, start, end, total);
      case FRONT.functionCall:
        return this.#functionCall();
      default:
        return this.#extended(type, bytes, start, end, total);
    }
  }

  // ---- simple protocol ----

  #query(bytes: Buffer, start: number, end: number, total: number): Action {
    const core = this.#core;
    if (core.replies.readies > 0 || core.cancelling) return this.#wait();
    if (core.inGroup && core.status === IDLE) {
      // On PostgreSQL 18 a group without Sync in front of a simple query loses what the query committed.
      return this.#fatal(notSupported("a simple query inside an unfinished extended group", "Send Sync first."));
    }
    if (total > QUERY_BYTES_MAX) {
      const hint = `Send it in pieces of at most ${QUERY_BYTES_MAX} bytes, or its values as parameters or COPY.`;
      return this.#refuseQuery(notSupported(`a simple query of ${total} bytes`, hint));
    }
    const text = this.#lex(bytes, start + 5, end - 1);
    if (!text) return this.#refuseQuery(notSupported("so many statements in one message", "Send it in pieces."));
    const first = text.statements[0];
    const blocked = this.#blocked(first, text.count === 0);
    if (blocked === "hold") return HOLD;
    if (blocked) return this.#refuseQuery(blocked);
    const plan = planQuery(core, text);
    if (plan.kind === "refuse") return this.#refuseQuery(twoPhaseRefused(plan.words));
    if (plan.kind === "bracket") return this.#bracketQuery(bytes, start, end);
    core.readOnly = plan.readOnly;
    core.readOnlyDefault = plan.readOnlyDefault;
    if (plan.commits) core.commitInFlight = true;
    core.unpredictable = true;
    core.replies.push(reply.QUERY);
    if (plan.injections.length === 0) {
      core.query = undefined;
      return PASS;
    }
    this.#sendRewritten(bytes, start, end, plan.injections);
    return DROP;
  }

  #bracketQuery(bytes: Buffer, start: number, end: number): Action {
    const core = this.#core;
    if (core.bracketFailure) {
      // Nothing was sent for it, and nothing is in flight: the server is idle, as the client is told.
      this.#answer(core.bracketFailure);
      this.#answer(readyForQuery(IDLE));
      core.bracketFailure = undefined;
      return DROP;
    }
    if (core.bracket === "none") return this.#openBracket();
    core.commitInFlight = true;
    core.replies.push(reply.QUERY);
    core.query = undefined;
    this.framer.flush();
    core.host.toServer.push(bytes, start, end);
    this.#closeBracket();
    return DROP;
  }

  /** Sends the bracket's first half; the message that needs it is decided on again when that was answered. */
  #openBracket(): Action {
    const core = this.#core;
    this.framer.flush();
    core.bracket = "opening";
    core.unpredictable = true;
    this.#ownQuery(core.fence.bracketOpen);
    return this.#wait();
  }

  #closeBracket(): void {
    const core = this.#core;
    core.bracket = "none";
    this.#ownQuery(core.fence.defaultReadOnly);
    this.#ownQuery(core.fence.bracketClose);
  }

  #ownQuery(bytes: Buffer): void {
    this.#push(bytes);
    this.#core.replies.push(reply.QUERY | reply.OWN);
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
    for (const { offset, ordinal, writable } of injections) {
      const text = writable ? fence.writableText : fence.readOnlyText;
      // Places in the rewritten text count in characters; the fence's own text is ASCII.
      const position = countCharacters(bytes, textStart, textStart + offset) + added;
      planned.push({ ordinal, skips: writable ? 2 : 1, position, characters: text.length });
      added += text.length;
    }
    this.framer.flush();
    const header = Buffer.allocUnsafe(5);
    header[0] = FRONT.query;
    header.writeUInt32BE(end - start - 1 + added, 1);
    host.toServer.push(header, 0, 5);
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
    this.framer.flush();
    this.#push(query(this.#refusalText(error)));
    this.#core.replies.push(reply.QUERY | reply.REFUSAL);
    this.#core.query = undefined;
    this.#core.unpredictable = true;
    return DROP;
  }

  #functionCall(): Action {
    const core = this.#core;
    if (core.replies.readies > 0 || core.cancelling) return this.#wait();
    const blocked = this.#blocked(undefined, false);
    if (blocked === "hold") return HOLD;
    if (blocked) return this.#refuseQuery(blocked);
    if (core.status === IDLE) {
      if (core.inGroup)
        return this.#fatal(notSupported("a function call inside an unfinished group", "Send Sync first."));
      return this.#refuseQuery(notSupported("the FunctionCall message outside of a block", "Send BEGIN first."));
    }
    if (core.status === IN_BLOCK && !core.entered) this.#enter();
    core.replies.push(reply.FUNCTION);
    return PASS;
  }

  // ---- extended protocol ----

  #extended(type: number, bytes: Buffer, start: number, end: number, total: number): Action {
    const core = this.#core;
    if (!core.inGroup && this.#mustWait()) return this.#wait();
    if (type === FRONT.close) return this.#close(bytes, start, end);
    const statement = this.#statementOf(type, bytes, start, end, total);
    const blocked = this.#blocked(statement, false);
    if (blocked === "hold") return HOLD;
    if (!blocked && statement && core.status === IDLE && needsBracket(statement)) {
      const action = this.#bracketGroup();
      if (action !== PASS) return action;
    }
    this.#beginGroup();
    if (blocked) return this.#refuseGroup(blocked);
    if (statement?.kind === "twoPhase") return this.#refuseGroup(twoPhaseRefused(statement.words));
    const fenced =
      statement === undefined || takesSnapshot(statement) || (core.status !== IDLE && onlyFencedInBlock(statement));
    if (fenced && core.bracket === "open") return this.#refuseGroup(besideBracket());
    if (fenced && !core.entered && core.status !== FAILED) this.#enter();
    this.#request(type, bytes, start, end, statement);
    return PASS;
  }

  /** A group begins: whether what is in flight decides how it is to be sent. */
  #mustWait(): boolean {
    const { replies, cancelling, unpredictable } = this.#core;
    return cancelling || (replies.readies > 0 && (unpredictable || replies.length > REQUESTS_BEFORE_WAIT));
  }

  /** Opens a bracket around the group; PASS when it is open. */
  #bracketGroup(): Action {
    const core = this.#core;
    if (core.bracket === "open") return PASS;
    if (core.inGroup) return this.#refuseGroup(besideBracket());
    if (!core.bracketFailure) return core.replies.readies > 0 ? this.#wait() : this.#openBracket();
    this.#beginGroup();
    this.#answer(core.bracketFailure);
    core.bracketFailure = undefined;
    core.dropping = true;
    return DROP;
  }

  /** What the message is about, when that is not a plain statement; names are noted on the way. */
  #statementOf(type: number, bytes: Buffer, start: number, end: number, total: number): Statement | undefined {
    const { names } = this.#core;
    const at = start + 5;
    const nameEnd = nameStop(bytes, at, end, end - start < total);
    switch (type) {
      case FRONT.parse: {
        const found = lexFirst(bytes, nameEnd + 1, cstringEnd(bytes, nameEnd + 1, end), this.#core);
        if (!found) return EMPTY_STATEMENT;
        return found.kind === "plain" ? undefined : found;
      }
      case FRONT.bind:
        return names.statement(bytes, nameEnd + 1, nameStop(bytes, nameEnd + 1, end, end - start < total));
      case FRONT.describe:
        return names.described(bytes, at, nameEnd);
      default:
        return names.portal(bytes, at, nameEnd);
    }
  }

  #request(type: number, bytes: Buffer, start: number, end: number, statement: Statement | undefined): void {
    const core = this.#core;
    const at = start + 5;
    switch (type) {
      case FRONT.parse:
        return this.#noted(reply.PARSE, core.names.parse(bytes, at, cstringEnd(bytes, at, end), statement));
      case FRONT.bind:
        return this.#noted(reply.BIND, core.names.bind(bytes, at, cstringEnd(bytes, at, end), statement));
      case FRONT.describe:
        return core.replies.push(reply.DESCRIBE);
      default:
        core.replies.push(reply.EXECUTE);
        this.#executes(statement);
    }
  }

  #noted(kind: number, noted: boolean): void {
    this.#core.replies.push(noted ? kind | reply.NOTED : kind);
    if (noted) this.#core.unpredictable = true;
  }

  #close(bytes: Buffer, start: number, end: number): Action {
    this.#beginGroup();
    this.#noted(reply.CLOSE, this.#core.names.close(bytes, start + 5, end));
    return PASS;
  }

  #beginGroup(): void {
    const core = this.#core;
    if (core.inGroup) return;
    core.inGroup = true;
    core.groupCommits = false;
  }

  /** Follows what an Execute does to the transaction, as far as one can before its answer. */
  #executes(statement: Statement | undefined): void {
    const core = this.#core;
    if (statement === undefined) {
      if (core.status === IDLE) core.groupCommits = true;
      return;
    }
    if (statement.kind === "inBlock") return;
    core.unpredictable = true;
    switch (statement.kind) {
      case "begin":
      case "setTransaction":
        // Keeps what was entered earlier in the group: the implicit transaction becomes the block.
        if (statement.kind === "begin" && core.status === IDLE) core.status = IN_BLOCK;
        if (core.status === IN_BLOCK) core.readOnly = statement.readOnly ?? core.readOnly;
        return;
      case "setDefault":
        core.readOnlyDefault = statement.readOnly ?? false;
        return;
      case "commit":
      case "rollback":
        this.#executesEnd(statement);
        return;
      case "unknown":
        core.commitInFlight = true;
        core.entered = false;
        return;
      case "rollbackTo":
        // A savepoint older than the fence gives the lock back; entering again is harmless.
        core.entered = false;
        if (core.status === FAILED) core.status = IN_BLOCK;
        return;
      case "noBlock":
      case "procedure":
        core.commitInFlight = true;
        return;
      case "session":
        core.prepared = core.prepared && !statement.words.startsWith("D");
        return;
      default:
        return;
    }
  }

  #executesEnd(statement: Statement): void {
    const core = this.#core;
    if (statement.kind === "commit" && core.status === IN_BLOCK) core.commitInFlight = true;
    core.entered = false;
    // A failed block has lost what it was: its chained successor begins with the default.
    if (!statement.chain || core.status === FAILED) core.readOnly = core.readOnlyDefault;
    core.status = statement.chain && core.status !== IDLE ? IN_BLOCK : IDLE;
  }

  #sync(): Action {
    const core = this.#core;
    if (!core.dropping && !core.discarding && core.inGroup && core.groupCommits && core.status === IDLE) {
      const blocked = this.#blocked(undefined, false);
      if (blocked === "hold") return HOLD;
      if (blocked) this.#refuseGroup(blocked);
      else core.commitInFlight = true;
    }
    core.inGroup = false;
    core.dropping = false;
    core.discarding = false;
    if (core.status === IDLE) {
      core.entered = false;
      core.readOnly = core.readOnlyDefault;
    }
    // The server ignores Sync while it waits for COPY data.
    if (!this.copyIn) core.replies.push(reply.SYNC);
    if (core.bracket !== "open") return PASS;
    this.framer.flush();
    this.#push(sync());
    this.#closeBracket();
    return DROP;
  }

  /** Set by `Back`: the server waits for COPY data of an Execute, whose end the client has not sent. */
  copyIn = false;

  #copyEnd(type: number): Action {
    const core = this.#core;
    if (type === FRONT.copyDone) {
      const blocked = this.#blocked(undefined, false);
      if (blocked === "hold") return HOLD;
      if (blocked) {
        // CopyFail makes the server itself abort; its error goes to the client in our words.
        core.refusing = blocked;
        this.framer.flush();
        this.#push(copyFail(blocked.message));
        this.#noteCopyEnd();
        return DROP;
      }
    }
    this.#noteCopyEnd();
    return PASS;
  }

  #noteCopyEnd(): void {
    const { replies } = this.#core;
    this.copyIn = false;
    if (replies.has(reply.EXECUTE)) replies.push(reply.COPY_END);
  }

  /** Puts the fence in front of what comes next. */
  #enter(): void {
    const core = this.#core;
    const { fence } = core;
    this.framer.flush();
    const inBlock = core.status !== IDLE;
    // A read-only autocommit statement cannot write: the session's default holds it. (And FOR SHARE would be refused.)
    // What follows waits for its answer: it might have changed that default.
    if (core.readOnly && !inBlock) {
      core.unpredictable = true;
      return;
    }
    if (!core.prepared) {
      // It may fail with the group: the next one waits for the answer.
      core.unpredictable = true;
      this.#prepare(fence.prepareWritable);
    }
    if (!core.readOnly) this.#execution(inBlock ? fence.makeWritableInBlock : fence.makeWritable, inBlock);
    if (!core.prepared) {
      this.#prepare(fence.prepareEnter);
      this.#prepare(fence.prepareEnterInBlock);
    }
    this.#execution(inBlock ? fence.enterInBlock : fence.enter, inBlock);
    core.prepared = true;
    core.entered = true;
  }

  #prepare(bytes: Buffer): void {
    const { replies } = this.#core;
    this.#push(bytes);
    replies.push(reply.CLOSE | reply.OWN);
    replies.push(reply.PARSE | reply.OWN);
  }

  #execution(bytes: Buffer, closes: boolean): void {
    const { replies } = this.#core;
    this.#push(bytes);
    replies.push(reply.BIND | reply.OWN);
    replies.push(reply.EXECUTE | reply.OWN);
    if (closes) replies.push(reply.CLOSE | reply.OWN);
  }

  #refuseGroup(error: WireError): Action {
    const core = this.#core;
    this.framer.flush();
    this.#push(parse(REFUSE_STATEMENT, this.#refusalText(error)));
    this.#push(bind(REFUSE_STATEMENT, REFUSE_STATEMENT));
    this.#push(execute(REFUSE_STATEMENT));
    core.replies.push(reply.PARSE | reply.OWN | reply.REFUSAL);
    core.replies.push(reply.BIND | reply.OWN | reply.REFUSAL);
    core.replies.push(reply.EXECUTE | reply.OWN | reply.REFUSAL);
    core.dropping = true;
    core.unpredictable = true;
    return DROP;
  }

  // ---- permit ----

  /**
   * Whether the permit (INV-5) or an earlier refusal in this block (INV-10) stands against the message. ROLLBACK always
   * passes: it can only undo.
   */
  #blocked(statement: Statement | undefined, empty: boolean): WireError | "hold" | undefined {
    const core = this.#core;
    if (empty || statement?.kind === "rollback" || statement?.kind === "rollbackTo") return undefined;
    const state = core.host.permit();
    if (state === "lost") {
      this.lost();
      return "hold";
    }
    if (statement?.kind === "commit" && core.status === FAILED && core.refusedInBlock) return core.refusedInBlock;
    if (state === "valid") return undefined;
    // `closed` cannot be: no session begins before the raise (INV-4).
    core.host.counters.add("refusedUnconfirmed");
    return unconfirmedError(core.identity, core.host.permitEndedMsAgo());
  }

  #refusalText(error: WireError): string {
    this.#core.refusing = error;
    const code = isFenceCode(error.code) ? error.code : "LF020";
    return refuseSql(code, error.message, error.detail ?? "", error.hint ?? "");
  }

  #wait(): Action {
    this.#core.host.counters.add("messages", -1);
    return HOLD;
  }

  #fatal(error: WireError): Action {
    const core = this.#core;
    const bytes = errorBytes({ ...error, severity: "FATAL" });
    core.ending = true;
    this.#answer(bytes);
    core.host.end();
    return DROP;
  }

  #answer(bytes: Buffer): void {
    this.#core.host.toClient.push(bytes, 0, bytes.length);
  }

  #push(bytes: Buffer): void {
    this.#core.host.toServer.push(bytes, 0, bytes.length);
  }
}

/** Inside a block these are what plain statements are. */
function onlyFencedInBlock(statement: Statement): boolean {
  return statement.kind === "inBlock" || needsBracket(statement);
}

/** Bare in a group, they would be a query before the fence of what follows there. */
function takesSnapshot({ kind, words }: Statement): boolean {
  return kind === "unknown" || words.startsWith("DEALLOCATE") || words.startsWith("DECLARE");
}

/** End of the name at `at`; `more`: the message goes on behind the bytes at hand. */
function nameStop(bytes: Buffer, at: number, end: number, more: boolean): number {
  const stop = cstringEnd(bytes, at, end);
  if (stop >= end && more) throw new ProtocolError("a name is too long");
  return stop;
}

/** Characters of UTF-8 (or of a one-byte encoding) in `bytes[start..end)`. */
function countCharacters(bytes: Buffer, start: number, end: number): number {
  let count = 0;
  for (let i = start; i < end; i++) if (((bytes[i] as number) & 0xc0) !== 0x80) count++;
  return count;
}
