/** COPY FROM STDIN, where a Sync in front of the data means nothing to the server, or something. */
import { describe, expect, test } from "vitest";
import { HostileDialogue } from "../../testing/hostiledialogue.ts";
import { group, run } from "../../testing/requests.ts";
import { errorBytes } from "./errors.ts";
import {
  bind,
  copyData,
  copyDone,
  cstring,
  describeStatement,
  FRONT,
  IDLE,
  message,
  parse,
  query,
  readyForQuery,
  sync,
} from "./messages.ts";

const heard = (dialogue: HostileDialogue): string => Buffer.concat(dialogue.heard).toString("latin1");
const ROW = copyData(Buffer.from("1\n"));
/** Fails behind its CopyInResponse. */
const FAILING = run("COPY v FROM STDIN");

/** Each of `sent` as one piece, and what is answered. */
function play(...sent: Buffer[][]): HostileDialogue {
  const dialogue = new HostileDialogue();
  for (const messages of sent) {
    dialogue.client(Buffer.concat(messages));
    dialogue.settle();
  }
  return dialogue;
}

function letters(dialogue: HostileDialogue): string {
  const found: string[] = [];
  const bytes = Buffer.concat(dialogue.heard);
  for (let at = 0; at < bytes.length; at += 1 + bytes.readUInt32BE(at + 1)) {
    found.push(String.fromCharCode(bytes[at] as number));
  }
  return found.join("");
}

test("INV-3: what is pipelined behind a Sync and a COPY that fails is not overtaken by a read", () => {
  const dialogue = play(group("INSERT INTO t VALUES (1)"));
  const opens = group("SELECT set_config('default_transaction_read_only', 'off', false)");
  dialogue.client(Buffer.concat([...FAILING, sync(), copyDone(), ...opens]));
  const idle = "Z\0\0\0\u0005I";
  while (!dialogue.ended && !(heard(dialogue).includes("C42809") && heard(dialogue).endsWith(idle))) {
    dialogue.deliver(1);
  }
  dialogue.client(query("SELECT a FROM v"));
  dialogue.settle();
  expect(dialogue.server.transactions.unfenced).toEqual([]);
  expect(dialogue.ended).toBe(false);
});

describe("a Sync in front of the data", () => {
  const insert = group("INSERT INTO t VALUES (1)");

  test("is ignored", () => {
    const dialogue = play([...run("COPY t FROM STDIN"), sync()], [sync(), ROW, sync()], [copyDone(), sync()], insert);
    expect(letters(dialogue)).toBe("12GCZ12CZ");
  });

  test("does not wait when the COPY's end was sent, too", () => {
    const dialogue = new HostileDialogue();
    dialogue.client(Buffer.concat([...run("COPY t FROM STDIN"), ROW, copyDone(), sync()]));
    expect(dialogue.session.clientHeld).toBe(false);
    dialogue.settle();
    expect(letters(dialogue)).toBe("12GCZ");
  });

  test("ends what was refused behind the COPY: the next message is heard", () => {
    const dialogue = play([...FAILING, parse("_fencedjob_x", "SELECT 1"), sync()], [query("SHOW a")]);
    expect(letters(dialogue)).toBe("12GEZTCZ");
  });

  test("stays ignored when the COPY fails in its data", () => {
    const dialogue = play([...run("COPY t FROM STDIN"), sync()]);
    const bad = errorBytes({ severity: "ERROR", code: "22P02", message: "modelled" });
    dialogue.client(ROW);
    dialogue.deliver(0, () => bad);
    dialogue.client(Buffer.concat([copyDone(), sync()]));
    dialogue.deliver(Number.MAX_SAFE_INTEGER, () => readyForQuery(IDLE));
    dialogue.client(Buffer.concat(insert));
    dialogue.settle();
    expect(letters(dialogue)).toBe("12GEZ12CZ");
  });

  test("of the next group waits for nothing", () => {
    const dialogue = play(
      [parse("c", "COPY t FROM STDIN"), sync()],
      [parse("", "SHOW a"), ...run("EXECUTE w"), sync()],
    );
    dialogue.client(Buffer.concat(group("SHOW a", "SHOW b")));
    expect(dialogue.session.clientHeld).toBe(false);
  });

  test.each([
    ["alone", [[...FAILING, sync()]], "12GEZ"],
    [
      "and the data come later",
      [
        [...FAILING, sync()],
        [ROW, copyDone(), sync()],
      ],
      "12GEZZ",
    ],
    ["with the data", [[...FAILING, sync(), ROW, copyDone(), sync()]], "12GEZ"],
    [
      "with something behind the COPY",
      [[...FAILING, ...run("INSERT INTO t VALUES (1)"), sync(), query("SHOW a")]],
      "12GEZTCZ",
    ],
    [
      "with something behind the COPY that is refused",
      [[...FAILING, ...run("VACUUM t"), sync(), query("SHOW a")]],
      "12GEZTCZ",
    ],
    ["as often as it was sent", [[...FAILING, sync(), sync()], [sync()]], "12GEZZZ"],
    ["of a simple query", [[query("COPY v FROM STDIN"), sync()]], "GEZZ"],
    ["of the last of a simple query's, each time", [[query("SHOW a; COPY v FROM STDIN"), sync(), sync()]], "TCGEZZZ"],
    [
      "of a simple query, behind one with data",
      [[query("COPY t FROM STDIN"), sync(), ROW, sync(), copyDone()], [query("COPY v FROM STDIN")]],
      "GCZGEZ",
    ],
  ])("is answered when the COPY fails, %s", (_how, sent, answers) => {
    expect(letters(play(...sent, insert))).toBe(`${answers}12CZ`);
  });

  test.each([
    ["nothing", run("", "c")],
    ["EXECUTE of a COPY", run("EXECUTE c")],
    ["EXECUTE of nothing", run("EXECUTE nosuch")],
    ["a name that may be one", run("SELECT 1", "é")],
    [
      "a part of what a name brings",
      [
        parse("é", "SELECT 1"),
        bind("", "é"),
        message(FRONT.execute, Buffer.concat([cstring(""), Buffer.of(0, 0, 0, 1)])),
      ],
    ],
    ["something behind it", [...run("EXECUTE w"), ...run("SELECT 1")]],
    ["the fence behind it", [...run("EXECUTE w"), describeStatement("")]],
  ])("waits for the answer, and goes on: %s", (what, sent) => {
    const prepares = [parse("c", "COPY t FROM STDIN"), sync(), query("PREPARE w AS INSERT INTO t VALUES (2)")];
    const first = what === "nothing" ? [] : prepares;
    const dialogue = play(first, [...sent, sync()]);
    if (letters(dialogue).endsWith("G")) dialogue.client(Buffer.concat([ROW, copyDone(), sync()]));
    dialogue.settle();
    expect(letters(dialogue).at(-1)).toBe("Z");
    dialogue.client(Buffer.concat(insert));
    dialogue.settle();
    expect(dialogue.hangs).toBeUndefined();
    expect(dialogue.ended).toBe(false);
    expect(heard(dialogue)).toContain("INSERT 0 1");
  });
});

test("INV-10: a CopyDone of nothing does not lend the words of a refusal to another error", () => {
  const dialogue = new HostileDialogue();
  dialogue.permit = "unconfirmed";
  dialogue.client(copyDone());
  dialogue.permit = "valid";
  dialogue.client(Buffer.concat(group("INSERT INTO t VALUES (1)")));
  const cancelled = { severity: "ERROR", code: "57014", message: "canceling statement due to user request" } as const;
  dialogue.deliver(Number.MAX_SAFE_INTEGER, () => Buffer.concat([errorBytes(cancelled), readyForQuery(IDLE)]));
  expect(heard(dialogue)).toContain("C57014");
});
