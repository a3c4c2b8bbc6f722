/**
 * What the proxy itself sends towards the server on behalf of the client's messages: the fence in front of them, the
 * bracket around them, and the permit's word against them.
 */
import { isFenceCode } from "../../fence/codes.ts";
import { refuseSql } from "../../fence/enter.ts";
import { type ApartGroup, type Core, LOCK_PREPARED, SELECT_PREPARED } from "./core.ts";
import { COUNTER } from "./counters.ts";
import { errorBytes, unconfirmedError, type WireError } from "./errors.ts";
import { type Action, DROP, HOLD } from "./framer.ts";
import { FAILED, IDLE } from "./messages.ts";
import * as reply from "./replies.ts";
import type { Statement } from "./statements.ts";

/** What answers one statement of an `ApartGroup`. */
const APART_REPLIES = [reply.CLOSE, reply.PARSE, reply.BIND, reply.EXECUTE, reply.CLOSE] as const;

export class Outgoing {
  readonly #core: Core;
  readonly #flush: () => void;
  readonly #lost: () => void;

  readonly #end: (bytes: Buffer) => void;

  /**
   * `flush`: what was passed goes out first. `lost`: ownership turns out to be lost, the session is to end. `end`: the
   * session ends with an error.
   */
  constructor(core: Core, flush: () => void, lost: () => void, end: (bytes: Buffer) => void) {
    this.#core = core;
    this.#flush = flush;
    this.#lost = lost;
    this.#end = end;
  }

  /**
   * Whether the permit (INV-5) or an earlier refusal in this block (INV-10) stands against the message. ROLLBACK always
   * passes: it can only undo.
   */
  blocked(statement: Statement | undefined, empty: boolean): WireError | "hold" | undefined {
    const core = this.#core;
    if (empty || statement?.kind === "rollback" || statement?.kind === "rollbackTo") return undefined;
    const state = core.host.permit();
    if (state === "lost") {
      this.#lost();
      return "hold";
    }
    if (statement?.kind === "commit" && core.status === FAILED && core.refusedInBlock) return core.refusedInBlock;
    if (state === "valid") return undefined;
    // `closed` cannot be: no session begins before the raise (INV-4).
    return unconfirmedError(core.identity, core.host.permitEndedMsAgo());
  }

  /**
   * Whether a request that only reads may go without the fence (bare.ts): the session is idle, its default read-only, and
   * it is not one that is sent again.
   */
  get mayGoBare(): boolean {
    const { status, replies, seatBeltOpen, bare } = this.#core;
    return status === IDLE && replies.length === 0 && !seatBeltOpen && bare.phase === "none";
  }

  refusalText(error: WireError): string {
    this.#core.refusing = error;
    const code = isFenceCode(error.code) ? error.code : "LF020";
    return refuseSql(code, error.message, error.detail ?? "", error.hint ?? "");
  }

  wait(): Action {
    this.#core.host.counters.add(COUNTER.messages, -1);
    return HOLD;
  }

  fatal(error: WireError): Action {
    this.#core.ending = true;
    this.#end(errorBytes({ ...error, severity: "FATAL" }));
    return DROP;
  }

  /** Sends the bracket's first half; the message that needs it is decided on again when that was answered. */
  openBracket(): Action {
    const core = this.#core;
    core.bracket = "opening";
    this.apart(core.fence.bracketLock);
    this.apart(core.readOnlyDefault ? core.fence.bracketCheck : core.fence.bracketCheckWritable);
    return this.wait();
  }

  closeBracket(): void {
    const core = this.#core;
    core.bracket = "none";
    this.apart(core.fence.bracketClose);
  }

  /** Only where the client's Sync or simple query is the last thing sent. */
  apart({ bytes, statements }: ApartGroup): void {
    const { replies } = this.#core;
    this.push(bytes);
    for (let i = 0; i < statements; i++) {
      for (const kind of APART_REPLIES) replies.push(kind | reply.OWN | reply.APART);
    }
    replies.push(reply.SYNC | reply.OWN | reply.APART);
  }

  /** Puts the fence in front of what comes next. */
  enter(): void {
    const core = this.#core;
    const { fence } = core;
    const inBlock = core.status !== IDLE;
    // No row lock in a read-only transaction: outside of a block, where LOCK is refused, it is made read-only behind it.
    const readOnlyAgain = core.readOnly && !inBlock;
    const writable = !core.readOnly || readOnlyAgain;
    const ownPortal = inBlock || core.uncertain || core.groupBinds;
    const anywhere = writable && ownPortal && (core.uncertain || !inBlock);
    const way = inBlock && !anywhere ? LOCK_PREPARED : SELECT_PREPARED;
    const prepared = (core.prepared & way) !== 0;
    if (!prepared) {
      // It may fail with the group: the next one waits for the answer.
      core.unpredictable = true;
      this.#prepare(fence.prepareWritable);
    }
    if (writable) this.#execution(ownPortal ? fence.makeWritableInBlock : fence.makeWritable, ownPortal);
    if (!prepared && way === LOCK_PREPARED) this.#prepare(fence.prepareEnterInBlock);
    else if (!prepared) {
      this.#prepare(fence.prepareEnter);
      this.#prepare(fence.prepareReadOnly);
    }
    if (anywhere) this.#execution(fence.enterAnywhere, true);
    else this.#execution(inBlock ? fence.enterInBlock : fence.enter, inBlock);
    if (readOnlyAgain) this.#execution(fence.makeReadOnlyAnywhere, true);
    core.prepared |= way;
    core.entered = true;
  }

  /**
   * In front of what may be a write, but hardly is one: the lock in a block; outside of one, where the lock would take a
   * snapshot and no isolation level could follow, the transaction is made read-only.
   */
  guard(): void {
    const core = this.#core;
    if (core.status !== IDLE) return this.enter();
    if ((core.prepared & SELECT_PREPARED) === 0) {
      core.unpredictable = true;
      this.#prepare(core.fence.prepareReadOnly);
    }
    this.#execution(core.fence.makeReadOnlyAnywhere, true);
  }

  #prepare(bytes: Buffer): void {
    const { replies } = this.#core;
    this.push(bytes);
    replies.push(reply.CLOSE | reply.OWN);
    replies.push(reply.PARSE | reply.OWN);
  }

  #execution(bytes: Buffer, closes: boolean): void {
    const { replies } = this.#core;
    this.push(bytes);
    replies.push(reply.BIND | reply.OWN);
    replies.push(reply.EXECUTE | reply.OWN);
    if (closes) replies.push(reply.CLOSE | reply.OWN);
  }

  /** To the client, in place of the server. */
  answer(bytes: Buffer): void {
    this.#core.host.toClient.push(bytes, 0, bytes.length);
  }

  /** To the server, behind what the client's messages passed so far. */
  push(bytes: Buffer): void {
    this.#flush();
    this.#core.host.toServer.push(bytes, 0, bytes.length);
  }
}
