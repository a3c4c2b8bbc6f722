/**
 * A Session between a client that sends what it likes and a modelled server, step by step, without sockets or clocks.
 *
 * Does NOT feed a side whose messages are held, as the relay does not.
 */
import type { PermitState } from "../lease/permit.ts";
import { KnownWriters } from "../sidecar/wire/bare.ts";
import { fenceBytes, type SessionHost } from "../sidecar/wire/core.ts";
import { Counters } from "../sidecar/wire/counters.ts";
import { ProtocolError } from "../sidecar/wire/framer.ts";
import { Session } from "../sidecar/wire/session.ts";
import type { Verdict } from "../sidecar/wire/verdict.ts";
import { Choices, legalMessages, mutated } from "./hostilemessages.ts";
import { ModelledPostgres } from "./modelledpostgres.ts";
import { seededRandom } from "./seeded.ts";

/** What happens next. Bytes are latin1 text, so that a failed run can be read. */
export type Step =
  | { readonly client: string }
  /** So many bytes of what the server has said arrive, at most. */
  | { readonly deliver: number }
  /** The fence row was read. */
  | { readonly judge: true }
  /** The next generation is raised; every session is ended, or only those inside the gate. */
  | { readonly raise: "all" | "inside" }
  | { readonly permit: PermitState }
  | { readonly cancelling: boolean };

/** `changes`: share of the client's messages that are changed on their way. */
export function stepOf(seed: number, changes: number): Step {
  const choices = new Choices(seededRandom(seed));
  const chosen = choices.below(100);
  if (chosen < 60) return { client: mutated(legalMessages(choices), choices, changes).toString("latin1") };
  if (chosen < 92) return { deliver: choices.chance(0.5) ? Number.MAX_SAFE_INTEGER : choices.below(100) };
  if (chosen < 95) return { judge: true };
  if (chosen < 97) return { permit: choices.chance(0.7) ? "valid" : "unconfirmed" };
  if (chosen < 99) return { cancelling: choices.chance(0.5) };
  return choices.chance(0.3) ? { raise: choices.of(["all", "inside"]) } : { judge: true };
}

const IDENTITY = { fenceName: "billing/run", generation: 7, holder: "uid-7", holderName: "run-7" };
const FENCE = fenceBytes(1, IDENTITY, "x");
const SUPERSEDED: Verdict = { kind: "superseded", generation: 8, holderName: "run-8", raisedAt: "" };

export class HostileDialogue {
  readonly server: ModelledPostgres;
  readonly session: Session;
  permit: PermitState = "valid";
  ended = false;
  /** Messages that the session has taken from the client. */
  get taken(): number {
    return this.#counters.read().messages;
  }
  /** What the client was told. */
  readonly heard: Buffer[] = [];
  readonly #counters = new Counters();
  #fromClient: Buffer[] = [];
  #fromServer: Buffer[] = [];
  #verdicts: ((verdict: Verdict) => void)[] = [];
  /** Cancels that are being delivered. */
  #cancels = 0;

  /** `deaf`: the server takes nothing, and the client hears nothing. */
  constructor({ readOnlyDefault = false, deaf = false } = {}) {
    this.server = new ModelledPostgres((bytes) => this.#fromServer.push(bytes));
    this.server.ended = deaf;
    const host: SessionHost = {
      toClient: {
        push: (bytes, start, end) => {
          // As a closed connection; what is still at hand of the server's is not told.
          if (!deaf && !this.ended) this.heard.push(Buffer.from(bytes.subarray(start, end)));
        },
      },
      toServer: { push: (bytes, start, end) => this.server.receive(bytes.subarray(start, end)) },
      counters: this.#counters,
      permit: () => this.permit,
      permitEndedMsAgo: () => 1,
      verdict: (_ended, done) => this.#verdicts.push(done),
      closeServer: () => {
        this.server.ended = true;
      },
      end: () => {
        this.ended = true;
      },
    };
    const writers = new KnownWriters();
    this.session = new Session({
      identity: IDENTITY,
      fence: FENCE,
      host,
      readOnlyDefault,
      standardStrings: true,
      writers,
    });
  }

  take(step: Step): void {
    if ("client" in step) this.client(Buffer.from(step.client, "latin1"));
    else if ("deliver" in step) this.deliver(step.deliver);
    else if ("judge" in step) this.judge();
    else if ("raise" in step) this.server.raise(step.raise === "all");
    else if ("permit" in step) this.permit = step.permit;
    else this.cancelling(step.cancelling);
  }

  client(bytes: Buffer): void {
    this.#fromClient.push(bytes);
    this.#feed();
  }

  /** `bytesMax` of what the server has said, changed on the way by `change`. */
  deliver(bytesMax: number, change: (bytes: Buffer) => Buffer = (bytes) => bytes): void {
    const said = Buffer.concat(this.#fromServer);
    const bytes = change(said.subarray(0, bytesMax));
    this.#fromServer = said.length > bytesMax ? [said.subarray(bytesMax)] : [];
    if (!this.session.serverHeld) this.#step(() => this.session.fromServer(bytes, 0, bytes.length));
    else this.#fromServer.unshift(bytes);
    this.#feed();
  }

  judge(): void {
    const verdict: Verdict = this.server.transactions.gateOpen ? { kind: "ours" } : SUPERSEDED;
    for (const done of this.#verdicts.splice(0)) this.#step(() => done(verdict));
    this.#feed();
  }

  /** A cancel begins to be delivered, or one of those that have begun has been. */
  cancelling(yes: boolean): void {
    if (!yes && this.#cancels === 0) return;
    this.#cancels += yes ? 1 : -1;
    this.#step(() => this.session.setCancelling(yes));
    this.#feed();
  }

  /** Everything that is on its way arrives. Afterwards nothing moves by itself. */
  settle(): void {
    while (this.#cancels > 0) this.cancelling(false);
    while (!this.ended && (this.#verdicts.length > 0 || (this.#fromServer.length > 0 && !this.session.serverHeld))) {
      this.deliver(Number.MAX_SAFE_INTEGER);
      this.judge();
    }
    if (!this.server.ended) return;
    this.#step(() => this.session.serverClosed());
    this.judge();
  }

  /** Of a settled dialogue: why it would stay as it is for ever, though the client waits. */
  get hangs(): string | undefined {
    if (this.ended) return undefined;
    if (this.session.serverHeld) return "the server's messages are held";
    if (this.session.clientHeld) return "the client's messages are held";
    return undefined;
  }

  #feed(): void {
    while (!this.ended && !this.session.clientHeld) {
      const bytes = this.#fromClient.shift();
      if (!bytes) return;
      this.#step(() => this.session.fromClient(bytes, 0, bytes.length));
    }
  }

  #step(step: () => void): void {
    if (this.ended) return;
    try {
      step();
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      this.ended = true;
    }
  }
}
