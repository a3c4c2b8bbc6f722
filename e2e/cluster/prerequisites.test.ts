import { expect, test } from "vitest";
import { explain, goIsEnough } from "./prerequisites.ts";

test.each([
  ["1.26", true],
  ["1.27", true],
  ["2.0", true],
  ["1.25", false],
  ["1.9", false],
  [undefined, false],
])("Go %s is enough: %s", (version, wantEnough) => {
  expect(goIsEnough(version)).toBe(wantEnough);
});

test("a machine that can have no cluster is told what it lacks, what to do, and that nothing was changed", () => {
  const message = explain({ what: "make demo", root: true, go: "1.21" });
  expect(message).toContain("make demo needs one of: a Docker engine");
  expect(message).toContain("Found: no Docker engine, root, Go 1.21. Install Go: https://go.dev/dl, or start Docker");
  expect(message).toMatch(/Nothing was changed\.$/);
});

test("only what is missing is asked for", () => {
  expect(explain({ what: "make demo", root: false, go: "1.26" })).toContain(
    "not root, Go 1.26. Become root on Linux, or start Docker",
  );
  expect(explain({ what: "make demo", root: false, go: undefined })).toContain(
    "no Go. Install Go: https://go.dev/dl and become root on Linux, or start Docker",
  );
});
