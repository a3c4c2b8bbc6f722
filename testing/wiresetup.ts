/** For tests: a session of the wire without sockets; the test plays both the client and the server. */
import type { PermitState } from "../lease/permit.ts";
import { KnownWriters } from "../sidecar/wire/bare.ts";
import { fenceBytes, type SessionHost } from "../sidecar/wire/core.ts";
import { Counters } from "../sidecar/wire/counters.ts";
import { BACK, cstring, errorFields, errorMessage, message, readyForQuery } from "../sidecar/wire/messages.ts";
import { Session } from "../sidecar/wire/session.ts";
import type { Verdict } from "../sidecar/wire/verdict.ts";

export const IDENTITY = { fenceName: "billing/run", generation: 7, holder: "uid-7", holderName: "run-7" };
export const SUPERSEDED: Verdict = {
  kind: "superseded",
  generation: 8,
  holderName: "run-8",
  raisedAt: "2026-11-29T13:02:11.000Z",
};
export const PREFIX = "SET TRANSACTION READ WRITE;LOCK TABLE fence.gate_1_7 IN ROW SHARE MODE;";

export const complete = (tag: string): Buffer => message(BACK.commandComplete, cstring(tag));
export const error = (severity: string, code: string): Buffer =>
  errorMessage(
    BACK.error,
    new Map([
      ["S", severity],
      ["V", severity],
      ["C", code],
      ["M", "said by the server"],
    ]),
  );
export const entered = [complete("SET"), complete("LOCK TABLE")];
export const answers = (letters: string): Buffer[] =>
  [...letters].map((letter) => message(letter.charCodeAt(0), Buffer.alloc(0)));
export const READ_ONLY_DEFAULT = "SET default_transaction_read_only=on";
/** What `sent` shows of a group of the proxy's own, and how the server answers it. */
export const apart = (...statements: readonly string[]): string[] => [
  ...statements.flatMap((sql) => ["C", `P ${sql}`, "B", "E", "C"]),
  "S",
];
export const apartAnswers = (...tags: readonly string[]): Buffer[] => [
  ...tags.flatMap((tag) => [...answers("312"), complete(tag), ...answers("3")]),
  readyForQuery(0x49),
];

export class Setup {
  readonly toClient: Buffer[] = [];
  readonly toServer: Buffer[] = [];
  readonly counters = new Counters();
  readonly writers = new KnownWriters();
  permit: PermitState = "valid";
  ended = false;
  serverClosed = false;
  #verdicts: ((verdict: Verdict) => void)[] = [];
  readonly session: Session;

  constructor({ readOnlyDefault = false } = {}) {
    const sink = (to: Buffer[]): SessionHost["toClient"] => ({
      push: (bytes, start, end) => to.push(Buffer.from(bytes.subarray(start, end))),
    });
    this.session = new Session({
      identity: IDENTITY,
      fence: fenceBytes(1, IDENTITY, "x"),
      readOnlyDefault,
      writers: this.writers,
      standardStrings: true,
      host: {
        toClient: sink(this.toClient),
        toServer: sink(this.toServer),
        counters: this.counters,
        permit: () => this.permit,
        permitEndedMsAgo: () => 9_200,
        verdict: (_ended, done) => this.#verdicts.push(done),
        closeServer: () => {
          this.serverClosed = true;
        },
        end: () => {
          this.ended = true;
        },
      },
    });
  }

  client(...parts: Buffer[]): this {
    const bytes = Buffer.concat(parts);
    this.session.fromClient(bytes, 0, bytes.length);
    return this;
  }
  server(...parts: Buffer[]): this {
    const bytes = Buffer.concat(parts);
    this.session.fromServer(bytes, 0, bytes.length);
    return this;
  }
  judge(verdict: Verdict): this {
    for (const done of this.#verdicts.splice(0)) done(verdict);
    return this;
  }
  /** What came to the client, as letters; errors with their code. */
  heard(): string[] {
    return split(Buffer.concat(this.toClient.splice(0))).map((bytes) => {
      const letter = String.fromCharCode(bytes[0] as number);
      return letter === "E" ? `E ${errorFields(bytes, 0, bytes.length).get("C")}` : letter;
    });
  }
  sentBytes(): Buffer {
    return Buffer.concat(this.toServer.splice(0));
  }
  /** What came to the server: the text of queries, the letters of the rest, with the text behind a Parse of a group apart. */
  sent(): string[] {
    return split(this.sentBytes()).map((bytes) => {
      const letter = String.fromCharCode(bytes[0] as number);
      if (letter === "Q") return bytes.toString("utf8", 5, bytes.length - 1);
      const [name = "", sql] = bytes.toString("utf8", 5).split("\0");
      return letter === "P" && name.startsWith("_fencedjob_a_") ? `P ${sql}` : letter;
    });
  }
}

function split(bytes: Buffer): Buffer[] {
  const messages: Buffer[] = [];
  for (let at = 0; at < bytes.length; ) {
    const end = at + 1 + bytes.readUInt32BE(at + 1);
    messages.push(bytes.subarray(at, end));
    at = end;
  }
  return messages;
}
