/** That the lines which `make test` removes in turn are still there: whoever changes one of them hears of it at once. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { MUTANTS } from "./mutants.ts";

test.each(Object.entries(MUTANTS))("%s", (_name, edits) => {
  for (const { file, from } of edits) {
    expect(readFileSync(join(import.meta.dirname, "..", file), "utf8"), file).toContain(from);
  }
});
