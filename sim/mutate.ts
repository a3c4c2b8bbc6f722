/**
 * Removes each safety line of the protocol in turn (mutants.ts) and says which history has noticed first:
 * `node sim/mutate.ts [word …]`, for those whose name has one of the words. Exits 1 if a removal went unnoticed.
 */
import { spawn } from "node:child_process";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { MUTANTS } from "./mutants.ts";

/** Histories that a removal may take to show. */
const SEEDS = Number(process.env.FENCEDJOB_SIM_SEEDS ?? 600);
const LINE_CHARS = 150;

const words = process.argv.slice(2);
const names = Object.keys(MUTANTS).filter((name) => !words.length || words.some((word) => name.includes(word)));
let [noticed, unnoticed, next] = [0, 0, 0];

async function one(): Promise<void> {
  for (let name = names[next++]; name !== undefined; name = names[next++]) {
    const found = await firstBroken(name);
    if (found) noticed++;
    else unnoticed++;
    console.log(`${found ? "noticed  " : "UNNOTICED"}  ${name}\n             ${(found ?? "").slice(0, LINE_CHARS)}`);
  }
}

/** Rejects when the mutant does not even run. */
function firstBroken(name: string): Promise<string | undefined> {
  const [hook, run] = ["mutation.ts", "run.ts"].map((file) => join(import.meta.dirname, file)) as [string, string];
  const child = spawn(process.execPath, ["--import", hook, run, "--first", "--seeds", String(SEEDS)], {
    env: { ...process.env, FENCEDJOB_SIM_MUTANT: name },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let [out, err] = ["", ""];
  child.stdout.on("data", (chunk) => {
    out += chunk;
  });
  child.stderr.on("data", (chunk) => {
    err += chunk;
  });
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code) => {
      const found = out.split("\n").find((line) => line.startsWith("seed "));
      if (code !== 0 && !found) reject(new Error(`"${name}" does not run:\n${err}`));
      else resolve(found);
    });
  });
}

await Promise.all(Array.from({ length: availableParallelism() }, one));
console.log(`${noticed} passed, ${unnoticed} failed`);
process.exitCode = unnoticed > 0 ? 1 : 0;
