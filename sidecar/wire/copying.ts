/**
 * The client's part of COPY FROM STDIN: its end, and a Sync in front of its data.
 *
 * Such a Sync is ignored by the server while it waits for data, and answered if the COPY has failed before: whether what
 * comes behind it is run or skipped, nobody could tell (INV-3). So it does NOT go ahead of the COPY's first answer, which
 * says what it means.
 */
import type { Core } from "./core.ts";
import { type Action, DROP, HOLD, PASS } from "./framer.ts";
import { copyFail, FRONT, flush } from "./messages.ts";
import type { Outgoing } from "./outgoing.ts";
import * as reply from "./replies.ts";

export class Copying {
  readonly #core: Core;
  readonly #out: Outgoing;

  constructor(core: Core, out: Outgoing) {
    this.#core = core;
    this.#out = out;
  }

  /** PASS: not a COPY's. */
  sync(): Action {
    const core = this.#core;
    if (core.copyIn || core.copyInSimple) {
      core.copySyncs++;
      return DROP;
    }
    if (!core.groupCopies || core.replies.executes === 0) return PASS;
    // Without it the server keeps its answers to itself, unless it is asked for them.
    this.#out.push(flush());
    return this.#out.wait();
  }

  data(): Action {
    this.#core.copySyncs = 0;
    return PASS;
  }

  /** A CopyDone or CopyFail. */
  end(type: number): Action {
    const core = this.#core;
    // The server takes no notice of any other.
    if (!core.groupCopies && core.replies.queries === 0) return PASS;
    const blocked = type === FRONT.copyDone ? this.#out.blocked(undefined, false) : undefined;
    if (blocked === "hold") return HOLD;
    this.#noteEnd();
    if (!blocked) return PASS;
    // CopyFail makes the server itself abort; its error goes to the client in our words.
    core.refusing = blocked;
    core.refusesCopy = true;
    this.#out.push(copyFail(blocked.message));
    return DROP;
  }

  #noteEnd(): void {
    const core = this.#core;
    const { replies } = core;
    core.copyIn = false;
    core.copySyncs = 0;
    core.groupCopies = false;
    if (replies.queries > 0) {
      if (core.copyInSimple) core.copyInSimple = false;
      else core.copyEndsAhead++;
      return;
    }
    if (replies.executes > 0) replies.push(reply.COPY_END);
  }
}
