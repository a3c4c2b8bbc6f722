/**
 * The extended protocol: the fence goes as messages of its own in front of the first one of a transaction, because
 * nothing may be a query before it. A group is what the client sends up to a Sync; nothing is ever put behind its end.
 */
import { BARE_BYTES_MAX } from "./bare.ts";
import type { Copying } from "./copying.ts";
import type { Core } from "./core.ts";
import { COUNTER } from "./counters.ts";
import { besideBracket, notSupported, reservedName, twoPhaseRefused, type WireError } from "./errors.ts";
import { follow } from "./follow.ts";
import { type Action, DROP, type Framer, HOLD, PASS, ProtocolError } from "./framer.ts";
import { needsBracket, takesSnapshot } from "./inject.ts";
import { lexFirst } from "./lexer.ts";
import { bind, cstringEnd, execute, FAILED, FRONT, IDLE, parse, sync } from "./messages.ts";
import { isComparable, usesOwnName } from "./names.ts";
import type { Outgoing } from "./outgoing.ts";
import { GroupShape } from "./readgroup.ts";
import { readFingerprint } from "./reads.ts";
import * as reply from "./replies.ts";
import type { Statement } from "./statements.ts";

/** Requests in flight after which the next group waits. */
const REQUESTS_BEFORE_WAIT = 65_536;

/** A text without a statement: needs no fence, changes nothing. */
const EMPTY_STATEMENT: Statement = { kind: "session", offset: 0, ordinal: 0, words: "" };

const SHAPE = new GroupShape();

const REFUSE_STATEMENT = "_fencedjob_refuse";

export class ExtendedProtocol {
  readonly #core: Core;
  readonly #out: Outgoing;
  readonly #framer: Framer;
  readonly #copying: Copying;
  /** Of the text of the Parse at hand, if that is a read. */
  #fingerprint = 0;

  constructor(core: Core, out: Outgoing, framer: Framer, copying: Copying) {
    this.#core = core;
    this.#out = out;
    this.#framer = framer;
    this.#copying = copying;
  }

  request(type: number, bytes: Buffer, start: number, end: number, total: number): Action {
    const core = this.#core;
    if (!core.inGroup && this.#mustWait()) return this.#out.wait();
    if (usesOwnName(type, bytes, start, end)) return this.#refuseGroup(reservedName());
    if (type === FRONT.close) return this.#close(bytes, start, end);
    const statement = this.#statementOf(type, bytes, start, end, total);
    const unfit = statement && unfitReason(type, statement, bytes, start, end);
    if (unfit) return this.#refuseGroup(unfit);
    if (core.replies.readies > 0 && this.#mustBeAlone(type, statement)) return this.#out.wait();
    const blocked = this.#out.blocked(statement, false);
    if (blocked === "hold") return HOLD;
    if (!blocked && statement && needsBracket(statement)) {
      const action = this.#outsideBlocks();
      if (action !== PASS) return action;
    }
    return blocked ? this.#refuseGroup(blocked) : this.#send(type, bytes, start, end, statement);
  }

  #send(type: number, bytes: Buffer, start: number, end: number, statement: Statement | undefined): Action {
    const core = this.#core;
    const first = !core.inGroup;
    this.#beginGroup();
    const whole = first && statement === undefined && this.#isWhole(bytes, start);
    if (whole) core.bare.inGroup = this.#goesBare(bytes, start);
    const fenced = statement === undefined || isFenced(type, statement, core.status !== IDLE);
    // DISCARD ALL would give the bracket's lock back, in front of what the group still runs (INV-3).
    const besides = fenced || statement?.words.startsWith("DISCARD");
    if (besides && core.bracket === "open") return this.#refuseGroup(besideBracket());
    this.#fence(fenced, statement);
    this.#enqueue(type, bytes, start, end, statement);
    if (whole && SHAPE.runs) this.#passWhole(bytes);
    return PASS;
  }

  /** The message begins a group that is at hand to its Sync, and does nothing but run or prepare one plain statement. */
  #isWhole(bytes: Buffer, start: number): boolean {
    const { bare, bracket } = this.#core;
    return bracket === "none" && bare.phase === "none" && SHAPE.read(bytes, start, this.#framer.receivedEnd);
  }

  /** What is left of such a group is as plain as its first message: the same is noted of it, without looking again. */
  #passWhole(bytes: Buffer): void {
    const core = this.#core;
    const { requests, length, portalStart, portalEnd, end } = SHAPE;
    // A name that cannot be compared may be that of another portal.
    if (portalStart < portalEnd) return;
    core.host.counters.add(COUNTER.messages, length - 1);
    for (let i = 1; i < length - 1; i++) {
      const request = requests[i] as number;
      if (request === reply.BIND) this.#noted(reply.BIND, core.names.bind(bytes, portalStart, portalEnd, undefined));
      else core.replies.push(request);
    }
    follow(core, undefined);
    if (core.groupCommits && core.status === IDLE) core.commitInFlight = true;
    this.#endGroup();
    this.#framer.passUpTo(end);
  }

  #fence(fenced: boolean, statement: Statement | undefined): void {
    const { entered, status, bracket, bare } = this.#core;
    if (entered || status === FAILED || bracket === "open" || bare.inGroup) return;
    if (fenced) this.#out.enter();
    else if (statement && this.#isDoubtful(statement)) this.#out.guard();
  }

  /** A group of a read outside of a block goes as it is (bare.ts); so does one that only prepares, which writes nothing. */
  #goesBare(bytes: Buffer, start: number): boolean {
    const core = this.#core;
    const { bare, status } = core;
    if (status !== IDLE) return false;
    if (!SHAPE.runs) return true;
    const end = this.#framer.receivedEnd;
    if (!this.#out.mayGoBare || SHAPE.end < end || end - start > BARE_BYTES_MAX || bare.inTheWay) return false;
    const parses = bytes[start] === FRONT.parse;
    const fingerprint = parses ? this.#fingerprint : bare.names.find(bytes, SHAPE.nameStart, SHAPE.nameEnd);
    if (fingerprint === 0 || bare.writers.has(fingerprint)) return false;
    bare.begin(fingerprint, bytes, start, end);
    // What follows waits: if this one is to be sent again, it must not have overtaken it.
    core.unpredictable = true;
    return true;
  }

  /** It may be a plain one, in a transaction that can write. */
  #isDoubtful(statement: Statement): boolean {
    const { status, groupRuns, seatBeltOpen, replies } = this.#core;
    if (!statement.doubtful) return false;
    return status !== IDLE || groupRuns || seatBeltOpen || replies.readies > 0;
  }

  /** A group begins: whether what is in flight decides how it is to be sent. */
  #mustWait(): boolean {
    const { replies, cancelling, unpredictable, bare } = this.#core;
    const waits = cancelling || (replies.readies > 0 && (unpredictable || replies.length > REQUESTS_BEFORE_WAIT));
    if (waits) bare.waitedFor();
    return waits;
  }

  /** Whether it waits for the answers of the groups in front of its own. */
  #mustBeAlone(type: number, statement: Statement | undefined): boolean {
    // A doubtful name goes bare only as the first of all, when nothing in flight can have opened the read-only default.
    if (statement?.doubtful && !this.#core.inGroup) return true;
    // What it sets for the session must not be taken back with an error of theirs.
    return type === FRONT.execute && (statement?.kind === "setDefault" || statement?.kind === "session");
  }

  /** PASS: in a block, where PostgreSQL keeps it inside or refuses it, or in its bracket. */
  #outsideBlocks(): Action {
    const { status, uncertain } = this.#core;
    // Something in front of it in the group may have ended the block, or begun it.
    if (uncertain) return this.#refuseGroup(besideBracket());
    return status === IDLE ? this.#bracketGroup() : PASS;
  }

  /** Opens a bracket around the group; PASS when it is open. */
  #bracketGroup(): Action {
    const core = this.#core;
    if (core.bracket === "open") return PASS;
    if (core.inGroup) return this.#refuseGroup(besideBracket());
    if (!core.bracketFailure) return core.replies.readies > 0 ? this.#out.wait() : this.#out.openBracket();
    this.#beginGroup();
    this.#out.answer(core.bracketFailure);
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
      case FRONT.parse:
        return this.#parsed(bytes, nameEnd + 1, end, end - start < total);
      case FRONT.bind:
        return names.statement(bytes, nameEnd + 1, nameStop(bytes, nameEnd + 1, end, end - start < total));
      case FRONT.describe:
        return names.described(bytes, at, nameEnd);
      default:
        return names.portal(bytes, at, nameEnd);
    }
  }

  /** `more`: the text goes on behind `end`; then it is no read to be sure of. */
  #parsed(bytes: Buffer, at: number, end: number, more: boolean): Statement | undefined {
    const textEnd = cstringEnd(bytes, at, end);
    this.#fingerprint = textEnd < end ? readFingerprint(bytes, at, textEnd, this.#core.standardStrings) : 0;
    if (this.#fingerprint !== 0) return undefined;
    const found = lexFirst(bytes, at, textEnd, this.#core, more);
    if (!found) return EMPTY_STATEMENT;
    return found.kind === "plain" ? undefined : found;
  }

  #enqueue(type: number, bytes: Buffer, start: number, end: number, statement: Statement | undefined): void {
    const core = this.#core;
    const at = start + 5;
    switch (type) {
      case FRONT.parse: {
        const nameEnd = cstringEnd(bytes, at, end);
        core.bare.names.note(bytes, at, nameEnd, this.#fingerprint);
        if (statement?.kind === "copy" && nameEnd > at) core.copyNamed = true;
        return this.#noted(reply.PARSE, core.names.parse(bytes, at, nameEnd, statement));
      }
      case FRONT.bind:
        core.groupBinds = true;
        return this.#noted(reply.BIND, core.names.bind(bytes, at, cstringEnd(bytes, at, end), statement));
      case FRONT.describe:
        return core.replies.push(reply.DESCRIBE);
      default:
        core.replies.push(reply.EXECUTE);
        follow(core, statement);
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
    core.groupRuns = false;
    core.groupBinds = false;
    core.groupCopies = false;
  }

  sync(): Action {
    const core = this.#core;
    const action = this.#copying.sync();
    if (action !== PASS) return action;
    if (core.replies.queries > 0 || (!core.inGroup && core.bare.unheard)) return this.#out.wait();
    if (
      !core.dropping &&
      !core.discarding &&
      core.inGroup &&
      core.groupCommits &&
      (core.status === IDLE || core.uncertain)
    ) {
      const blocked = this.#out.blocked(undefined, false);
      if (blocked === "hold") return HOLD;
      if (blocked) this.#refuseGroup(blocked);
      else core.commitInFlight = true;
    }
    core.dropping = false;
    core.discarding = false;
    this.#endGroup();
    if (core.bracket !== "open") return PASS;
    this.#out.push(sync());
    this.#out.closeBracket();
    return DROP;
  }

  #endGroup(): void {
    const core = this.#core;
    core.inGroup = false;
    core.bare.inGroup = false;
    if (core.status === IDLE) {
      core.entered = false;
      core.readOnly = core.readOnlyDefault;
    }
    core.replies.push(reply.SYNC);
  }

  #refuseGroup(error: WireError): Action {
    this.#beginGroup();
    const core = this.#core;
    this.#out.push(parse(REFUSE_STATEMENT, this.#out.refusalText(error)));
    this.#out.push(bind(REFUSE_STATEMENT, REFUSE_STATEMENT));
    this.#out.push(execute(REFUSE_STATEMENT));
    core.replies.push(reply.PARSE | reply.OWN | reply.REFUSAL);
    core.replies.push(reply.BIND | reply.OWN | reply.REFUSAL);
    core.replies.push(reply.EXECUTE | reply.OWN | reply.REFUSAL);
    core.dropping = true;
    core.unpredictable = true;
    // Of the bracket that was to be opened for what is refused; an open one is closed at the Sync.
    core.bracketFailure = undefined;
    return DROP;
  }
}

/** Whether a statement that is not plain must have entered; some only where there is a block that can hold the lock. */
function isFenced(type: number, statement: Statement, inBlock: boolean): boolean {
  // These take their snapshot when they run; what is only prepared in front of a BEGIN must not disturb that.
  if (type === FRONT.parse && /^(DEALLOCATE|DISCARD|EXECUTE)/.test(statement.words)) return false;
  if (inBlock) return statement.kind === "inBlock" || needsBracket(statement) || takesSnapshot(statement);
  // DISCARD ALL cannot be in a transaction, and is one by itself.
  return takesSnapshot(statement) && statement.words !== "DISCARD ALL";
}

/** Why it cannot be fenced, whoever owns the job. */
function unfitReason(
  type: number,
  statement: Statement,
  bytes: Buffer,
  start: number,
  end: number,
): WireError | undefined {
  if (statement.kind === "twoPhase") return twoPhaseRefused(statement.words);
  if (statement.kind === "unseen") {
    const what = "a statement whose first words lie behind 64 KiB of comment";
    return notSupported(what, "Put the comment behind them.");
  }
  if (type !== FRONT.parse || !needsBracket(statement) || isComparable(bytes, start + 5, end)) return undefined;
  // An Execute of it would be taken for one that stays in its transaction.
  const what = `${statement.words} prepared under a name that is not ASCII`;
  return notSupported(what, "Give it an ASCII name, or none.");
}

/** End of the name at `at`; `more`: the message goes on behind the bytes at hand. */
function nameStop(bytes: Buffer, at: number, end: number, more: boolean): number {
  const stop = cstringEnd(bytes, at, end);
  if (stop >= end && more) throw new ProtocolError("a name is too long");
  return stop;
}
