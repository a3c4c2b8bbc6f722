/** What an error takes back of what was believed, and in whose words it is told. */
import { describe, expect, test } from "vitest";
import { HostileDialogue } from "../../testing/hostiledialogue.ts";
import { group, run } from "../../testing/requests.ts";
import { entered, PREFIX, Setup } from "../../testing/wiresetup.ts";
import { errorBytes } from "./errors.ts";
import {
  BACK,
  bind,
  copyData,
  copyDone,
  cstring,
  errorMessage,
  execute,
  IDLE,
  message,
  parse,
  query,
  readyForQuery,
  sync,
} from "./messages.ts";

const INSERT = "INSERT INTO t VALUES (1)";
const heard = (dialogue: HostileDialogue): string => Buffer.concat(dialogue.heard).toString("latin1");

/** Each of `sent` as one piece, and its answers. */
function play(...sent: Buffer[][]): HostileDialogue {
  const dialogue = new HostileDialogue();
  for (const messages of sent) {
    dialogue.client(Buffer.concat(messages));
    dialogue.settle();
  }
  return dialogue;
}

test("what was to prepare the fence, and was skipped, is done again", () => {
  const dialogue = play([...run("SET nonsense"), ...group(INSERT)], group(INSERT));
  expect(dialogue.server.transactions.written).toBe(1);
});

test("INV-3: a read that is sent again because its Parse has failed has given no name a meaning yet", () => {
  const dialogue = play([parse("", "COMMIT"), sync()]);
  dialogue.client(Buffer.concat(group("SELECT a FROM t")));
  const inFunction = errorMessage(
    BACK.error,
    new Map(Object.entries({ S: "ERROR", V: "ERROR", C: "22012", W: "f()" })),
  );
  dialogue.deliver(Number.MAX_SAFE_INTEGER, () => Buffer.concat([inFunction, readyForQuery(IDLE)]));
  for (const sent of [
    [parse("m", "COMMIT AND CHAIN"), sync()],
    [parse("m", "SELECT 1"), sync()], // refused: there is an m
    [query("BEGIN; INSERT INTO t VALUES (1)")],
    [bind("", "m"), execute(""), ...run("UPDATE t SET a = 1"), sync()],
  ]) {
    dialogue.settle();
    dialogue.client(Buffer.concat(sent));
  }
  dialogue.settle();
  expect(heard(dialogue)).toContain("C42P05");
  expect(dialogue.server.transactions.unfenced).toEqual([]);
  expect(dialogue.server.transactions.written).toBe(2);
});

test("what ends the server session is told, when it has come in the middle of a function that a bare read calls, too", () => {
  const dialogue = new HostileDialogue();
  dialogue.client(query("SELECT a FROM t"));
  const timedOut = new Map(Object.entries({ S: "FATAL", V: "FATAL", C: "25P04", W: "f()" }));
  dialogue.deliver(Number.MAX_SAFE_INTEGER, () => errorMessage(BACK.error, timedOut));
  dialogue.session.serverClosed();
  dialogue.settle();
  expect(heard(dialogue)).toContain("C25P04");
});

test.each([
  ["an error", BACK.error],
  ["a notice", BACK.notice],
])("the words of %s stay as they are, whatever the client's encoding, when its position is moved", (_what, type) => {
  // "é" as LATIN1 has it.
  const said = (position: string): Buffer =>
    message(type, Buffer.concat([Buffer.from([0x4d, 0xe9, 0]), cstring(`P${position}`), Buffer.alloc(1)]));
  const setup = new Setup().client(query("SELECT f(b)"));
  setup.server(...entered, said(String(PREFIX.length + 10)));
  expect(setup.toClient).toEqual([said("10")]);
});

describe("a COPY whose end was refused", () => {
  function refused(code: string): string {
    const dialogue = play([...run("COPY t FROM STDIN")]);
    dialogue.permit = "unconfirmed";
    dialogue.client(Buffer.concat([copyData(Buffer.from("1\n")), copyDone(), sync()]));
    const error = errorBytes({ severity: "ERROR", code, message: "modelled" });
    dialogue.deliver(Number.MAX_SAFE_INTEGER, () => Buffer.concat([error, readyForQuery(IDLE)]));
    return heard(dialogue);
  }

  test("is told in the words of the refusal", () => {
    expect(refused("57014")).toContain("CLF002");
  });

  test("INV-10: is told in the server's words if it had failed by itself", () => {
    expect(refused("22P02")).toContain("C22P02");
  });
});
