/**
 * Removes each safety line of the lease protocol in turn (mutants.ts) and says whether the simulation notices:
 * `node sim/mutate.ts [name …]`. Exits 1 if a removal went unnoticed.
 */
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { MUTANTS } from "./mutants.ts";

/** Histories that a removal may take to show. */
const SEEDS = Number(process.env.FENCEDJOB_SIM_SEEDS ?? 400);
const LINE_CHARS = 150;

let unnoticed = 0;
const asked = process.argv.slice(2);
for (const name of asked.length > 0 ? asked : Object.keys(MUTANTS)) {
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [
      "--import",
      join(import.meta.dirname, "mutation.ts"),
      join(import.meta.dirname, "run.ts"),
      "--seeds",
      String(SEEDS),
    ],
    { env: { ...process.env, FENCEDJOB_SIM_MUTANT: name }, encoding: "utf8" },
  );
  const found = stdout.split("\n").find((line) => line.startsWith("seed "));
  if (status !== 0 && !found) throw new Error(`"${name}" does not run:\n${stderr}`);
  if (!found) unnoticed++;
  console.log(`${found ? "noticed  " : "UNNOTICED"}  ${name}\n             ${(found ?? "").slice(0, LINE_CHARS)}`);
}
process.exitCode = unnoticed > 0 ? 1 : 0;
