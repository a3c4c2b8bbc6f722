import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type Action, DROP, Framer, HOLD, type MessageHandler, PASS, ProtocolError } from "./framer.ts";
import { message } from "./messages.ts";

/** Notes each decision; passes, drops or holds by the message's type. */
class Recorder implements MessageHandler {
  readonly seen: string[] = [];
  readonly passed: Buffer[] = [];
  readonly needed: number;
  held = 0;
  readonly framer: Framer;

  constructor(needed: number) {
    this.needed = needed;
    this.framer = new Framer(this, {
      push: (bytes, start, end) => this.passed.push(Buffer.from(bytes.subarray(start, end))),
    });
  }

  bytesNeeded(_type: number, total: number): number {
    return Math.min(total, this.needed);
  }

  message(type: number, bytes: Buffer, start: number, end: number, total: number): Action {
    const letter = String.fromCharCode(type);
    // Held once, then decided on again.
    if (letter === "h" && this.held++ % 2 === 0) return HOLD;
    if (letter === "i") {
      this.framer.flush();
      this.passed.push(Buffer.from("<in>"));
    }
    this.seen.push(`${letter}${total}:${bytes.toString("latin1", start, Math.min(end, start + this.needed))}`);
    return letter === "d" ? DROP : PASS;
  }
}

/** Feeds `stream` in pieces that end at `cuts`, in a buffer that is overwritten after each call. */
function feedInPieces(recorder: Recorder, stream: Buffer, cuts: readonly number[]): void {
  const ends = [...cuts.map((cut) => cut % (stream.length + 1)), stream.length].sort((a, b) => a - b);
  const shared = Buffer.alloc(stream.length + 1);
  let at = 0;
  for (const end of ends) {
    stream.copy(shared, 1, at, end);
    recorder.framer.feed(shared, 1, 1 + end - at);
    shared.fill(0xff);
    at = end;
    while (recorder.framer.holding) recorder.framer.resume();
  }
}

const messages = fc.array(
  fc
    .tuple(fc.constantFrom("p", "d", "h", "i"), fc.uint8Array({ maxLength: 60 }))
    .map(([type, body]) => message(type.charCodeAt(0), Buffer.from(body))),
  { maxLength: 30 },
);

describe("Framer", () => {
  test("any split of the stream gives the same messages and the same passed bytes", () => {
    fc.assert(
      fc.property(
        messages,
        fc.array(fc.nat(), { maxLength: 40 }),
        fc.integer({ min: 5, max: 70 }),
        (all, cuts, needed) => {
          const stream = Buffer.concat(all);
          const whole = new Recorder(needed);
          feedInPieces(whole, stream, []);
          const split = new Recorder(needed);
          feedInPieces(split, stream, cuts);
          expect(split.seen).toEqual(whole.seen);
          expect(Buffer.concat(split.passed).equals(Buffer.concat(whole.passed))).toBe(true);
          const wanted = all.flatMap((bytes) => {
            const type = String.fromCharCode(bytes[0] as number);
            return type === "d" ? [] : type === "i" ? [Buffer.from("<in>"), bytes] : [bytes];
          });
          expect(Buffer.concat(whole.passed).equals(Buffer.concat(wanted))).toBe(true);
          expect(split.framer.atBoundary).toBe(true);
        },
      ),
      { numRuns: 500 },
    );
  });

  test("passed messages of one chunk go out as one run, without copies in between", () => {
    const recorder = new Recorder(5);
    const stream = Buffer.concat([1, 2, 3].map((n) => message(0x70, Buffer.alloc(n))));
    recorder.framer.feed(stream, 0, stream.length);
    expect(recorder.passed.length).toBe(1);
  });

  test.each([0, 3, 0x80000000, 0xffffffff])(
    "a length of %d is a protocol error, and nothing is allocated",
    (length) => {
      const recorder = new Recorder(5);
      const bytes = Buffer.alloc(5);
      bytes[0] = 0x70;
      bytes.writeUInt32BE(length, 1);
      expect(() => recorder.framer.feed(bytes, 0, 5)).toThrow(ProtocolError);
    },
  );

  test("a message of a gigabyte streams through in the pieces in which it comes", () => {
    const recorder = new Recorder(16);
    const head = Buffer.alloc(5);
    head[0] = 0x70;
    head.writeUInt32BE(1 << 30, 1);
    recorder.framer.feed(head, 0, 5);
    const piece = Buffer.alloc(64 * 1024);
    let pushed = 0;
    for (let i = 0; i < 100; i++) {
      recorder.framer.feed(piece, 0, piece.length);
      pushed += recorder.passed.splice(0).reduce((sum, bytes) => sum + bytes.length, 0);
    }
    expect(pushed).toBe(100 * piece.length + 5);
    expect(recorder.seen.length).toBe(1);
  });
});
