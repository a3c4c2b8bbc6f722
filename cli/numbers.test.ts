import { expect, test } from "vitest";
import { notNegative, positive } from "./numbers.ts";

test.each(["2O", "", "x", "-1", "0", "2.5", "1e99", "Infinity"])("%o is no generation", (text) => {
  expect(() => positive(text)).toThrow("it must be a whole number from 1 on");
});

test.each(["2O", "", "x", "-1", "1e3", "NaN"])("%o is no time", (text) => {
  expect(() => notNegative(text)).toThrow("it must be a number from 0 on");
});

test("what is one is taken", () => {
  expect([positive("9007199254740991"), notNegative("0"), notNegative("2.5")]).toEqual([2 ** 53 - 1, 0, 2.5]);
});
