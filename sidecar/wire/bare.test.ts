/** Reads that go without the fence: when they do, when they do not, and what the client hears if one wants to write. */
import { describe, expect, test } from "vitest";
import { group } from "../../testing/requests.ts";
import { answers, complete, entered, error, PREFIX, Setup, SUPERSEDED } from "../../testing/wiresetup.ts";
import { BARE_BYTES_MAX } from "./bare.ts";
import {
  BACK,
  bind,
  closeStatement,
  describePortal,
  describeStatement,
  errorMessage,
  execute,
  FRONT,
  flush,
  message,
  parameterStatus,
  parse,
  query,
  readyForQuery,
  sync,
} from "./messages.ts";

const READ = "SELECT * FROM v";
const FENCED = `${PREFIX}${READ}`;
/** Makes writable and enters, the first time and later; then the client's own. */
const ENTERS_FIRST = "CPBECPCPBE";
const IDLE = readyForQuery(0x49);
const REFUSED = [error("ERROR", "25006"), IDLE];
/** As it comes from inside a function. */
const withContext = (code: string): Buffer =>
  errorMessage(BACK.error, new Map(Object.entries({ S: "ERROR", V: "ERROR", C: code, M: "m", W: "function f()" })));
const row = message(BACK.dataRow, Buffer.alloc(2));
const columns = message(BACK.rowDescription, Buffer.alloc(2));
const fenceAnswersLater = [...answers("2"), complete("SET"), ...answers("2"), complete("SELECT 0")];
const inFlight = (setup: Setup): Setup => {
  setup.client(...group("INSERT")).server(...fenceAnswers, ...answers("12"), complete("INSERT 0 1"), IDLE);
  return setup.client(...group("INSERT"));
};
const readNamed = (setup: Setup): Setup => setup.client(parse("s", READ), sync()).server(...answers("1"), IDLE);
/** What the server says to the fence in front of a group, the first time. */
const fenceAnswers = [...answers("312"), complete("SET"), ...answers("31312"), complete("SELECT 0")];

describe("a read outside of a block goes as it is", () => {
  test("simple", () => {
    const setup = new Setup().client(query(READ));
    expect(setup.sent()).toEqual([READ]);
    setup.server(columns, row, complete("SELECT 1"), IDLE);
    expect(setup.heard()).toEqual(["T", "D", "C", "Z"]);
  });

  test.each([
    ["of one group", [[parse("", READ), bind("", ""), describePortal(""), execute(""), sync()]], ["PBDES"]],
    [
      "described first",
      [
        [parse("", READ), describeStatement(""), sync()],
        [bind("", ""), execute(""), sync()],
      ],
      ["PDS", "BES"],
    ],
    [
      "under a name",
      [
        [parse("s", READ), sync()],
        [bind("p", "s"), execute("p"), sync()],
      ],
      ["PS", "BES"],
    ],
  ])("extended, %s", (_what, groups, want) => {
    const setup = new Setup();
    for (const [index, messages] of groups.entries()) {
      setup.client(...messages);
      expect(setup.sent().join("")).toBe(want[index]);
      const letters = (want[index] ?? "").replaceAll(/[PBD]/g, (c) => ({ P: "1", B: "2", D: "n" })[c] ?? "");
      for (const letter of letters)
        setup.server(...({ E: [complete("SELECT 0")], S: [IDLE] }[letter] ?? answers(letter)));
    }
    expect(setup.heard().join("")).toMatch(/C?Z$/);
    expect(setup.session.clientHeld).toBe(false);
  });

  test("what only prepares is not fenced, whatever it prepares, and other groups may follow at once", () => {
    const setup = new Setup().client(
      parse("s", "INSERT"),
      describeStatement("s"),
      sync(),
      parse("t", "INSERT"),
      sync(),
    );
    expect(setup.sent().join("")).toBe("PDSPS");
  });
});

test("in a block what only prepares enters, as it takes a snapshot, behind which no transaction is made writable", () => {
  const setup = new Setup().client(query("BEGIN")).server(complete("BEGIN"), readyForQuery(0x54));
  setup.sent();
  setup.client(parse("s", READ), sync());
  expect(setup.sent().join("")).toBe("CPBECCPBECPS");
});

describe("INV-3: a read is fenced at once", () => {
  test.each<[string, (setup: Setup) => Setup, Buffer[]]>([
    [
      "in a block",
      (setup) => setup.client(query("BEGIN")).server(complete("BEGIN"), readyForQuery(0x54)),
      [query(READ)],
    ],
    ["when something is in flight", inFlight, group(READ)],
    ["when it is one of a pipeline", (setup) => setup, [...group(READ), ...group(READ)]],
    ["when it is not alone in its group", (setup) => setup, [...group(READ).slice(0, 3), ...group(READ)]],
    ["when its group is not there as a whole", (setup) => setup, group(READ).slice(0, 3)],
    ["when its group has a Flush", (setup) => setup, [parse("", READ), flush(), bind("", ""), execute(""), sync()]],
    ["when it executes another portal", (setup) => setup, [parse("", READ), bind("p", ""), execute("c"), sync()]],
    ["when it binds another statement", (setup) => setup, [parse("", READ), bind("", "s"), execute(""), sync()]],
    ["when its name is not known as a read's", (setup) => setup, [bind("", "s"), execute(""), sync()]],
    ["when its group is too large", (setup) => setup, group(`${READ} -- ${"x".repeat(BARE_BYTES_MAX)}`)],
    ["when it binds twice", (setup) => setup, [parse("", READ), bind("", ""), ...group(READ).slice(1)]],
    ["when it executes twice", (setup) => setup, [...group(READ).slice(0, 3), execute(""), sync()]],
    ["when it binds and does not execute", (setup) => setup, [parse("", READ), bind("", ""), sync()]],
    ["when it parses behind its Bind", readNamed, [bind("", "s"), parse("", READ), execute(""), sync()]],
    ["when it is too large", (setup) => setup, [query(`${READ} -- ${"x".repeat(BARE_BYTES_MAX)}`)]],
    ["when it calls what is not known", (setup) => setup, [query("SELECT writes()")]],
  ])("%s", (_when, before, messages) => {
    const setup = before(new Setup());
    setup.sent();
    setup.client(...messages);
    expect(setup.sent().join("")).toMatch(/^(SET TRANSACTION READ WRITE|CPBE|BEBE)/);
  });

  test("when the seat belt is open, and while it closes it waits", () => {
    const setup = new Setup().client(query("SELECT set_config('default_transaction_read_only', 'off', false)"));
    setup.sent();
    setup.server(
      ...entered,
      columns,
      row,
      complete("SELECT 1"),
      parameterStatus("default_transaction_read_only", "off"),
    );
    setup.client(query(READ));
    expect(setup.sent()).toEqual([]);
    setup.server(IDLE).client();
    expect(setup.sent().at(-1)).toBe("S"); // the seat belt's own group
    expect(setup.session.clientHeld).toBe(true);
  });

  test("when a report of an open default comes by itself", () => {
    const setup = new Setup().server(parameterStatus("default_transaction_read_only", "off")).client(query(READ));
    expect(setup.sent()).toEqual([FENCED]);
  });

  test("a name that was prepared anew as something else is none any more", () => {
    const setup = new Setup().client(parse("s", READ), sync()).server(...answers("1"), IDLE);
    setup.client(closeStatement("s"), parse("s", "INSERT"), sync());
    setup.server(...answers("3"), ...fenceAnswers, ...answers("1"), IDLE);
    setup.sent();
    setup.client(bind("", "s"), execute(""), sync());
    expect(setup.sent().join("")).toBe("BEBEBES");
  });

  test("INV-5: … and it asks the permit", () => {
    const setup = new Setup();
    setup.permit = "unconfirmed";
    setup.client(query(READ));
    expect(setup.sent()[0]).toMatch(/^SELECT fence\.refuse\('LF002'/);
    setup.server(error("ERROR", "LF002"), IDLE).client(...group(READ));
    setup.server(...answers("12"), error("ERROR", "LF002"), IDLE);
    expect(setup.heard()).toEqual(["E LF002", "Z", "E LF002", "Z"]);
  });
});

describe("a read that wants to write is sent again, fenced, and the client hears of one run only", () => {
  test("simple; the next one like it is fenced at once", () => {
    const setup = new Setup().client(query(`${READ} WHERE a = 1`));
    setup.server(columns, ...REFUSED);
    expect(setup.heard()).toEqual([]);
    expect(setup.sent()).toEqual([`${READ} WHERE a = 1`, `${FENCED} WHERE a = 1`]);
    setup.server(...entered, columns, row, complete("SELECT 1"), IDLE);
    expect(setup.heard()).toEqual(["T", "D", "C", "Z"]);
    setup.client(query(`${READ} WHERE a = 25`));
    expect(setup.sent()).toEqual([`${FENCED} WHERE a = 25`]);
  });

  test("extended: its Parse was done, and is neither repeated nor hidden", () => {
    const setup = new Setup().client(parse("s", READ), describeStatement("s"), bind("", "s"), execute(""), sync());
    expect(setup.sent().join("")).toBe("PDBES");
    setup.server(...answers("1t"), columns, ...answers("2"), ...REFUSED);
    expect(setup.heard()).toEqual(["1"]);
    expect(setup.sent().join("")).toBe(`${ENTERS_FIRST}DBES`);
    setup.server(...fenceAnswers, ...answers("t"), columns, ...answers("2"), row, complete("SELECT 1"), IDLE);
    expect(setup.heard()).toEqual(["t", "T", "2", "D", "C", "Z"]);
    setup.client(bind("", "s"), execute(""), sync());
    expect(setup.sent().join("")).toBe("BEBEBES");
  });

  test("extended: the next text like it is fenced at once", () => {
    const setup = new Setup().client(...group(READ)).server(...answers("12"), ...REFUSED);
    setup.server(...fenceAnswers, ...answers("2"), complete("SELECT 0"), IDLE);
    setup.sent();
    setup.client(...group(READ));
    expect(setup.sent().join("")).toBe("BEBEPBES");
  });

  test("what its failed Bind would have meant is forgotten, and does not stand for a later name", () => {
    const setup = new Setup().client(...group("COMMIT")).server(...answers("12"), complete("COMMIT"), IDLE);
    setup.client(...group(READ)).server(...answers("1"), ...REFUSED);
    setup.server(...fenceAnswers, ...answers("2"), complete("SELECT 0"), IDLE);
    setup.client(parse("n", "COMMIT"), sync()).server(...answers("1"), IDLE);
    setup.client(...group("INSERT")).server(...fenceAnswersLater, error("ERROR", "42601"), IDLE);
    setup.sent();
    setup.client(bind("", "n"), execute(""), parse("", "INSERT"), bind("", ""), execute(""), sync());
    // COMMIT goes bare, and what follows it enters.
    expect(setup.sent().join("")).toBe("BEBECBECPBES");
  });

  test("a notice of the first run is not told twice", () => {
    const setup = new Setup().client(query(READ)).server(message(BACK.notice, Buffer.alloc(1)), ...REFUSED);
    setup.server(...entered, message(BACK.notice, Buffer.alloc(1)), complete("SELECT 0"), IDLE);
    expect(setup.heard()).toEqual(["N", "C", "Z"]);
  });

  test("what the client sends meanwhile comes behind it", () => {
    const setup = new Setup()
      .client(query(READ))
      .client(query("INSERT"))
      .server(...REFUSED);
    expect(setup.sent()).toEqual([READ, FENCED]);
    setup.server(...entered, complete("SELECT 0"), IDLE);
    expect(setup.sent()).toEqual([`${PREFIX}INSERT`]);
  });

  test("… its Sync and its farewell, too", () => {
    for (const later of [sync(), message(FRONT.terminate, Buffer.alloc(0))]) {
      const setup = new Setup().client(...group(READ)).client(later);
      expect(setup.session.clientHeld).toBe(true);
      setup.server(...answers("12"), ...REFUSED);
      expect(setup.sent().join("")).toBe(`PBES${ENTERS_FIRST}BES`);
      setup.server(...fenceAnswers, ...answers("2"), complete("SELECT 0"), IDLE);
      expect(setup.sent()).toEqual([String.fromCharCode(later[0] as number)]);
    }
  });

  test("… and a client that has gone without a word is served to the end", () => {
    const setup = new Setup().client(query(READ));
    expect(setup.session.clientUnserved).toBe(true);
    setup.server(...REFUSED);
    expect(setup.session.clientUnserved).toBe(false);
    expect(setup.sent()).toEqual([READ, FENCED]);
  });

  test("once the client has a row it is an ordinary error, and only the next one is fenced", () => {
    const setup = new Setup().client(query(READ)).server(columns, row, ...REFUSED);
    expect(setup.heard()).toEqual(["T", "D", "E 25006", "Z"]);
    expect(setup.sent()).toEqual([READ]);
    setup.client(query(READ));
    expect(setup.sent()).toEqual([FENCED]);
  });

  test("answers that are too large to be held back are passed, and the error behind them is an ordinary one", () => {
    const wide = message(BACK.rowDescription, Buffer.alloc(BARE_BYTES_MAX));
    const setup = new Setup().client(query(READ)).server(wide, ...REFUSED);
    expect(setup.heard()).toEqual(["T", "E 25006", "Z"]);
  });

  test("any other error is the client's, in its place", () => {
    const setup = new Setup().client(...group(READ)).server(...answers("12"), error("ERROR", "22012"), IDLE);
    expect(setup.heard()).toEqual(["1", "2", "E 22012", "Z"]);
  });

  test("an error from inside a function may be the refusal in other words; what fails behind the fence, too, is no writer", () => {
    const raised = [withContext("P0001"), IDLE];
    const setup = new Setup().client(query(READ)).server(columns, ...raised);
    expect(setup.heard()).toEqual([]);
    setup.server(...entered, columns, ...raised);
    expect(setup.sent()).toEqual([READ, FENCED]);
    expect(setup.heard()).toEqual(["T", "E P0001", "Z"]);
    setup.client(query(READ)).server(columns, ...raised);
    setup.server(...entered, columns, row, complete("SELECT 1"), IDLE).client(query(READ));
    expect(setup.sent()).toEqual([READ, FENCED, FENCED]);
  });

  test.each(["40001", "57014", "55P03"])("… but %s is what it is", (code) => {
    const setup = new Setup().client(query(READ)).server(columns, withContext(code), IDLE);
    expect(setup.heard()).toEqual(["T", `E ${code}`, "Z"]);
  });

  test("to a client that chose read-only transactions it is the right answer", () => {
    const setup = new Setup({ readOnlyDefault: true }).client(query(READ)).server(columns, ...REFUSED);
    expect(setup.sent()).toEqual([READ]);
    expect(setup.heard()).toEqual(["T", "E 25006", "Z"]);
  });

  test("a cancel between its two runs has its effect", () => {
    const setup = new Setup().client(...group(READ)).server(...answers("12"));
    expect(setup.session.cancellable).toBe(true);
    setup.session.setCancelling(true);
    setup.server(...REFUSED);
    setup.session.setCancelling(false);
    expect(setup.sent().join("")).toBe("PBES");
    expect(setup.heard()).toEqual(["1", "E 57014", "Z"]);
    setup.client(query("INSERT"));
    expect(setup.sent()).toEqual([`${PREFIX}INSERT`]);
  });

  test("INV-5: the permit is asked again", () => {
    const setup = new Setup().client(...group(READ));
    setup.permit = "unconfirmed";
    setup.server(...answers("12"), ...REFUSED, ...answers("12"), error("ERROR", "LF002"), IDLE);
    expect(setup.heard()).toEqual(["1", "E LF002", "Z"]);
  });

  test("INV-10: its end is told as it is, before and after it began anew", () => {
    for (const anew of [false, true]) {
      const setup = new Setup().client(query(READ)).server(columns);
      if (anew) setup.server(...REFUSED);
      setup.server(error("FATAL", "57P01")).judge(SUPERSEDED);
      expect(setup.heard()).toEqual([...(anew ? [] : ["T"]), "E LF001"]);
    }
  });

  test("INV-10: the connection lost in a bare read leaves no outcome unknown; lost in its repetition it does", () => {
    for (const anew of [false, true]) {
      const setup = new Setup().client(...group(READ)).server(...answers("12"));
      if (anew) setup.server(...REFUSED);
      setup.session.serverClosed();
      setup.judge({ kind: "ours" });
      expect(setup.heard()).toEqual([...(anew ? ["1"] : []), anew ? "E 08007" : "E 08006"]);
    }
  });
});

test("a group waits for a bare simple query in front of it", () => {
  const setup = new Setup().client(query(READ)).client(...group(READ));
  expect(setup.sent()).toEqual([READ]);
  setup.server(columns, complete("SELECT 0"), IDLE);
  expect(setup.sent().join("")).toMatch(/PBES$/);
});

test("a client that pipelines keeps its pipeline: behind a bare group that was waited for, fenced ones go at once", () => {
  const setup = new Setup().client(...group(READ)).client(...group(READ));
  expect(setup.sent().join("")).toBe("PBES");
  setup.server(...answers("12"), complete("SELECT 0"), IDLE);
  expect(setup.sent().join("")).toBe(`${ENTERS_FIRST}PBES`);
  setup.server(...fenceAnswers, ...answers("12"), complete("SELECT 0"), IDLE);
  setup.client(...group(READ)).client(...group(READ));
  expect(setup.sent().join("")).toBe("BEBEPBESBEBEPBES");
});
