/**
 * Groups that are at hand as a whole, and answers that are, are decided on once (extended.ts, back.ts). That this makes no
 * difference is what hostile.test.ts says of any split; here stands what it would take to see one.
 */
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { HostileDialogue } from "../../testing/hostiledialogue.ts";
import { group, run } from "../../testing/requests.ts";
import { bind, describeStatement, execute, FRONT, message, parse, query, sync } from "./messages.ts";

/** Each of `sent` as one piece, and its answers as one. */
function play(...sent: Buffer[][]): HostileDialogue {
  const dialogue = new HostileDialogue();
  for (const messages of sent) {
    dialogue.client(Buffer.concat(messages));
    dialogue.settle();
  }
  return dialogue;
}

const heard = (dialogue: HostileDialogue): string => Buffer.concat(dialogue.heard).toString("latin1");

describe("a group as a whole", () => {
  test("INV-3: its portal may not have one of the proxy's own names", () => {
    const dialogue = play([parse("", "SELECT a FROM t"), bind("_fencedjob_x", ""), execute("_fencedjob_x"), sync()]);
    expect(heard(dialogue)).toContain("C42939");
  });

  test("it may not describe a statement of the proxy's own", () => {
    const describes = [parse("", "SELECT a FROM t"), describeStatement("_fencedjob_x"), bind("", ""), execute("")];
    expect(heard(play([...describes, sync()]))).toContain("C42939");
  });

  test("its Sync may not have a body", () => {
    const dialogue = play([...run("INSERT INTO t VALUES (1)"), message(FRONT.sync, Buffer.alloc(4))]);
    expect(dialogue.ended).toBe(true);
  });

  test("INV-10: without an answer its outcome is unknown", () => {
    const dialogue = new HostileDialogue();
    dialogue.client(Buffer.concat(group("INSERT INTO t VALUES (1)")));
    dialogue.session.serverClosed();
    dialogue.judge();
    expect(heard(dialogue)).toContain("C08007");
  });
});

describe("answers as a whole", () => {
  test("are told as a whole, in however many pieces they come", () => {
    const dialogue = new HostileDialogue();
    dialogue.client(Buffer.concat(group("SELECT a FROM t")));
    dialogue.deliver(5);
    dialogue.settle();
    expect(heard(dialogue)).toBe(heard(play(group("SELECT a FROM t"))));
  });

  test.each([
    ["Parses", parse("", "SELECT 1")],
    ["Binds", bind("", "")],
  ])("are not looked for again at each of thousands of %s", (_what, request) => {
    const dialogue = new HostileDialogue();
    const many = 5_000;
    dialogue.client(Buffer.concat([parse("", "SELECT 1"), ...Array<Buffer>(many).fill(request)]));
    const length = vi.spyOn(Buffer.prototype, "readUInt32BE");
    onTestFinished(() => length.mockRestore());
    dialogue.deliver(Number.MAX_SAFE_INTEGER);
    expect(length.mock.calls.length).toBeLessThan(4 * many);
  });

  test("INV-3: what they change of a name's meaning is noted", () => {
    const dialogue = play(
      [parse("", "COMMIT"), sync()],
      group("SELECT a FROM t"),
      [parse("m", "COMMIT AND CHAIN"), sync()],
      [parse("m", "SELECT 1"), sync()], // refused: there is an m
      [query("BEGIN; INSERT INTO t VALUES (1)")],
      [bind("", "m"), execute(""), ...run("UPDATE t SET a = 1"), sync()],
    );
    expect(heard(dialogue)).toContain("C42P05");
    expect(dialogue.server.transactions.unfenced).toEqual([]);
    expect(dialogue.server.transactions.written).toBe(2);
  });

  test("a DISCARD ALL among them takes the fence's statements away, under whatever name it was prepared", () => {
    const insert = group("INSERT INTO t VALUES (1)");
    // Names that cannot be compared: nothing is noted of them.
    const discard = [bind("ä", "ä"), execute("ä"), sync()];
    const dialogue = play(insert, [parse("ä", "DISCARD ALL"), sync()], discard, insert);
    expect(heard(dialogue)).toContain("DISCARD ALL");
    expect(dialogue.server.transactions.written).toBe(2);
  });
});
