/**
 * The server's messages: replies to the proxy's own requests are swallowed, the client's pass.
 *
 * Does NOT guess from the client's side what the server does: every swallowed reply is matched with the request it
 * answers, and an answer that does not fit ends the session rather than reach the client.
 */
import { BARE_BYTES_MAX } from "./bare.ts";
import type { Core } from "./core.ts";
import { encodingRefused, errorBytes } from "./errors.ts";
import { Failures } from "./failures.ts";
import { type Action, DROP, Framer, HEADER_BYTES, type MessageHandler, PASS, ProtocolError } from "./framer.ts";
import type { Front } from "./front.ts";
import { BACK, cstringEnd, errorFields } from "./messages.ts";
import * as reply from "./replies.ts";
import { Settling } from "./settling.ts";
import { isUnreadable } from "./startup.ts";
import type { Verdict } from "./verdict.ts";

/** Errors and settings that are read as a whole; an error beyond it passes as it is. */
const WHOLE_BYTES_MAX = 1024 * 1024;

export class Back implements MessageHandler {
  readonly framer: Framer;
  readonly #core: Core;
  readonly #front: Front;
  readonly #failures: Failures;
  readonly #settling: Settling;
  /** To the client, behind what was passed so far. */
  readonly #tell = (bytes: Buffer, start = 0, end = bytes.length): void => {
    this.framer.flush();
    this.#core.host.toClient.push(bytes, start, end);
  };

  /** `serverEnds`: ends the session, with the server's own FATAL if it sent one, once the fence row was read. */
  constructor(core: Core, front: Front, serverEnds: (fatal: Buffer | undefined, verdict: Verdict) => void) {
    this.#core = core;
    this.#front = front;
    this.framer = new Framer(this, core.host.toClient);
    const parts = { core, front, framer: this.framer, tell: this.#tell };
    this.#failures = new Failures({ ...parts, serverEnds });
    this.#settling = new Settling(parts);
  }

  bytesNeeded(type: number, total: number): number {
    if (this.#core.bare.phase === "asked" && comesFirst(type)) return total > BARE_BYTES_MAX ? 5 : total;
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
      case BACK.copyIn:
      case BACK.ready:
        if (total > WHOLE_BYTES_MAX) throw new ProtocolError(`message of ${total} bytes from the server`);
        return total;
      default:
        return 5;
    }
  }

  message(type: number, bytes: Buffer, start: number, end: number, total: number): Action {
    if (this.#core.bare.phase === "asked") return this.#bareAnswer(type, bytes, start, end, total);
    if ((type === BACK.bindComplete || type === BACK.parseComplete) && this.#passesWhole(bytes, start)) return PASS;
    return this.#message(type, bytes, start, end, total);
  }

  /** While a bare request (bare.ts) may have to be sent again, the client hears nothing of it. */
  #bareAnswer(type: number, bytes: Buffer, start: number, end: number, total: number): Action {
    const { bare } = this.#core;
    if (bare.answers.length === 0 && this.#passesWhole(bytes, start)) {
      bare.phase = "answered";
      return PASS;
    }
    const whole = end - start === total;
    if (type === BACK.parameterStatus || type === BACK.notification) {
      return this.#message(type, bytes, start, end, total);
    }
    if (type === BACK.error && whole && this.#failures.refusesBare(errorFields(bytes, start, end))) return DROP;
    if (whole && comesFirst(type)) {
      if (type === BACK.parseComplete) bare.parsed = true;
      const action = this.#message(type, bytes, start, end, total);
      if (action !== PASS || bare.hold(bytes, start, end)) return DROP;
      this.#release();
      return PASS;
    }
    this.#release();
    return this.#message(type, bytes, start, end, total);
  }

  /** All answers of a request up to its ReadyForQuery are at hand, and nothing is to be done about them. */
  #passesWhole(bytes: Buffer, start: number): boolean {
    const { replies } = this.#core;
    const stop = readyBehindRows(bytes, start, this.framer.receivedEnd);
    if (stop === 0 || !replies.plainUntilSync) return false;
    if (reply.kindOf(replies.head()) !== reply.QUERY) replies.dropUntilSync();
    this.framer.passUpTo(stop);
    return true;
  }

  #release(): void {
    const { bare } = this.#core;
    bare.phase = "answered";
    if (bare.answers.length > 0) this.#tell(bare.answers.bytes, 0, bare.answers.length);
  }

  #message(type: number, bytes: Buffer, start: number, end: number, total: number): Action {
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
        if (reply.kindOf(core.replies.head()) !== reply.EXECUTE) return PASS;
        core.replies.shift();
        return this.#executed(bytes, start, end);
      case BACK.copyIn:
        this.#tell(bytes, start, end);
        this.#copyInBegins();
        return DROP;
      case BACK.error:
        return this.#failures.error(bytes, start, end, total);
      case BACK.notice:
        return this.#failures.notice(bytes, start, end, total);
      case BACK.parameterStatus:
        return this.#parameter(bytes, start, end);
      case BACK.ready:
        return this.#settling.ready(bytes, start, end);
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
    core.copyIn = replies.copyWaits;
    this.#front.framer.resume();
  }

  /** An Execute was answered: a Sync may have waited for that (copying.ts). */
  #executed(bytes: Buffer, start: number, end: number): Action {
    if (!this.#core.groupCopies || !this.#front.framer.holding) return PASS;
    this.#tell(bytes, start, end);
    this.#front.framer.resume();
    return DROP;
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
      return this.#executed(bytes, start, end);
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
    if (!mayBeNoted(bytes[at])) return;
    const core = this.#core;
    const tag = bytes.toString("latin1", at, cstringEnd(bytes, at, end));
    if (tag === "COMMIT" || tag === "ROLLBACK") {
      if (mayLeave) core.entered = false;
      if (tag === "COMMIT")
        core.readOnlyDefaultKept = core.readOnlyDefaultsInFlight.shift() ?? core.readOnlyDefaultKept;
    } else if (tag === "DISCARD ALL" || tag === "DEALLOCATE ALL") {
      core.names.clear();
      core.prepared = 0;
    } else if (tag === "DEALLOCATE") {
      core.prepared = 0;
    }
  }

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
    this.#tell(errorBytes(encodingRefused(encoding)));
    core.host.end();
  }
}

/** Whether a tag that begins so may be one of those that `#noteTag` looks for: C, R, D. */
const mayBeNoted = (first: number | undefined): boolean => first === 0x43 || first === 0x52 || first === 0x44;

/** Where the ReadyForQuery begins that ends the answers of one statement; 0 when they are others, or not all at hand. */
function readyBehindRows(bytes: Buffer, start: number, end: number): number {
  let bound = false;
  for (let at = start; at + HEADER_BYTES < end; ) {
    const stop = at + 1 + bytes.readUInt32BE(at + 1);
    if (stop < at + HEADER_BYTES) return 0;
    switch (bytes[at]) {
      // More than one of a kind, and each of thousands would be the beginning of a look at all others.
      case BACK.parseComplete:
        if (at > start) return 0;
        break;
      case BACK.bindComplete:
        if (bound) return 0;
        bound = true;
        break;
      case BACK.parameterDescription:
      case BACK.rowDescription:
      case BACK.noData:
      case BACK.dataRow:
        break;
      case BACK.commandComplete:
        return !mayBeNoted(bytes[at + HEADER_BYTES]) && stop < end && bytes[stop] === BACK.ready ? stop : 0;
      default:
        return 0;
    }
    at = stop;
  }
  return 0;
}

/** What the server may answer before it has run anything of a request to its end. */
function comesFirst(type: number): boolean {
  switch (type) {
    case BACK.parseComplete:
    case BACK.bindComplete:
    case BACK.parameterDescription:
    case BACK.rowDescription:
    case BACK.noData:
    case BACK.notice:
      return true;
    default:
      return false;
  }
}
