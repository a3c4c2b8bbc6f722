import { expect, test } from "vitest";
import { outcomesOf } from "./gosuites.ts";
import { compare, unexplained } from "./results.ts";

const event = (Action: string, Test?: string): string =>
  JSON.stringify({ Action, Package: "github.com/lib/pq", ...(Test && { Test }) });

test("outcomes that differ, or are missing on one side, are differences; those without a reason are unexplained", () => {
  const direct = new Map([
    ["a", "pass"],
    ["b", "pass"],
    ["c", "fail"],
  ]);
  const proxied = new Map([
    ["a", "pass"],
    ["b", "fail"],
  ]);
  const explain = (_suite: string, check: string): string | null => (check === "b" ? "known" : null);
  const result = compare({ suite: "s", postgres: 18 }, { direct, proxied }, { explain });
  expect(result).toMatchObject({ checks: 3, same: 1, direct: { pass: 2, fail: 1 }, proxied: { pass: 1, fail: 1 } });
  expect(unexplained(result)).toEqual([{ check: "c", direct: "fail", proxied: "not run", reason: null }]);
});

test("what differs through PgBouncer is told, and neither counted nor judged", () => {
  const direct = new Map([["a", "long direct"]]);
  const pooled = new Map([["a", "long pooled"]]);
  const shorten = (one: string, other: string) => ({ direct: one.slice(5), other: other.slice(5) });
  const sides = { direct, proxied: direct, pooled };
  const result = compare({ suite: "s", postgres: 18 }, sides, { explain: () => null, shorten });
  expect(result).toMatchObject({ same: 1, pooled: [{ check: "a", direct: "direct", pooled: "pooled" }] });
  expect(unexplained(result)).toEqual([]);
});

test("the events of go test become outcomes by test; names of temporary directories are left out", () => {
  const json = [event("run", "TestA"), event("pass", "TestA"), event("skip", "TestB//tmp/TestB123/001/x"), "noise"];
  expect([...outcomesOf(json.join("\n"))]).toEqual([
    ["pq TestA", "pass"],
    ["pq TestB//tmp/…/x", "skip"],
  ]);
});

test("a package that fails counts only when none of its tests tells it", () => {
  expect([...outcomesOf([event("pass", "TestA"), event("fail")].join("\n")).keys()]).toEqual([
    "pq TestA",
    "pq (package)",
  ]);
  expect([...outcomesOf([event("fail", "TestA"), event("fail")].join("\n")).keys()]).toEqual(["pq TestA"]);
});
