/**
 * The server's messages: replies to the proxy's own requests are swallowed, the client's pass, errors get their place
 * in the client's text back, and an error that may mean the end of the generation waits for the fence row.
 *
 * Does NOT guess from the client's side what the server does: every swallowed reply is matched with the request it
 * answers, and an answer that does not fit ends the session rather than reach the client.
 */
import { isFenceCode } from "../../fence/codes.ts";
import type { Core } from "./core.ts";
import { encodingRefused, errorBytes, lostError } from "./errors.ts";
import { type Action, DROP, Framer, HOLD, type MessageHandler, PASS, ProtocolError } from "./framer.ts";
import type { Front } from "./front.ts";
import {
  BACK,
  cstringEnd,
  type ErrorFields,
  errorFields,
  errorMessage,
  FAILED,
  IDLE,
  parameterStatus,
  sync,
} from "./messages.ts";
import * as reply from "./replies.ts";
import { isUnreadable } from "./startup.ts";
import { isLoss, type Verdict } from "./verdict.ts";

/** Errors and settings that are read as a whole; an error beyond it passes as it is. */
const WHOLE_BYTES_MAX = 1024 * 1024;

/** Errors that our own statements may meet without any doubt about ownership: cancel, lock timeout, deadlock, … */
const NOT_ABOUT_OWNERSHIP = new Set(["57014", "55P03", "40P01", "25P02", "25001", "53100", "53200", "53300", "54001"]);

export class Back implements MessageHandler {
  readonly framer: Framer;
  readonly #core: Core;
  readonly #front: Front;
  /** Ends the session with the server's own FATAL, once the fence row was read. */
  readonly #serverEnds: (fatal: Buffer, verdict: Verdict) => void;
  /** The answer about the error that is being held. */
  #verdict: Verdict | undefined;

  constructor(core: Core, front: Front, serverEnds: (fatal: Buffer, verdict: Verdict) => void) {
    this.#core = core;
    this.#front = front;
    this.#serverEnds = serverEnds;
    this.framer = new Framer(this, core.host.toClient);
  }

  bytesNeeded(type: number, total: number): number {
    switch (type) {
      case BACK.dataRow:
      case BACK.rowDescription:
      case 0x64: // CopyData
        return 5;
      case BACK.error:
      case BACK.notice:
        return total > WHOLE_BYTES_MAX ? 5 : total;
      case BACK.commandComplete:
      case BACK.parameterStatus:
      case BACK.ready:
        if (total > WHOLE_BYTES_MAX) throw new ProtocolError(`message of ${total} bytes from the server`);
        return total;
      default:
        return 5;
    }
  }

  message(type: number, bytes: Buffer, start: number, end: number, total: number): Action {
    const core = this.#core;
    switch (type) {
      case BACK.dataRow:
        return core.replies.head() & reply.OWN ? DROP : PASS;
      case BACK.parseComplete:
        return this.#completes(reply.PARSE);
      case BACK.bindComplete:
        return this.#completes(reply.BIND);
      case BACK.closeComplete:
        return this.#completes(reply.CLOSE);
      case BACK.rowDescription:
      case BACK.noData:
        if (core.replies.head() & (reply.REFUSAL | reply.OWN)) return DROP;
        if (core.replies.head() === reply.DESCRIBE) core.replies.shift();
        return PASS;
      case BACK.commandComplete:
        return this.#commandComplete(bytes, start, end);
      case BACK.emptyQuery:
      case BACK.portalSuspended:
        if (reply.kindOf(core.replies.head()) === reply.EXECUTE) core.replies.shift();
        return PASS;
      case BACK.copyIn:
        this.#passNow(bytes, start, end);
        this.#copyInBegins();
        return DROP;
      case BACK.error:
        return this.#error(bytes, start, end, total);
      case BACK.notice:
        return this.#notice(bytes, start, end, total);
      case BACK.parameterStatus:
        return this.#parameter(bytes, start, end);
      case BACK.ready:
        return this.#ready(bytes, start, end);
      default:
        return PASS;
    }
  }

  #copyInBegins(): void {
    const core = this.#core;
    const { replies } = core;
    if (reply.kindOf(replies.head()) === reply.QUERY) {
      if (core.copyEndsAhead > 0) core.copyEndsAhead--;
      else core.copyInSimple = true;
      this.#front.framer.resume();
      return;
    }
    if (reply.kindOf(replies.head()) !== reply.EXECUTE) return;
    const before = replies.readies;
    core.copyIn = !replies.enterCopyIn();
    if (before === 0 || replies.readies > 0) return;
    // The client's Sync is ignored: its group goes on, and what waited behind that Sync is part of it.
    core.inGroup = true;
    this.#front.framer.resume();
  }

  #completes(kind: number): Action {
    const { replies } = this.#core;
    const head = replies.head();
    if (reply.kindOf(head) !== kind) throw new ProtocolError("an answer of the server fits no request");
    replies.shift();
    if (head & reply.NOTED) this.#core.names.confirmed();
    return head & reply.OWN ? DROP : PASS;
  }

  #commandComplete(bytes: Buffer, start: number, end: number): Action {
    const core = this.#core;
    const head = core.replies.head();
    if (reply.kindOf(head) === reply.EXECUTE) {
      core.replies.shift();
      if (head & reply.OWN) return DROP;
      this.#noteTag(bytes, start + 5, end, core.replies.own === 0);
      return PASS;
    }
    const running = core.query;
    if (running && running.skipLeft > 0) {
      const tag = bytes.toString("latin1", start + 5, cstringEnd(bytes, start + 5, end));
      const wanted = running.skipLeft === 2 ? "SET" : "LOCK TABLE";
      if (tag !== wanted) throw new ProtocolError(`the server answered ${tag} where ${wanted} was sent`);
      running.skipLeft--;
      if (running.skipLeft === 0) core.entered = true;
      return DROP;
    }
    this.#noteTag(bytes, start + 5, end, true);
    if (running) {
      running.completed++;
      const next = running.injections[running.next];
      if (next && next.ordinal === running.completed) {
        running.skipLeft = next.skips;
        running.next++;
      }
    }
    return PASS;
  }

  /** `mayLeave`: no entering is in flight behind this answer, so what it says of the gate is the last word. */
  #noteTag(bytes: Buffer, at: number, end: number, mayLeave: boolean): void {
    const first = bytes[at];
    if (first !== 0x43 && first !== 0x52 && first !== 0x44) return; // C, R, D
    const core = this.#core;
    const tag = bytes.toString("latin1", at, cstringEnd(bytes, at, end));
    if (tag === "COMMIT" || tag === "ROLLBACK") {
      if (mayLeave) core.entered = false;
    } else if (tag === "DISCARD ALL" || tag === "DEALLOCATE ALL") {
      core.names.clear();
      core.prepared = 0;
    } else if (tag === "DEALLOCATE") {
      core.prepared = 0;
    }
  }

  // ---- errors ----

  #error(bytes: Buffer, start: number, end: number, total: number): Action {
    const core = this.#core;
    if (end - start < total) {
      this.#failed();
      return PASS;
    }
    const fields = errorFields(bytes, start, end);
    const severity = fields.get("V") ?? fields.get("S");
    if (severity === "FATAL" || severity === "PANIC") return this.#fatal(bytes, start, end, fields);
    if (core.replies.head() & reply.APART) return this.#apartFails(fields);
    if (core.refusing && this.#isRefusal()) return this.#refused();
    const code = fields.get("C") ?? "";
    if (this.#fromEntering() && !NOT_ABOUT_OWNERSHIP.has(code)) {
      const verdict = this.#verdict;
      if (!verdict) return this.#ask(false);
      this.#verdict = undefined;
      if (isLoss(verdict)) {
        this.#end(errorBytes(lostError(core.identity, verdict, true)));
        return DROP;
      }
      core.ending = false;
    }
    const moved = this.#moved(BACK.error, fields);
    this.#failed();
    if (!moved) return PASS;
    this.#push(moved);
    return DROP;
  }

  #apartFails(fields: ErrorFields): Action {
    const core = this.#core;
    core.replies.dropUntilSync();
    if (core.bracket === "opening") {
      core.bracketFailure ??= errorMessage(BACK.error, fields);
      if (isFenceCode(fields.get("C"))) this.#front.lost();
      return DROP;
    }
    // A late cancel of the client has hit the closing of a bracket: it is done again.
    core.bracketStuck = true;
    return DROP;
  }

  #isRefusal(): boolean {
    const head = this.#core.replies.head();
    return (head & reply.REFUSAL) !== 0 || reply.kindOf(head) === reply.QUERY || reply.kindOf(head) === reply.EXECUTE;
  }

  #refused(): Action {
    const core = this.#core;
    const error = core.refusing;
    core.refusing = undefined;
    if (error) {
      // Counted when it is answered: a refusal on its way to a server that has ended the session is answered otherwise.
      if (error.code === "LF002") core.host.counters.add("refusedUnconfirmed");
      this.#push(errorBytes(error));
      core.refusedInBlock = error;
    }
    this.#failed();
    return DROP;
  }

  /** The error is that of our own enter, not of anything of the client. */
  #fromEntering(): boolean {
    const core = this.#core;
    const head = core.replies.head();
    if (reply.kindOf(head) === reply.QUERY) return core.query?.skipLeft === 1;
    return (head & reply.OWN) !== 0 && (head & reply.REFUSAL) === 0;
  }

  /** After an error: what the server will not answer any more. */
  #failed(): void {
    const core = this.#core;
    core.hasFailed = true;
    core.copyInSimple = false;
    const entering = this.#fromEntering();
    const head = reply.kindOf(core.replies.head());
    if (head === reply.QUERY || head === reply.FUNCTION) {
      // The rest of the text is not run; the transaction status follows in ReadyForQuery.
      core.query = undefined;
      return;
    }
    core.copyIn = false;
    core.names.failed();
    // The skipped requests may have been those that prepare the proxy's own statements.
    if (core.replies.own > 0) core.prepared = 0;
    if (core.replies.length === 0 || core.replies.dropUntilSync()) return;
    core.query = undefined;
    const entersFunction = entering && core.entersFunction;
    core.entersFunction = false;
    if (entersFunction) {
      // The server skips the FunctionCall and would wait for a Sync; the client waits for its ReadyForQuery.
      const bytes = sync();
      core.host.toServer.push(bytes, 0, bytes.length);
      core.replies.push(reply.SYNC);
      return;
    }
    core.discarding = !core.dropping;
    this.#front.framer.resume();
  }

  #fatal(bytes: Buffer, start: number, end: number, fields: ErrorFields): Action {
    const verdict = this.#verdict;
    if (!verdict) return this.#ask(fields.get("C") === "57P01");
    this.#verdict = undefined;
    this.framer.flush();
    this.#serverEnds(Buffer.from(bytes.subarray(start, end)), verdict);
    return DROP;
  }

  /** Holds the server's message, and everything of the client, until the fence row was read. */
  #ask(ended: boolean): Action {
    const core = this.#core;
    core.ending = true;
    core.host.verdict(ended, (verdict) => {
      this.#verdict = verdict;
      this.framer.resume();
      if (!core.ending) this.#front.framer.resume();
    });
    return HOLD;
  }

  #end(bytes: Buffer): void {
    const core = this.#core;
    core.ending = true;
    core.host.counters.add("refusedLost");
    this.#push(bytes);
    core.host.end();
  }

  #notice(bytes: Buffer, start: number, end: number, total: number): Action {
    if (this.#core.replies.head() & reply.APART) return DROP;
    if (!this.#core.query || end - start < total) return PASS;
    const moved = this.#moved(BACK.notice, errorFields(bytes, start, end));
    if (!moved) return PASS;
    this.#push(moved);
    return DROP;
  }

  /** The message with its position counted in the client's text, when the fence was put into that. */
  #moved(type: number, fields: ErrorFields): Buffer | undefined {
    const running = this.#core.query;
    const position = Number(fields.get("P"));
    if (!running || !Number.isSafeInteger(position) || position < 1) return undefined;
    let shift = 0;
    for (const injection of running.injections) {
      if (position - 1 < injection.position) break;
      shift += injection.characters;
    }
    if (shift === 0) return undefined;
    fields.set("P", String(Math.max(1, position - shift)));
    return errorMessage(type, fields);
  }

  // ---- settings and the end of a request ----

  #parameter(bytes: Buffer, start: number, end: number): Action {
    const core = this.#core;
    const nameEnd = cstringEnd(bytes, start + 5, end);
    const name = bytes.toString("latin1", start + 5, nameEnd);
    const value = bytes.toString("utf8", nameEnd + 1, cstringEnd(bytes, nameEnd + 1, end));
    switch (name) {
      case "default_transaction_read_only":
        // The seat belt is not the client's business: it would take the session for a read-only one.
        core.seatBeltOpen = value !== "on";
        return DROP;
      case "standard_conforming_strings":
        core.standardStrings = value === "on";
        return PASS;
      case "client_encoding":
        if (isUnreadable(value)) this.#refuseEncoding(value);
        return PASS;
      default:
        return PASS;
    }
  }

  /** Before anything that the client has sent behind it is looked at. */
  #refuseEncoding(encoding: string): void {
    const core = this.#core;
    core.ending = true;
    this.#push(errorBytes(encodingRefused(encoding)));
    core.host.end();
  }

  #ready(bytes: Buffer, start: number, end: number): Action {
    const core = this.#core;
    const status = bytes[start + 5] as number;
    const head = core.replies.head();
    const kind = reply.kindOf(head);
    if (kind !== reply.SYNC && kind !== reply.QUERY && kind !== reply.FUNCTION) {
      throw new ProtocolError("ReadyForQuery fits no request");
    }
    core.replies.shift();
    if (kind === reply.QUERY) {
      core.query = undefined;
      core.refusing = undefined;
      core.copyInSimple = false;
    }
    if (kind === reply.FUNCTION) core.entersFunction = false;
    const action = (head & reply.OWN) !== 0 ? DROP : PASS;
    if (core.replies.readies > 0) return action;
    if (core.bracket === "opening") this.#bracketAnswered();
    if (core.replies.readies > 0 || !this.#settle(status) || !this.#front.framer.holding) return action;
    if (action === PASS) this.#passNow(bytes, start, end);
    else this.framer.flush();
    this.#front.framer.resume();
    return DROP;
  }

  /** The bracket is open, or is closed again because it did not open: then the client gets the reason. */
  #bracketAnswered(): void {
    if (this.#core.bracketFailure) this.#front.out.closeBracket();
    else this.#core.bracket = "open";
  }

  /** Nothing is in flight: the server's word on the transaction is the last one. True: the client goes on. */
  #settle(status: number): boolean {
    const core = this.#core;
    if (!core.inGroup) {
      core.status = status;
      core.unpredictable = false;
      core.commitInFlight = false;
      core.uncertain = false;
      if (status === IDLE) {
        core.entered = false;
        // An error outside of a block has undone the SET in front of it.
        if (core.hasFailed) core.readOnlyDefault = core.readOnlyDefaultCommitted;
        else core.readOnlyDefaultCommitted = core.readOnlyDefault;
        core.readOnly = core.readOnlyDefault;
        core.refusedInBlock = undefined;
      }
      core.hasFailed = false;
    } else if (!core.unpredictable) core.status = status;
    if (core.status !== FAILED && core.readOnlyDefaultTold !== core.readOnlyDefault) {
      core.readOnlyDefaultTold = core.readOnlyDefault;
      this.#push(parameterStatus("default_transaction_read_only", core.readOnlyDefault ? "on" : "off"));
    }
    if (core.bracket === "none" && core.status === IDLE && !core.inGroup && this.#closesWhatIsOpen()) return false;
    return true;
  }

  /** Puts the read-only default back on, gives the bracket's lock back. True: it waits for the answers. */
  #closesWhatIsOpen(): boolean {
    const core = this.#core;
    if (core.bracketStuck) this.#front.out.apart(core.fence.bracketClose);
    else if (core.seatBeltOpen) this.#front.out.apart(core.fence.defaultReadOnly);
    core.seatBeltOpen = false;
    core.bracketStuck = false;
    return core.replies.readies > 0;
  }

  /** To the client before the client's messages that waited for it go on, and may be answered by the proxy itself. */
  #passNow(bytes: Buffer, start: number, end: number): void {
    this.framer.flush();
    this.#core.host.toClient.push(bytes, start, end);
  }

  #push(bytes: Buffer): void {
    this.framer.flush();
    this.#core.host.toClient.push(bytes, 0, bytes.length);
  }
}
