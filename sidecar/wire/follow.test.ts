/** What is believed of a statement until it was answered, where a wrong belief would be told or would fail. */
import { describe, expect, test } from "vitest";
import { HostileDialogue } from "../../testing/hostiledialogue.ts";
import { group, run } from "../../testing/requests.ts";
import { bind, copyData, copyDone, execute, parse, query, sync } from "./messages.ts";

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

test("a BEGIN that an error has skipped has begun nothing for the next group", () => {
  const dialogue = play(group(INSERT), [...group("SELECT 1/0", "BEGIN"), ...group(INSERT)]);
  expect(dialogue.server.transactions.written).toBe(2);
});

test.each(["DEALLOCATE ALL", "DEALLOCATE _fencedjob_e_x"])("behind %s the fence is prepared anew", (sql) => {
  const dialogue = play(group(INSERT), [...run(sql), ...group("COMMIT", INSERT)], [query(sql)], group(INSERT));
  expect(dialogue.server.transactions.written).toBe(3);
});

test("INV-5: what a name may stand for is not committed without a permit", () => {
  const dialogue = play([parse("s", "SHOW datestyle"), sync()], [bind("", "s"), execute("")]);
  dialogue.permit = "unconfirmed";
  dialogue.client(sync());
  dialogue.settle();
  expect(heard(dialogue)).toContain("CLF002");
});

test("INV-5: a portal that was bound by a group as a whole is not what it was", () => {
  const savepoint = [query("BEGIN"), query("SAVEPOINT a")];
  const dialogue = play(...savepoint.map((bytes) => [bytes]), group("ROLLBACK TO a"), group(INSERT));
  dialogue.permit = "unconfirmed";
  dialogue.client(Buffer.concat([execute(""), sync()]));
  dialogue.settle();
  expect(heard(dialogue)).toContain("CLF002");
});

describe("INV-10: without its answer the outcome is unknown", () => {
  test.each<[string, Buffer[][], Buffer[]]>([
    ["of a CALL", [], group("CALL p()")],
    ["of an EXECUTE that may be a COMMIT", [[parse("c", "COMMIT"), sync()]], [...run(INSERT), ...run("EXECUTE c")]],
    ["of a COMMIT in an unfinished group", [], [...run(INSERT), ...run("COMMIT")]],
    ["of a COPY", [], [...run("COPY t FROM STDIN"), copyData(Buffer.from("1\n")), copyDone(), sync()]],
  ])("%s", (_what, before, sent) => {
    const dialogue = play(group("SET datestyle = 'ISO'"), ...before);
    dialogue.client(Buffer.concat(sent));
    // The bracket opens.
    if (dialogue.session.clientHeld) dialogue.deliver(Number.MAX_SAFE_INTEGER);
    dialogue.session.serverClosed();
    dialogue.judge();
    expect(heard(dialogue)).toContain("C08007");
  });
});
