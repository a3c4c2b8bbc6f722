/** What spin has printed, read: a search that was cut off must never count as one that found nothing. */
import { expect, test } from "vitest";
import { read } from "./spin.ts";

const ENDED = `State-vector 144 byte, depth reached 180, errors: 0
   328233 states, stored
`;

test("nothing is broken", () => {
  expect(read(ENDED)).toEqual({ broken: null, states: 328_233 });
});

test("the invariant that is broken is told by its name", () => {
  const text = `pan:1: assertion violated INV_3_no_stale_commit (at depth 63)
Warning: Search not completed
State-vector 128 byte, depth reached 63, errors: 1
      812 states, stored
`;
  expect(read(text)).toEqual({ broken: "INV_3_no_stale_commit", states: 812 });
  expect(read("pan:1: acceptance cycle (at depth 5)\n  3 states, stored (4 visited)").broken).toMatch(/^INV_11/);
});

test.each([
  ["depth", `error: max search depth too small\n${ENDED}`],
  ["memory", `pan: reached -DMEMLIM bound\npan: out of memory\n${ENDED}`],
  ["nothing at all", ""],
  ["another error", ENDED.replace("errors: 0", "errors: 1")],
])("a search that ended for lack of %s is an error", (_why, text) => {
  expect(() => read(text)).toThrow("did not look at every state");
});
