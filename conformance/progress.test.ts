import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { Progress } from "./progress.ts";

const dir = mkdtempSync(join(tmpdir(), "fencedjob-progress-"));
afterEach(() => rmSync(dir, { recursive: true, force: true }));

test("what a cut-off run has finished is known to the next one, until a run begins anew", () => {
  const file = join(dir, "finished");
  expect(new Progress(file).has("corpus-15.json")).toBe(false);
  new Progress(file).begin();
  new Progress(file).add("corpus-15.json");
  expect(new Progress(file).has("corpus-15.json")).toBe(true);
  expect(new Progress(file).has("corpus-1")).toBe(false);
  new Progress(file).begin();
  expect(new Progress(file).has("corpus-15.json")).toBe(false);
});
