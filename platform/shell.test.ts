import { execFileSync } from "node:child_process";
import { expect, test } from "vitest";
import { shellWord } from "./shell.ts";

test.each(["run", "a b", "it's", "$(id)", "`id`", '{"a":"\'; id #"}', "", "\\", "a\nb"])(
  "%j is one word of a shell",
  (text) => {
    expect(execFileSync("sh", ["-c", `printf '%s|' ${shellWord(text)}`], { encoding: "utf8" })).toBe(`${text}|`);
  },
);
