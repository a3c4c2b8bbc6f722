/**
 * One small test for each line that keeps a rare sequence of messages safe, without sockets or servers: what is sent, and
 * in which order. The attacks themselves are in evasion.pg.test.ts.
 */
import { expect, test } from "vitest";
import { bracketSql } from "../../fence/enter.ts";
import { run } from "../../testing/requests.ts";
import {
  answers,
  apart,
  apartAnswers,
  complete,
  error,
  IDENTITY,
  PREFIX,
  READ_ONLY_DEFAULT,
  Setup,
} from "../../testing/wiresetup.ts";
import {
  BACK,
  bind,
  copyData,
  copyDone,
  cstring,
  execute,
  FRONT,
  message,
  parameterStatus,
  parse,
  query,
  readyForQuery,
  sync,
} from "./messages.ts";

const IDLE = readyForQuery(0x49);
const IN_BLOCK = readyForQuery(0x54);
const COPY_IN = message(BACK.copyIn, Buffer.alloc(3));
/** The names in the Binds that were sent. */
const bound = (setup: Setup): string[] =>
  [
    ...setup
      .sentBytes()
      .toString("latin1")
      .matchAll(/B\0\0\0[\s\S][^\0]*\0([^\0]*)\0/g),
  ].map(([, name]) => name ?? "");

/** In a block that has begun, and has entered if it says so. */
function inBlock(begin: string, entered = false): Setup {
  const setup = new Setup().client(query(begin)).server(complete("BEGIN"), IN_BLOCK);
  if (entered) {
    setup.client(query("INSERT")).server(complete("SET"), complete("LOCK TABLE"), complete("INSERT 0 1"), IN_BLOCK);
  }
  setup.sentBytes();
  setup.heard();
  return setup;
}

test("INV-3: a name in doubt is guarded when the seat belt turns out to be open", () => {
  const setup = new Setup().client(parse("s", "BEGIN"), sync()).server(...answers("1"), IDLE);
  setup.server(parameterStatus("default_transaction_read_only", "off"));
  setup.sentBytes();
  setup.client(bind("", "s"), execute(""), sync());
  expect(bound(setup)).toEqual(["_fencedjob_r_x", "s", "_fencedjob_r_x"]);
});

test.each([
  ["a simple query", query("INSERT")],
  ["a function call", message(FRONT.functionCall, Buffer.alloc(10))],
])("INV-3: behind what may have ended the block, %s in the same group is refused", (_what, request) => {
  const setup = inBlock("BEGIN", true).client(...run("EXECUTE s"), request);
  expect(setup.heard()).toEqual(["E LF020"]);
  expect(setup.ended).toBe(true);
  expect(setup.sent()).not.toContain("INSERT");
});

test("INV-3: behind what may have ended the block, entering works inside and outside of one", () => {
  // LOCK is refused outside of a block, and the unnamed portal may be the client's.
  const setup = inBlock("BEGIN", true).client(...run("EXECUTE s"), ...run("INSERT"), sync());
  expect(bound(setup)).toEqual(["", "_fencedjob_w_x", "_fencedjob_e_x", ""]);
});

test("entering leaves an unnamed portal of the client alone: of its group, and of a block that it may still be in", () => {
  const inGroup = new Setup().client(parse("", "SHOW a"), bind("", ""), parse("x", "INSERT"), execute(""), sync());
  expect(inGroup.sent().join("")).toBe("PBCPBECCPCPBECPES");
  const setup = inBlock("BEGIN", true).client(parse("s", "COMMIT"), bind("p", "s"), sync());
  setup.server(...answers("12"), IN_BLOCK);
  setup.sentBytes();
  setup.client(execute("p"), parse("x", "INSERT"), execute(""), sync());
  expect(setup.sent().join("")).toBe("ECPBECCPCPBECPES");
});

test("… but takes no row lock in a transaction that is read-only", () => {
  const setup = inBlock("BEGIN READ ONLY").client(...run("EXECUTE s"), ...run("SELECT"), sync());
  expect(bound(setup)).toEqual(["_fencedjob_l_x", "", "_fencedjob_l_x", ""]);
});

test("INV-3: outside of a block a read-only transaction is made read-only again behind the gate", () => {
  const setup = new Setup({ readOnlyDefault: true }).client(...run("INSERT"), sync());
  expect(bound(setup)).toEqual(["_fencedjob_w_x", "_fencedjob_e_x", "_fencedjob_r_x", ""]);
});

test("in a block it enters by the statement that it has prepared, also when the other one was", () => {
  const setup = new Setup().client(...run("INSERT"), sync());
  setup.server(...answers("312"), complete("SET"), ...answers("31312"), complete("SELECT 0"), ...answers("12"));
  setup.server(complete("INSERT 0 1"), IDLE, complete("BEGIN")).client(query("BEGIN")).server(IN_BLOCK);
  setup.sent();
  setup.client(...run("INSERT"), sync());
  expect(setup.sent().join("")).toBe("CPBECCPBECPBES");
});

test("a Sync that the server ignores, in the COPY of a simple query, is not sent", () => {
  const setup = new Setup().client(query("COPY t FROM STDIN"));
  setup.server(complete("SET"), complete("LOCK TABLE"), COPY_IN);
  setup.client(copyData(Buffer.from("1\n")), sync(), copyDone());
  expect(setup.sent()).toEqual([`${PREFIX}COPY t FROM STDIN`, "d", "c"]);
  setup.server(complete("COPY 1"), IDLE);
  expect(setup.heard()).toEqual(["G", "C", "Z"]);
  expect(setup.session.clientHeld).toBe(false);
});

test("a Sync behind a simple query waits until it is known whether that is a COPY", () => {
  const setup = new Setup().client(query("INSERT"), sync());
  expect(setup.sent()).toEqual([`${PREFIX}INSERT`]);
  setup.server(complete("SET"), complete("LOCK TABLE"), complete("INSERT 0 1"), IDLE);
  expect(setup.sent()).toEqual(["S"]);
});

test("a group waits for a bracket in front of it: what runs there can change how it is read", () => {
  const setup = new Setup().client(query("DO $$ … $$"), ...run("INSERT"), sync());
  setup.server(...apartAnswers("SELECT 1"), ...apartAnswers("SELECT 1", "SET"));
  const { lock, check, unlock } = bracketSql(1, IDENTITY);
  expect(setup.sent()).toEqual([
    ...apart(lock),
    ...apart(check, "SET default_transaction_read_only=off"),
    "DO $$ … $$",
    ...apart(READ_ONLY_DEFAULT, unlock),
  ]);
  setup.server(complete("DO"), IDLE, ...apartAnswers("SET", "SELECT 1"));
  expect(setup.sent().join("")).toMatch(/PBES$/);
});

test("why a bracket did not open is what failed first, and no notice of the proxy's own statements is told", () => {
  const setup = new Setup().client(query("VACUUM"));
  setup.server(...answers("312"), message(BACK.notice, cstring("")), error("ERROR", "57014"), IDLE);
  setup.server(...answers("312"), error("ERROR", "53200"), IDLE, ...apartAnswers("SET", "SELECT 1"));
  expect(setup.heard()).toEqual(["E 57014", "Z"]);
});

const REFUSED = [error("ERROR", "LF002"), IDLE];

test("a bracket that opens when the permit has just ended is closed behind the refusal", () => {
  const setup = new Setup().client(query("VACUUM")).server(...apartAnswers("SELECT 1"));
  setup.sent();
  setup.permit = "unconfirmed";
  setup.server(parameterStatus("default_transaction_read_only", "off"), ...apartAnswers("SELECT 1", "SET"));
  const { unlock } = bracketSql(1, IDENTITY);
  expect(setup.sent()).toEqual([expect.stringContaining("LF002"), ...apart(READ_ONLY_DEFAULT, unlock)]);
  const shut = parameterStatus("default_transaction_read_only", "on");
  setup.server(...REFUSED, shut, ...apartAnswers("SET", "SELECT 1"));
  expect(setup.heard()).toEqual(["E LF002", "Z"]);
  setup.permit = "valid";
  setup.client(...run("INSERT"), sync());
  expect(setup.sent().join("")).toMatch(/^CPBECPCPBEPBES$/);
});

test.each([
  ["a simple query", [query("VACUUM")]],
  ["a group", [...run("VACUUM"), sync()]],
])("why a bracket did not open is not told to a later statement, when the permit had ended, too: %s", (_what, sent) => {
  const setup = new Setup().client(...sent).server(...apartAnswers("SELECT 1"));
  setup.permit = "unconfirmed";
  setup.server(...answers("312"), error("ERROR", "57014"), IDLE, ...apartAnswers("SET", "SELECT 1"));
  setup.server(...REFUSED);
  expect(setup.heard()).toEqual(["E LF002", "Z"]);
  setup.sent();
  setup.permit = "valid";
  setup.client(...sent);
  expect(setup.heard()).toEqual([]);
  expect(setup.sent()).toContain(`P ${bracketSql(1, IDENTITY).lock}`);
});
