import { mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { pruneVersions } from "./paths.ts";

test("the newest versions of a thing stay, and everything of another name", () => {
  const dir = mkdtempSync(join(tmpdir(), "fencedjob-paths-"));
  const hash = (n: number): string => String(n).repeat(12);
  for (const n of [1, 2, 3, 4, 5]) {
    mkdirSync(join(dir, `kubectl-${hash(n)}`));
    utimesSync(join(dir, `kubectl-${hash(n)}`), n, n);
  }
  for (const other of [`kubectl-x-${hash(1)}`, "kubectl-notes", `kubectl-${hash(6)}.1234`])
    writeFileSync(join(dir, other), "");
  pruneVersions(dir, "kubectl");
  const wantLeft = [
    ...[3, 4, 5].map((n) => `kubectl-${hash(n)}`),
    `kubectl-${hash(6)}.1234`,
    "kubectl-notes",
    `kubectl-x-${hash(1)}`,
  ];
  expect(readdirSync(dir).sort()).toEqual(wantLeft.sort());
  rmSync(dir, { recursive: true });
});
