/**
 * The end of a request: what ReadyForQuery says about the transaction, and whether the client's next message may go, or
 * something of the proxy's own comes first.
 */
import type { Core } from "./core.ts";
import { type Action, DROP, type Framer, PASS, ProtocolError } from "./framer.ts";
import type { Front } from "./front.ts";
import { FAILED, IDLE, parameterStatus } from "./messages.ts";
import * as reply from "./replies.ts";

export interface SettlingOptions {
  readonly core: Core;
  readonly front: Front;
  /** Of the server's messages. */
  readonly framer: Framer;
  /** To the client, behind what was passed so far. */
  readonly tell: (bytes: Buffer, start?: number, end?: number) => void;
}

export class Settling {
  readonly #core: Core;
  readonly #front: Front;
  readonly #framer: Framer;
  readonly #tell: (bytes: Buffer, start?: number, end?: number) => void;

  constructor({ core, front, framer, tell }: SettlingOptions) {
    this.#core = core;
    this.#front = front;
    this.#framer = framer;
    this.#tell = tell;
  }

  /** A ReadyForQuery. */
  ready(bytes: Buffer, start: number, end: number): Action {
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
      core.copyInSimple = false;
    }
    if (kind === reply.FUNCTION) core.entersFunction = false;
    if (core.bare.phase === "refused") return this.#repeats();
    core.bare.end(core.hasFailed);
    const action = (head & reply.OWN) !== 0 ? DROP : PASS;
    if (core.replies.readies > 0) return action;
    if (core.bracket === "opening") this.#bracketAnswered();
    if (core.replies.readies > 0 || !this.#settle(status) || !this.#front.framer.holding) return action;
    // In front of the answers that the proxy itself may give to what has waited for it.
    if (action === PASS) this.#tell(bytes, start, end);
    else this.#framer.flush();
    this.#front.framer.resume();
    return DROP;
  }

  /** The client hears only of the second run. */
  #repeats(): Action {
    this.#core.unpredictable = false;
    this.#framer.flush();
    if (!this.#core.ending) this.#front.repeat();
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
      core.refusing = undefined;
      core.refusesCopy = false;
      // Setting a length costs a call into the runtime, each time.
      if (core.readOnlyDefaultsInFlight.length > 0) core.readOnlyDefaultsInFlight.length = 0;
      if (core.hasFailed) core.readOnlyDefaultCommitted = core.readOnlyDefaultKept;
      if (status === IDLE) {
        core.entered = false;
        // An error outside of a block has undone the SET in front of it.
        if (core.hasFailed) core.readOnlyDefault = core.readOnlyDefaultCommitted;
        else core.readOnlyDefaultCommitted = core.readOnlyDefault;
        core.readOnlyDefaultKept = core.readOnlyDefault;
        core.readOnly = core.readOnlyDefault;
        core.names.portalsEnd();
      }
      if (status !== FAILED) core.refusedInBlock = undefined;
    } else if (!core.unpredictable) core.status = status;
    // An unfinished group has no answers yet: what has failed was in front of it.
    core.hasFailed = false;
    // What an unfinished group has set is told with its own ReadyForQuery, as the server does it.
    if (!core.inGroup && core.status !== FAILED && core.readOnlyDefaultTold !== core.readOnlyDefault) {
      core.readOnlyDefaultTold = core.readOnlyDefault;
      this.#tell(parameterStatus("default_transaction_read_only", core.readOnlyDefault ? "on" : "off"));
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
}
