import { expect, test } from "vitest";
import { FENCE_CODES, isFenceCode } from "./codes.ts";
import {
  bracketSql,
  enterLockSql,
  enterSelectSql,
  quoteIdentifier,
  quoteLiteral,
  refuseSql,
  sessionStartSteps,
} from "./enter.ts";
import { codeOfSqlState, FenceError, toFenceError } from "./errors.ts";
import { addressFromUrl } from "./url.ts";

const identity = { fenceName: "a/b", generation: 7, holder: "it's \\ me", holderName: "b-7" };

test("entering names the gate of exactly one job and generation", () => {
  expect(enterLockSql(1, 7)).toBe("LOCK TABLE fence.gate_1_7 IN ROW SHARE MODE");
  expect(enterSelectSql(12, Number.MAX_SAFE_INTEGER)).toBe("SELECT FROM fence.gate_12_9007199254740991 FOR SHARE");
});

test("a job or a generation that is no positive safe integer makes no text", () => {
  for (const bad of [0, -1, 1.5, 2 ** 53, Number.NaN]) {
    expect(() => enterLockSql(1, bad)).toThrow(RangeError);
    expect(() => enterSelectSql(bad, 1)).toThrow(RangeError);
  }
});

test("a session's start ends with the sentinel, and registers inside the transaction that entered", () => {
  const steps = sessionStartSteps(1, identity, "6/1/5/16385");
  expect(steps.map(({ expect: outcome }) => outcome)).toEqual(["success", "success", "success", "42501"]);
  const [transaction] = steps.filter(({ sql }) => sql.startsWith("BEGIN"));
  const statements = transaction!.sql.split(";");
  expect(statements[1]).toBe("SELECT fence.check_history(7, '6/1/5/16385')");
  expect(statements.indexOf(enterLockSql(1, 7))).toBe(3);
  expect(statements[4]).toBe("SELECT fence.admit_session(1, 7, E'it''s \\\\ me')");
  expect(statements[5]).toBe("SET fence.generation_1 = 7");
});

test("literals and names are quoted for both settings of standard_conforming_strings, and refuse a zero byte", () => {
  expect(quoteLiteral("a'b")).toBe("'a''b'");
  expect(quoteLiteral("a\\'b")).toBe("E'a\\\\''b'");
  expect(quoteIdentifier('a"b')).toBe('"a""b"');
  expect(() => quoteLiteral("\0")).toThrow(RangeError);
  expect(() => quoteIdentifier("\0")).toThrow(RangeError);
});

test("a refusal and a bracket are calls of the fence's own functions", () => {
  expect(refuseSql("LF002", "m", "d", "h")).toBe("SELECT fence.refuse('LF002', 'm', 'd', 'h')");
  expect(bracketSql(3, { ...identity, holder: "x" })).toEqual({
    lock: "SELECT pg_catalog.pg_advisory_lock_shared(1279673923, 3)",
    check: "SELECT fence.check_owner(3, 7, 'x')",
    unlock: "SELECT pg_catalog.pg_advisory_unlock_shared(1279673923, 3)",
  });
});

test("each code says what it means and what to do, and only LF001 and LF003 are final", () => {
  for (const [code, entry] of Object.entries(FENCE_CODES)) {
    expect(code).toMatch(/^LF\d{3}$/);
    expect(entry.meaning).toMatch(/\.$/);
    expect(entry.hint.length).toBeGreaterThan(10);
    expect(entry.final).toBe(code === "LF001" || code === "LF003");
  }
  expect(isFenceCode("LF999")).toBe(false);
  expect(isFenceCode("toString")).toBe(false);
});

test("an error's message starts with its code exactly once, and it has the code's hint if it has none", () => {
  const error = new FenceError("LF013", { message: "LF013: it is a standby" });
  expect(error.message).toBe("LF013: it is a standby");
  expect(new FenceError("LF013", { message: "it is a standby" }).message).toBe(error.message);
  expect(error.hint).toBe(FENCE_CODES.LF013.hint);
});

test("an SQLSTATE of ours is itself, a known one is translated, any other is the fallback", () => {
  expect(codeOfSqlState("LF010", "LF015")).toBe("LF010");
  expect(codeOfSqlState("3F000", "LF015")).toBe("LF011");
  expect(codeOfSqlState("XX000", "LF014")).toBe("LF014");
});

test("the detail of a translated error keeps the original and its SQLSTATE, never the password", () => {
  const address = addressFromUrl("postgres://app:secret@db:6432/ledger?sslmode=require");
  const server = Object.assign(new Error('password authentication failed for user "app"'), {
    code: "28P01",
    severity: "FATAL",
  });
  const error = toFenceError(server, address, "raising");
  expect(error).toMatchObject({ code: "LF016", final: false });
  expect(error.detail).toBe('PostgreSQL says: password authentication failed for user "app" (SQLSTATE 28P01).');
  expect(JSON.stringify([error.message, error.detail, error.hint])).not.toContain("secret");
});

test("a connection string becomes an address with libpq's defaults", () => {
  expect(addressFromUrl("postgres://app@db")).toEqual({
    host: "db",
    port: 5432,
    database: "app",
    user: "app",
    sslmode: "prefer",
  });
  expect(addressFromUrl("postgresql://a%40b:p%2Fw@[::1]:6000/x%20y?sslmode=disable")).toEqual({
    host: "::1",
    port: 6000,
    database: "x y",
    user: "a@b",
    password: "p/w",
    sslmode: "disable",
  });
  for (const bad of [
    "db",
    "http://a@b",
    "postgres://db/x",
    "postgres://a@b?sslmode=maybe",
    "postgres://a@b?target=x",
  ]) {
    expect(() => addressFromUrl(bad)).toThrow();
  }
});
