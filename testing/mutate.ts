/**
 * Removes each safety line of the fence's SQL in turn and says which test noticed first: `node testing/mutate.ts [name …]`.
 * Takes some seconds for each; exits 1 if a removal went unnoticed.
 */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MUTANTS } from "./mutants.ts";

const FILES = [
  "raise",
  "gate",
  "admission",
  "bounds",
  "issuer",
  "close",
  "witness",
  "protect",
  "uncovered",
  "override",
  "enter",
].map((name) => `fence/${name}.pg.test.ts`);
const VERSION = "PostgreSQL 15";

interface Report {
  readonly testResults: {
    readonly assertionResults: { readonly status: string; readonly title: string }[];
  }[];
}

const out = mkdtempSync(join(tmpdir(), "fencedjob-mutants-"));
const names = process.argv.slice(2);
let survived = 0;
for (const name of names.length > 0 ? names : Object.keys(MUTANTS)) {
  const outputFile = join(out, "report.json");
  rmSync(outputFile, { force: true });
  const { status } = spawnSync(
    "npx",
    [
      "vitest",
      "run",
      "--project",
      "postgres",
      "--bail=1",
      "--reporter=json",
      `--outputFile=${outputFile}`,
      "--testTimeout=12000",
      "-t",
      VERSION,
      ...FILES,
    ],
    { env: { ...process.env, FENCEDJOB_MUTANT: name }, stdio: "ignore" },
  );
  const report = JSON.parse(readFileSync(outputFile, "utf8")) as Report;
  const failed = report.testResults.flatMap(({ assertionResults }) =>
    assertionResults.filter((result) => result.status === "failed").map(({ title }) => title),
  );
  // A mutant whose SQL does not even install shows nothing about the tests.
  if (failed.length === 0 && status !== 0) throw new Error(`mutant "${name}" cannot be installed`);
  if (failed.length === 0) survived++;
  process.stdout.write(`${failed.length > 0 ? "noticed " : "SURVIVED"}  ${name}\n`);
  for (const title of failed) process.stdout.write(`            ${title}\n`);
}
rmSync(out, { recursive: true });
process.exitCode = survived > 0 ? 1 : 0;
