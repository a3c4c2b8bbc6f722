/** What a name stands for, where only one order of events tells. */
import { describe, expect, test } from "vitest";
import { HostileDialogue } from "../../testing/hostiledialogue.ts";
import { group, run } from "../../testing/requests.ts";
import { bind, closeStatement, execute, parse, query, sync } from "./messages.ts";

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

test.each(["DEALLOCATE ALL", "DISCARD ALL"])("INV-3: %s leaves an unnamed COMMIT what it is", (sql) => {
  const { server } = play(
    [parse("", "COMMIT"), parse("d", sql), sync()],
    [bind("", "d"), execute(""), sync()],
    [...run("BEGIN", "b"), sync()],
    [...run("INSERT INTO t VALUES (1)", "i"), sync()],
    [
      ...[bind("", ""), execute("")],
      ...run("SET transaction_read_only = off", "s"),
      ...run("UPDATE t SET a = 2", "u"),
      sync(),
    ],
  );
  expect(server.transactions.unfenced).toEqual([]);
  expect(server.transactions.written).toBe(2);
});

test.each([
  ["alone", []],
  ["beside others", [parse("other", "COMMIT"), sync()]],
])("INV-3: a name that cannot be compared, %s, may be a COMMIT", (_what, others) => {
  const { server } = play(
    others,
    [parse("é", "COMMIT"), sync()],
    [query("BEGIN; INSERT INTO t VALUES (1)")],
    [
      ...[bind("", "é"), execute("")],
      ...run("SET transaction_read_only = off", "s"),
      ...run("UPDATE t SET a = 2", "u"),
      sync(),
    ],
  );
  expect(server.transactions.unfenced).toEqual([]);
});

describe("many names", () => {
  const MANY = 10_001;
  const each = (make: (name: string) => Buffer[]): Buffer[] =>
    Array.from({ length: MANY }, (_, i) => make(`n${i}`)).flat();

  test("of portals in as many transactions are not too many", () => {
    const shows = each((name) => [bind(name, "s"), execute(name), sync()]);
    const dialogue = play([parse("s", "SHOW datestyle"), sync()]);
    for (const bytes of shows) {
      dialogue.client(bytes);
      if (bytes.equals(sync())) dialogue.settle();
    }
    expect(dialogue.ended).toBe(false);
  });

  test("are forgotten with DEALLOCATE ALL", () => {
    const names = each((name) => [parse(name, "COMMIT")]).slice(2);
    const dialogue = play([...names, sync()], [query("DEALLOCATE ALL")], [...names, sync()]);
    expect(dialogue.ended).toBe(false);
  });

  test("can be closed when there are no more than may be", () => {
    const names = each((name) => [parse(name, "COMMIT")]);
    const dialogue = play(
      [...names.slice(1), sync()],
      [closeStatement("n1"), sync()],
      group("INSERT INTO t VALUES (1)"),
    );
    expect(dialogue.ended).toBe(false);
    expect(heard(dialogue)).toContain("INSERT 0 1");
  });
});

test("INV-10: a COMMIT is not told of a refusal that a ROLLBACK TO has undone", () => {
  const dialogue = play(
    [query("BEGIN; SAVEPOINT a")],
    [query("PREPARE TRANSACTION 'x'")],
    [query("ROLLBACK TO a")],
    [query("SELECT 1/0")],
    [query("COMMIT")],
  );
  expect(heard(dialogue).split("CLF021")).toHaveLength(2);
  expect(heard(dialogue).endsWith("ROLLBACK\0Z\0\0\0\u0005I")).toBe(true);
});
