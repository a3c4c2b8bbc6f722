/**
 * Errors and notices of the server: they get their place in the client's text back, one that may mean the end of the
 * generation waits for the fence row, and what an error ends is forgotten.
 *
 * Does NOT judge ownership by an SQLSTATE: 42501 has other causes, so the row is read before a loss is told (INV-10).
 */
import { isFenceCode } from "../../fence/codes.ts";
import type { Core } from "./core.ts";
import { COUNTER } from "./counters.ts";
import { errorBytes, lostError } from "./errors.ts";
import { type Action, DROP, type Framer, HOLD, PASS } from "./framer.ts";
import type { Front } from "./front.ts";
import { AS_IT_IS, BACK, type ErrorFields, errorFields, errorMessage, sync } from "./messages.ts";
import * as reply from "./replies.ts";
import { isLoss, type Verdict } from "./verdict.ts";

const SYNC = sync();

/** What PostgreSQL answers to CopyFail (query_canceled). */
const COPY_FAILED = "57014";

/** Errors that our own statements may meet without any doubt about ownership: cancel, lock timeout, deadlock, … */
const NOT_ABOUT_OWNERSHIP = new Set(["57014", "55P03", "40P01", "25P02", "25001", "53100", "53200", "53300", "54001"]);

/** The server says it as its last word. */
function isFatal(fields: ErrorFields): boolean {
  const severity = fields.get("V") ?? fields.get("S");
  return severity === "FATAL" || severity === "PANIC";
}

/**
 * PostgreSQL's refusal of a write, or what a function may have made of it (`EXCEPTION WHEN OTHERS THEN RAISE …`, PL/Perl):
 * an error from inside a function has a context. Not what may go away by itself: conflicts, limits, cancels, timeouts.
 */
function mayBeRefusal(fields: ErrorFields): boolean {
  const code = fields.get("C") ?? "";
  if (isFatal(fields)) return false;
  return code === "25006" || (fields.has("W") && !/^(40|5[3-8])/.test(code));
}

export interface FailuresOptions {
  readonly core: Core;
  readonly front: Front;
  /** Of the server's messages. */
  readonly framer: Framer;
  /** To the client, behind what was passed so far. */
  readonly tell: (bytes: Buffer) => void;
  /** Ends the session, with the server's own FATAL if it sent one, once the fence row was read. */
  readonly serverEnds: (fatal: Buffer | undefined, verdict: Verdict) => void;
}

export class Failures {
  readonly #core: Core;
  readonly #front: Front;
  readonly #framer: Framer;
  readonly #tell: (bytes: Buffer) => void;
  readonly #serverEnds: (fatal: Buffer | undefined, verdict: Verdict) => void;
  /** The answer about the error that is being held. */
  #verdict: Verdict | undefined;

  constructor({ core, front, framer, tell, serverEnds }: FailuresOptions) {
    this.#core = core;
    this.#front = front;
    this.#framer = framer;
    this.#tell = tell;
    this.#serverEnds = serverEnds;
  }

  /** An ErrorResponse. */
  error(bytes: Buffer, start: number, end: number, total: number): Action {
    const core = this.#core;
    if (end - start < total) {
      this.#failed();
      return PASS;
    }
    const fields = errorFields(bytes, start, end, AS_IT_IS);
    if (isFatal(fields)) return this.#fatal(bytes, start, end, fields);
    if (core.replies.head() & reply.APART) return this.#apartFails(fields);
    const code = fields.get("C") ?? "";
    if (core.refusing && this.#isRefusal(code)) return this.#refused();
    if (core.bare.phase === "answered") this.refusesBare(fields);
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
    this.#tell(moved);
    return DROP;
  }

  /**
   * A bare request wanted to write, or may have: true when it is to be sent again at the ReadyForQuery. To a client's
   * own READ ONLY the refusal is the answer.
   */
  refusesBare(fields: ErrorFields): boolean {
    const core = this.#core;
    if (core.readOnlyDefault || !mayBeRefusal(fields) || !core.bare.refuse()) return false;
    core.names.failed(core.replies.notedUntilSync());
    if (reply.kindOf(core.replies.head()) !== reply.QUERY) core.replies.dropUntilSync();
    return true;
  }

  #apartFails(fields: ErrorFields): Action {
    const core = this.#core;
    core.replies.dropUntilSync();
    if (core.bracket === "opening") {
      core.bracketFailure ??= errorMessage(BACK.error, fields, AS_IT_IS);
      if (isFenceCode(fields.get("C"))) this.#front.lost();
      return DROP;
    }
    // A late cancel of the client has hit the closing of a bracket: it is done again.
    core.bracketStuck = true;
    return DROP;
  }

  /** An error of the client's own in front of the refusal is told as it is. */
  #isRefusal(code: string): boolean {
    const { replies, refusesCopy } = this.#core;
    return (replies.head() & reply.REFUSAL) !== 0 || (refusesCopy && code === COPY_FAILED);
  }

  #refused(): Action {
    const core = this.#core;
    const error = core.refusing;
    core.refusing = undefined;
    if (error) {
      // Counted when it is answered: a refusal on its way to a server that has ended the session is answered otherwise.
      if (error.code === "LF002") core.host.counters.add(COUNTER.refusedUnconfirmed);
      this.#tell(errorBytes(error));
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
    core.refusesCopy = false;
    const entering = this.#fromEntering();
    const syncsOwed = core.copySyncs;
    core.copySyncs = 0;
    const head = reply.kindOf(core.replies.head());
    if (head === reply.QUERY || head === reply.FUNCTION) {
      // The rest of the text is not run; the transaction status follows in ReadyForQuery.
      core.query = undefined;
      this.#sendSyncs(syncsOwed);
      return;
    }
    core.copyIn = false;
    core.names.failed(core.replies.notedUntilSync());
    // The skipped requests may have been those that prepare the proxy's own statements.
    if (core.replies.own > 0) core.prepared = 0;
    if (core.replies.length === 0 || core.replies.dropUntilSync()) return;
    core.query = undefined;
    const entersFunction = entering && core.entersFunction;
    core.entersFunction = false;
    if (entersFunction || syncsOwed > 0) {
      // The server skips the FunctionCall, or has not got the Sync, and would wait for one; the client waits, too.
      core.inGroup = false;
      core.dropping = false;
      this.#sendSyncs(entersFunction ? 1 : syncsOwed);
      return;
    }
    core.discarding = !core.dropping;
    this.#front.framer.resume();
  }

  #sendSyncs(count: number): void {
    for (let i = 0; i < count; i++) {
      this.#core.host.toServer.push(SYNC, 0, SYNC.length);
      this.#core.replies.push(reply.SYNC);
    }
  }

  #fatal(bytes: Buffer, start: number, end: number, fields: ErrorFields): Action {
    const verdict = this.#verdict;
    if (!verdict) return this.#ask(fields.get("C") === "57P01");
    this.#verdict = undefined;
    this.#framer.flush();
    this.#serverEnds(Buffer.from(bytes.subarray(start, end)), verdict);
    return DROP;
  }

  /** Holds the server's message, and everything of the client, until the fence row was read. */
  #ask(ended: boolean): Action {
    const core = this.#core;
    core.ending = true;
    core.host.verdict(ended, (verdict) => {
      this.#verdict = verdict;
      this.#framer.resume();
      if (core.ending) return;
      if (core.serverGone) this.#serverEnds(undefined, verdict);
      else this.#front.framer.resume();
    });
    return HOLD;
  }

  #end(bytes: Buffer): void {
    const core = this.#core;
    core.ending = true;
    core.host.counters.add(COUNTER.refusedLost);
    this.#tell(bytes);
    core.host.end();
  }

  /** A NoticeResponse: its position, too, is counted in the client's text. */
  notice(bytes: Buffer, start: number, end: number, total: number): Action {
    if (this.#core.replies.head() & reply.APART) return DROP;
    if (!this.#core.query || end - start < total) return PASS;
    const moved = this.#moved(BACK.notice, errorFields(bytes, start, end, AS_IT_IS));
    if (!moved) return PASS;
    this.#tell(moved);
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
    return errorMessage(type, fields, AS_IT_IS);
  }
}
