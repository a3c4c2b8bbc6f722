/**
 * One client and its one server session, after both have started: bytes in, bytes out, no sockets.
 *
 * Does NOT fence by itself: PostgreSQL refuses what the session sends when its gate is closed. The session sees to it
 * that everything it sends has entered a gate, and that the client is told the truth about the end (INV-10).
 */

import { Back } from "./back.ts";
import { Core, type CoreOptions } from "./core.ts";
import { COUNTER } from "./counters.ts";
import { connectionLost, errorBytes, lostError, unknownOutcome, type WireError } from "./errors.ts";
import { Front } from "./front.ts";
import { errorFields, FRONT, IDLE } from "./messages.ts";
import * as reply from "./replies.ts";
import { isLoss, type Verdict } from "./verdict.ts";

export interface SessionOptions extends CoreOptions {
  readonly standardStrings: boolean;
}

export class Session {
  readonly #core: Core;
  readonly #front: Front;
  readonly #back: Back;
  #serverGone = false;
  /** Cancel requests under way. */
  #cancels = 0;
  #lost = false;

  constructor(options: SessionOptions) {
    this.#core = new Core(options);
    this.#core.standardStrings = options.standardStrings;
    this.#front = new Front(
      this.#core,
      () => this.lose(),
      (bytes) => this.#lastWords(bytes),
    );
    this.#back = new Back(this.#core, this.#front, (fatal, verdict) => this.#finish(verdict, fatal));
  }

  /** Bytes of the client. Throws ProtocolError. */
  fromClient(bytes: Buffer, start: number, end: number): void {
    if (this.#core.epitaph) this.#tellEpitaph(bytes[start] === FRONT.terminate);
    else this.#front.framer.feed(bytes, start, end);
  }

  /** Bytes of the server. Throws ProtocolError. */
  fromServer(bytes: Buffer, start: number, end: number): void {
    if (!this.#serverGone) this.#back.framer.feed(bytes, start, end);
  }

  /** The client's messages wait: stop reading it. */
  get clientHeld(): boolean {
    return this.#front.framer.holding;
  }

  /** The client, even if it has gone, has sent what the server has still to be sent. */
  get clientUnserved(): boolean {
    return this.clientHeld || this.#core.bare.unheard;
  }

  /** The server's messages wait: stop reading it. */
  get serverHeld(): boolean {
    return this.#back.framer.holding;
  }

  /**
   * The client has a part of a message: a reason put behind it would be taken for its rest, perhaps for data of a row
   * (INV-10). Then the end of the connection has to tell.
   */
  get clientPartWay(): boolean {
    return this.#back.framer.partWay;
  }

  /** Something of the client is under way. */
  get busy(): boolean {
    return this.cancellable || this.#core.inGroup;
  }

  /** Something of the client runs, or waits to run: a cancel is meant for it and not for the proxy's own statements. */
  get cancellable(): boolean {
    return this.#awaited || this.#core.bracket === "opening";
  }

  /** Answers to the client's own requests are still to come. */
  get #awaited(): boolean {
    const { replies } = this.#core;
    return replies.length > replies.own;
  }

  /**
   * A cancel request is being delivered, or has been: what the client sends next waits until none of them can hit
   * anything but its target.
   */
  setCancelling(cancelling: boolean): void {
    this.#cancels += cancelling ? 1 : -1;
    this.#core.cancelling = this.#cancels > 0;
    if (cancelling) this.#core.bare.cancelled = true;
    if (!this.#core.cancelling) this.#front.framer.resume();
  }

  /** The server's connection ended. */
  serverClosed(): void {
    const core = this.#core;
    if (this.#serverGone || core.epitaph) return;
    core.serverGone = true;
    if (this.#back.framer.holding) return; // its last message is being judged
    this.#serverGone = true;
    core.ending = true;
    if (core.terminated) return core.host.end();
    core.host.verdict(true, (verdict) => this.#finish(verdict, undefined));
  }

  /** Ownership is over for good: the session ends with the reason, an idle one in a block at its next message. */
  lose(): void {
    const core = this.#core;
    if (this.#lost || this.#serverGone || core.epitaph) return;
    this.#lost = true;
    core.ending = true;
    core.host.verdict(false, (verdict) => {
      if (!this.#serverGone) this.#finish(verdict, undefined);
    });
  }

  /** What the client is told when the proxy ends for `reason`, unless there is more that it must know (INV-10). */
  farewell(reason: WireError): Buffer {
    const { epitaph, identity } = this.#core;
    if (epitaph) return epitaph;
    if (!this.#outcomeUnknown(false)) return errorBytes(reason);
    return errorBytes(unknownOutcome(identity, { kind: "unknown", why: reason.message }));
  }

  #finish(verdict: Verdict, fatal: Buffer | undefined): void {
    const core = this.#core;
    this.#serverGone = true;
    core.ending = true;
    const idle = !this.busy && !this.#front.framer.holding;
    const outcome = this.#reason(verdict, fatal);
    const quiet = idle && core.status !== IDLE;
    if (quiet) {
      // Told at the next message, so that the COMMIT that waits for an answer gets the reason as its answer.
      core.epitaph = outcome.bytes;
      core.host.closeServer();
      return;
    }
    if (outcome.loss && !idle) core.host.counters.add(COUNTER.refusedLost);
    this.#lastWords(outcome.bytes);
  }

  /** Ends the session with a reason, if the client can still be told one. */
  #lastWords(bytes: Buffer): void {
    const { host } = this.#core;
    if (!this.clientPartWay) host.toClient.push(bytes, 0, bytes.length);
    host.end();
  }

  #reason(verdict: Verdict, fatal: Buffer | undefined): { bytes: Buffer; loss: boolean } {
    const core = this.#core;
    const lastWord = fatal && !isPoolersOwn(fatal) ? fatal : undefined;
    const unknown = this.#outcomeUnknown(lastWord !== undefined);
    const loss = this.#lost || isLoss(verdict);
    if (loss) {
      const open = core.status !== IDLE || this.busy;
      const error = unknown ? unknownOutcome(core.identity, verdict) : lostError(core.identity, verdict, open);
      return { bytes: errorBytes(error), loss };
    }
    if (lastWord) return { bytes: lastWord, loss };
    if (unknown) return { bytes: errorBytes(unknownOutcome(core.identity, verdict)), loss };
    return { bytes: fatal ?? errorBytes(connectionLost()), loss };
  }

  /** Something that commits is under way. `complete`: all that the server has answered is here. */
  #outcomeUnknown(complete: boolean): boolean {
    return this.#core.commitInFlight && this.#awaited && !this.#onlyEntering(complete);
  }

  /**
   * What is in flight has not got past our own statements: nothing of the client has run. Known only after a FATAL,
   * which the server sends behind all answers it had given; before that they may lie in its buffer.
   */
  #onlyEntering(complete: boolean): boolean {
    const core = this.#core;
    const head = core.replies.head();
    if (head & reply.REFUSAL) return true;
    if (!complete) return false;
    if (reply.kindOf(head) !== reply.QUERY) return (head & reply.OWN) !== 0;
    return core.query !== undefined && core.query.completed === 0 && core.query.skipLeft > 0;
  }

  #tellEpitaph(goodbye: boolean): void {
    const core = this.#core;
    const bytes = core.epitaph;
    if (!bytes || goodbye) return core.host.end();
    core.host.counters.add(COUNTER.refusedLost);
    core.host.toClient.push(bytes, 0, bytes.length);
    core.host.end();
  }
}

/**
 * Class 08, connection exceptions: what a pooler says of a server that is gone. Unlike the server's own FATAL it does not
 * come behind all answers of the server: they may be lost (INV-10).
 */
const isPoolersOwn = (fatal: Buffer): boolean =>
  errorFields(fatal, 0, fatal.length).get("C")?.startsWith("08") ?? false;
