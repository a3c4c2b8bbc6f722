import { expect, test } from "vitest";
import { until } from "./until.ts";

/** Fails the first time it is asked. */
function failingOnce(): () => string {
  let asked = 0;
  return () => {
    if (++asked === 1) throw new Error("no connection");
    return `asked ${asked} times`;
  };
}

test("a failure counts as not yet, or ends the wait at once, as is wanted", async () => {
  await expect(until(failingOnce())).resolves.toBe("asked 2 times");
  await expect(until(failingOnce(), 30_000, { failureEnds: true })).rejects.toThrow("no connection");
});

test("at the end of the time the last failure is thrown, or what was waited for", async () => {
  await expect(until(() => Promise.reject(new Error("no connection")), 0)).rejects.toThrow("no connection");
  await expect(until(() => false, 0, { what: "the pod runs" })).rejects.toThrow("not so within 0 ms: the pod runs");
});
