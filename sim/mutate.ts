/**
 * Removes each safety line of the protocol in turn (mutants.ts) and says which history has noticed:
 * `node sim/mutate.ts [--remember] [word …]`, for those whose name has one of the words. Exits 1 if a removal went
 * unnoticed. `--remember` writes which ones did into noticed.json, to be tried first the next time.
 */
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { MUTANTS } from "./mutants.ts";

/** Histories that a removal may take to show. */
const SEEDS = Number(process.env.FENCEDJOB_SIM_SEEDS ?? 3_000);
const LINE_CHARS = 150;

interface Noticed {
  readonly seed: number;
  /** As told: the seed and what broke. */
  readonly line: string;
}

const [hook, run, file] = ["mutation.ts", "run.ts", "noticed.json"].map((name) => join(import.meta.dirname, name)) as [
  string,
  string,
  string,
];
const { values, positionals: words } = parseArgs({
  options: { remember: { type: "boolean", default: false } },
  allowPositionals: true,
});
const remembered: Record<string, number> = JSON.parse(readFileSync(file, "utf8"));
const names = Object.keys(MUTANTS).filter((name) => !words.length || words.some((word) => name.includes(word)));
const found = new Map<string, Noticed | null>();
let next = 0;

async function one(): Promise<void> {
  for (let name = names[next++]; name !== undefined; name = names[next++]) {
    const known = remembered[name];
    const noticed = (known && (await firstBroken(name, known, 1))) || (await firstBroken(name, 1, SEEDS));
    found.set(name, noticed);
    console.log(
      `${noticed ? "noticed  " : "UNNOTICED"}  ${name}\n             ${(noticed?.line ?? "").slice(0, LINE_CHARS)}`,
    );
  }
}

/** Of so many histories; rejects when the mutant does not even run. */
function firstBroken(name: string, from: number, seeds: number): Promise<Noticed | null> {
  const args = ["--import", hook, run, "--first", "--from", String(from), "--seeds", String(seeds)];
  const child = spawn(process.execPath, args, {
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
      const [line, seed] = /^seed (\d+): .*$/m.exec(out) ?? [];
      if (code !== 0 && !seed) reject(new Error(`"${name}" does not run:\n${err}`));
      else resolve(line ? { seed: Number(seed), line } : null);
    });
  });
}

await Promise.all(Array.from({ length: availableParallelism() }, one));
if (values.remember) {
  const seeds = Object.keys(MUTANTS).map((name) => [name, found.get(name)?.seed ?? remembered[name]]);
  writeFileSync(file, `${JSON.stringify(Object.fromEntries(seeds), null, 2)}\n`);
}
const unnoticed = [...found.values()].filter((noticed) => !noticed).length;
console.log(`${found.size - unnoticed} passed, ${unnoticed} failed`);
process.exitCode = unnoticed > 0 ? 1 : 0;
