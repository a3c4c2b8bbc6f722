import { execFile } from "node:child_process";
import { join } from "node:path";
import { expect, test } from "vitest";
import { byHand } from "./byhand.ts";

test.each([
  [
    "Check host and port in the job's Secret, and that the server runs; it is tried again by itself.",
    "Check host and port in the database URL, and that the server runs; run this command again.",
  ],
  [
    "End it, as an administrator: SELECT pg_terminate_backend(7). The close is tried again by itself.",
    "End it, as an administrator: SELECT pg_terminate_backend(7). Run this command again.",
  ],
  [
    "SELECT pg_terminate_backend(7); the raise is tried again by itself.",
    "SELECT pg_terminate_backend(7); run this command again.",
  ],
  ["Use the fencedjob that installed it.", "Use the fencedjob that installed it."],
])("%s", (hint, told) => {
  expect(byHand(hint)).toBe(told);
});

test.each([
  ["db", "close", "--job", "billing/run"],
  ["proxy", "--job", "billing/run", "--generation", "1", "--listen", "127.0.0.1:0"],
])("fencedjob %s %s promises no further try, which nobody makes", async (...command) => {
  const args = [join(import.meta.dirname, "fencedjob.ts"), ...command, "--database-url", "postgres://a@127.0.0.1:1/b"];
  const said = await new Promise<string>((resolve) => {
    execFile(process.execPath, args, (_error, _stdout, stderr) => resolve(stderr));
  });
  expect(said).toMatch(/LF015: the database at 127\.0\.0\.1:1 cannot be reached.*run this command again/s);
  expect(said).not.toMatch(/by itself|Secret/);
});
