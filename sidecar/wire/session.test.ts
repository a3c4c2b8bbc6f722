/** The session without sockets: bytes in, bytes out, ends told as they are. */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { bracketSql } from "../../fence/enter.ts";
import { run } from "../../testing/requests.ts";
import {
  answers,
  apart,
  apartAnswers,
  complete,
  entered,
  error,
  IDENTITY,
  PREFIX,
  READ_ONLY_DEFAULT,
  Setup,
  SUPERSEDED,
} from "../../testing/wiresetup.ts";
import { ProtocolError } from "./framer.ts";
import { BACK, bind, cstring, execute, FRONT, message, parse, query, readyForQuery, sync } from "./messages.ts";
import type { Verdict } from "./verdict.ts";

/** In a block that has entered. */
function inBlock(): Setup {
  const setup = new Setup();
  setup.client(query("BEGIN")).server(complete("BEGIN"), readyForQuery(0x54));
  setup.client(query("INSERT")).server(...entered, complete("INSERT 0 1"), readyForQuery(0x54));
  expect(setup.sent()).toEqual(["BEGIN", `${PREFIX}INSERT`]);
  expect(setup.heard()).toEqual(["C", "Z", "C", "Z"]);
  return setup;
}

describe("Session", () => {
  test("a read-only default that an unfinished group has set is told with that group's ReadyForQuery", () => {
    const setup = new Setup().client(parse("s", "SELECT 1"), sync());
    setup.client(parse("", "SET default_transaction_read_only = on"), bind("", ""), execute(""));
    setup.server(...answers("1"), readyForQuery(0x49));
    expect(setup.heard()).toEqual(["1", "Z"]);
    setup
      .server(...answers("12"), complete("SET"))
      .client(sync())
      .server(readyForQuery(0x49));
    expect(setup.heard()).toEqual(["1", "2", "C", "S", "Z"]);
  });

  test("swallows exactly the fence's own answers", () => {
    const setup = new Setup().client(query("INSERT"));
    expect(setup.sent()).toEqual([`${PREFIX}INSERT`]);
    setup.server(...entered, complete("INSERT 0 1"), readyForQuery(0x49));
    expect(setup.heard()).toEqual(["C", "Z"]);
  });

  test("ends rather than swallow an answer that is not the fence's", () => {
    const setup = new Setup().client(query("INSERT"));
    expect(() => setup.server(complete("INSERT 0 1"))).toThrow(ProtocolError);
  });

  test("sends a second simple query only when the first was answered", () => {
    const setup = new Setup().client(query("INSERT 1"), query("INSERT 2"));
    expect(setup.sent()).toEqual([`${PREFIX}INSERT 1`]);
    expect(setup.session.clientHeld).toBe(true);
    setup.server(...entered, complete("INSERT 0 1"), readyForQuery(0x49));
    expect(setup.sent()).toEqual([`${PREFIX}INSERT 2`]);
    expect(setup.session.clientHeld).toBe(false);
  });

  test("pipelines plain groups, each with a fence of its own, and waits behind a COMMIT", () => {
    const plain = [parse("", "INSERT"), bind("", ""), execute(""), sync()];
    const setup = new Setup().client(...plain);
    expect(setup.sent().join("")).toBe("CPBECPCPBEPBES");
    setup.server(...answers("312"), complete("SET"));
    setup.server(...answers("31312"), complete("SELECT 0"));
    setup.server(...answers("12"), complete("INSERT 0 1"), readyForQuery(0x49));
    expect(setup.heard()).toEqual(["1", "2", "C", "Z"]);
    setup.client(...plain, ...plain);
    expect(setup.sent().join("")).toBe("BEBEPBESBEBEPBES");
    setup.client(parse("", "COMMIT"), bind("", ""), execute(""), sync(), ...plain);
    expect(setup.sent().join("")).toBe("PBES");
    expect(setup.session.clientHeld).toBe(true);
  });

  test("INV-10: the connection lost with a COMMIT in flight is an unknown outcome", () => {
    const setup = inBlock().client(query("COMMIT"));
    setup.session.serverClosed();
    setup.judge({ kind: "ours" });
    expect(setup.heard()).toEqual(["E 08007"]);
    expect(setup.ended).toBe(true);
  });

  test("INV-10: … also when the fence is another's by then", () => {
    const setup = inBlock().client(query("COMMIT")).server(error("FATAL", "57P01")).judge(SUPERSEDED);
    expect(setup.heard()).toEqual(["E 08007"]);
  });

  test("INV-10: an answer that has come stands, whatever follows", () => {
    const setup = inBlock()
      .client(query("COMMIT"))
      .server(complete("COMMIT"), readyForQuery(0x49), error("FATAL", "57P01"));
    setup.judge(SUPERSEDED);
    expect(setup.heard()).toEqual(["C", "Z", "E LF001"]);
  });

  test("an autocommit statement that the server ends in our own enter has not run", () => {
    const setup = new Setup()
      .client(query("INSERT"))
      .server(complete("SET"), error("FATAL", "57P01"))
      .judge(SUPERSEDED);
    expect(setup.heard()).toEqual(["E LF001"]);
  });

  test("INV-10: … but without the server's last word that is not known", () => {
    const setup = new Setup().client(query("INSERT"));
    setup.session.serverClosed();
    setup.judge(SUPERSEDED);
    expect(setup.heard()).toEqual(["E 08007"]);
  });

  test("INV-10: … and a pooler's word about a server that is gone is not the server's last", () => {
    for (const verdict of [SUPERSEDED, { kind: "ours" } as const]) {
      const setup = new Setup().client(query("INSERT"));
      setup.server(complete("SET"), error("FATAL", "08P01")).judge(verdict);
      expect(setup.heard()).toEqual(["E 08007"]);
    }
  });

  test("a session idle in a block gets the reason at its next message, not before", () => {
    const setup = inBlock().server(error("FATAL", "57P01")).judge(SUPERSEDED);
    expect(setup.heard()).toEqual([]);
    expect(setup.serverClosed).toBe(true);
    setup.client(query("COMMIT"));
    expect(setup.heard()).toEqual(["E LF001"]);
    expect(setup.ended).toBe(true);
    expect(setup.sent()).toEqual([]);
    expect(setup.counters.read().refusedLost).toBe(1);
  });

  test("… and a farewell needs no answer", () => {
    const setup = inBlock().server(error("FATAL", "57P01")).judge(SUPERSEDED);
    setup.client(message(FRONT.terminate, Buffer.alloc(0)));
    expect(setup.heard()).toEqual([]);
    expect(setup.counters.read().refusedLost).toBe(0);
  });

  test("while the fence row is read nothing of the client is sent and nothing of the server told", () => {
    const setup = new Setup()
      .client(query("INSERT"))
      .server(complete("SET"), error("ERROR", "42501"), readyForQuery(0x49));
    setup.client(query("INSERT 2"));
    expect(setup.sent()).toEqual([`${PREFIX}INSERT`]);
    expect(setup.heard()).toEqual([]);
    setup.judge({ kind: "ours" });
    expect(setup.heard()).toEqual(["E 42501", "Z"]);
    expect(setup.sent()).toEqual([`${PREFIX}INSERT 2`]);
  });

  test("… and a server that goes meanwhile does not leave a session that nobody answers", () => {
    const setup = new Setup().client(query("INSERT"));
    setup.server(complete("SET"), error("ERROR", "42501"), readyForQuery(0x49));
    setup.session.serverClosed();
    setup.judge({ kind: "unknown", why: "gone" });
    expect(setup.heard()).toEqual(["E 42501", "Z", "E 08006"]);
    expect(setup.ended).toBe(true);
  });

  test.each<[string, Verdict]>([
    ["LF001", SUPERSEDED],
    ["LF003", { kind: "incarnation", recorded: "1/2", present: "3/4" }],
  ])("42501 of the enter is %s when the fence row says so", (code, verdict) => {
    const setup = new Setup().client(query("INSERT")).server(complete("SET"), error("ERROR", "42501")).judge(verdict);
    expect(setup.heard()).toEqual([`E ${code}`]);
    expect(setup.ended).toBe(true);
  });

  test("a syntax error of the client's text, which comes before the fence runs, is its own", () => {
    const setup = new Setup().client(query("INSRT")).server(error("ERROR", "42601"), readyForQuery(0x49));
    expect(setup.heard()).toEqual(["E 42601", "Z"]);
  });

  test("INV-5: an unconfirmed permit lets ROLLBACK and empty queries through, and nothing else", () => {
    const setup = inBlock();
    setup.permit = "unconfirmed";
    setup.client(query("INSERT"));
    expect(setup.sent()[0]).toMatch(/^SELECT fence\.refuse\('LF002'/);
    setup.server(message(BACK.rowDescription, Buffer.alloc(2)), error("ERROR", "LF002"), readyForQuery(0x45));
    expect(setup.heard()).toEqual(["E LF002", "Z"]);
    setup.client(query("-- nothing")).server(message(BACK.emptyQuery, Buffer.alloc(0)), readyForQuery(0x45));
    setup.client(query("ROLLBACK")).server(complete("ROLLBACK"), readyForQuery(0x49));
    expect(setup.sent()).toEqual(["-- nothing", "ROLLBACK"]);
    expect(setup.counters.read().refusedUnconfirmed).toBe(1);
  });

  test.each(["ROLLBACK; INSERT", "ROLLBACK TO a; INSERT; COMMIT"])("INV-5: … nor what stands behind it: %s", (text) => {
    const setup = inBlock();
    setup.permit = "unconfirmed";
    setup.client(query(text));
    expect(setup.sent()).toEqual([expect.stringMatching(/^SELECT fence\.refuse\('LF002'/)]);
  });

  test("INV-10: the COMMIT of a block that a refusal failed is refused again, also under a valid permit", () => {
    const setup = inBlock();
    setup.permit = "unconfirmed";
    setup.client(query("INSERT")).server(error("ERROR", "LF002"), readyForQuery(0x45));
    setup.permit = "valid";
    setup.heard();
    setup.client(query("COMMIT")).server(error("ERROR", "25P02"), readyForQuery(0x45));
    expect(setup.heard()).toEqual(["E LF002", "Z"]);
  });

  test.each([
    ["a simple query", query("INSERT")],
    ["a function call", message(FRONT.functionCall, Buffer.alloc(10))],
  ])("INV-10: … also when the refused one was %s in an unfinished group", (_what, request) => {
    const setup = inBlock().client(...run("SELECT f()"));
    setup.permit = "unconfirmed";
    setup.client(request).server(...answers("12"), complete("SELECT 1"));
    setup.server(error("ERROR", "LF002"), readyForQuery(0x45));
    setup.permit = "valid";
    setup.heard();
    setup.sent();
    setup.client(query("COMMIT"));
    expect(setup.sent()).toEqual([expect.stringMatching(/^SELECT fence\.refuse\('LF002'/)]);
  });

  test.each(["ROLLBACK; INSERT", "ABORT; ROLLBACK; SET a = b; INSERT"])(
    "INV-10: what stands behind a ROLLBACK in one message commits at its end, without an answer nobody knows: %s",
    (text) => {
      const setup = inBlock().client(query(text));
      setup.session.serverClosed();
      setup.judge({ kind: "ours" });
      expect(setup.heard()).toEqual(["E 08007"]);
    },
  );

  test("a COMMIT that meets an unconfirmed permit and then the session's end is one refusal, not two", () => {
    const setup = inBlock();
    setup.permit = "unconfirmed";
    setup.client(query("COMMIT")).server(error("FATAL", "57P01")).judge(SUPERSEDED);
    expect(setup.heard()).toEqual(["E LF001"]);
    expect(setup.counters.read()).toMatchObject({ refusedLost: 1, refusedUnconfirmed: 0 });
  });

  test("a cancel under way holds what comes next", () => {
    const setup = new Setup().client(query("INSERT"));
    setup.session.setCancelling(true);
    setup.server(...entered, complete("INSERT 0 1"), readyForQuery(0x49)).client(query("INSERT 2"));
    setup.sent();
    expect(setup.session.clientHeld).toBe(true);
    setup.session.setCancelling(false);
    expect(setup.sent()).toEqual([`${PREFIX}INSERT 2`]);
  });

  test("… and so does the slower of two", () => {
    const setup = new Setup().client(query("INSERT"));
    setup.session.setCancelling(true);
    setup.session.setCancelling(true);
    setup.server(...entered, complete("INSERT 0 1"), readyForQuery(0x49)).client(query("INSERT 2"));
    setup.sent();
    setup.session.setCancelling(false);
    expect(setup.sent()).toEqual([]);
    setup.session.setCancelling(false);
    expect(setup.sent()).toEqual([`${PREFIX}INSERT 2`]);
  });

  test("a name in doubt waits for what is in flight, which may have opened the read-only default, and goes bare then", () => {
    const write = [parse("", "INSERT"), bind("", ""), execute(""), sync()];
    const told = [...answers("12"), complete("INSERT 0 1"), readyForQuery(0x49)];
    const setup = new Setup().client(parse("c", "COMMIT"), sync()).server(...answers("1"), readyForQuery(0x49));
    setup
      .client(...write)
      .server(...answers("312"), complete("SET"), ...answers("31312"), complete("SELECT 0"), ...told);
    setup.client(...write, bind("", "c"), execute(""), sync());
    setup.sent();
    expect(setup.session.clientHeld).toBe(true);
    setup.server(...answers("2"), complete("SET"), ...answers("2"), complete("SELECT 0"), ...told);
    expect(setup.sent().join("")).toBe("BES");
  });

  test("the read-only default that a client opened is closed again before its next message", () => {
    const opened = message(BACK.parameterStatus, cstring("default_transaction_read_only\0off"));
    const setup = new Setup().client(query("SET default_transaction_read_only = off"), query("INSERT"));
    setup.server(complete("SET"), opened, readyForQuery(0x49));
    expect(setup.sent()).toEqual(["SET default_transaction_read_only = off", ...apart(READ_ONLY_DEFAULT)]);
    expect(setup.heard()).toEqual(["C", "Z"]);
    setup.server(...apartAnswers("SET"));
    expect(setup.heard()).toEqual([]);
    expect(setup.sent()).toEqual([`${PREFIX}INSERT`]);
  });

  test("a late cancel that hits the closing of a bracket does not leave it open", () => {
    const opened = message(BACK.parameterStatus, cstring("default_transaction_read_only\0off"));
    const shut = message(BACK.parameterStatus, cstring("default_transaction_read_only\0on"));
    const setup = new Setup().client(query("VACUUM"));
    const { lock, check, unlock } = bracketSql(1, IDENTITY);
    expect(setup.sent()).toEqual([...apart(lock), ...apart(check, "SET default_transaction_read_only=off")]);
    setup.server(...apartAnswers("SELECT 1"));
    expect(setup.sent()).toEqual([]);
    setup.server(opened, ...apartAnswers("SELECT 1", "SET"));
    expect(setup.sent()).toEqual(["VACUUM", ...apart(READ_ONLY_DEFAULT, unlock)]);
    expect(setup.session.cancellable).toBe(true);
    setup.server(complete("VACUUM"), readyForQuery(0x49));
    expect(setup.session.cancellable).toBe(false);
    setup.server(...answers("312"), error("ERROR", "57014"), readyForQuery(0x49));
    expect(setup.sent()).toEqual(apart(READ_ONLY_DEFAULT, unlock));
    setup.server(shut, ...apartAnswers("SET", "SELECT 1"));
    expect(setup.heard()).toEqual(["C", "Z"]);
    setup.client(query("INSERT"));
    expect(setup.sent()).toEqual([`${PREFIX}INSERT`]);
  });

  test.each([[true], [false]])(
    "INV-10: … and a server that goes while a bracket closes leaves no outcome unknown (with a last word: %s)",
    (fatal) => {
      const setup = new Setup().client(query("VACUUM")).server(...apartAnswers("SELECT 1"));
      setup.server(...apartAnswers("SELECT 1", "SET"), complete("VACUUM"), readyForQuery(0x49));
      expect(setup.heard()).toEqual(["C", "Z"]);
      if (fatal) setup.server(error("FATAL", "57P01"));
      else setup.session.serverClosed();
      setup.judge({ kind: "ours" });
      expect(setup.heard()).toEqual([fatal ? "E 57P01" : "E 08006"]);
    },
  );

  test("hostile bytes from either side end in ProtocolError or in nothing, never in another failure", () => {
    const legal = [
      query("BEGIN; COMMIT"),
      parse("s", "COMMIT"),
      bind("", "s"),
      execute(""),
      sync(),
      ...entered,
      readyForQuery(0x49),
      error("ERROR", "42501"),
    ];
    fc.assert(
      fc.property(
        fc.array(
          fc.oneof(
            fc.constantFrom(...legal),
            fc.uint8Array({ maxLength: 12 }).map((bytes) => Buffer.from(bytes)),
          ),
          { maxLength: 12 },
        ),
        fc.array(fc.tuple(fc.nat(), fc.nat(255)), { maxLength: 6 }),
        fc.boolean(),
        (parts, changes, fromClient) => {
          const bytes = Buffer.concat(parts);
          for (const [at, value] of changes) if (bytes.length > 0) bytes[at % bytes.length] = value;
          const setup = new Setup().client(query("INSERT"));
          try {
            if (fromClient) setup.client(bytes);
            else setup.server(bytes);
          } catch (caught) {
            expect(caught).toBeInstanceOf(ProtocolError);
          }
        },
      ),
      { numRuns: 20_000 },
    );
  });
});
