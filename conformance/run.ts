/**
 * `make conformance`: suites direct and through the proxy against the same server, results compared; one JSON per suite
 * and version in `results/`, and docs/conformance.md from all of them.
 */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Command } from "commander";
import { type PostgresVersion, postgresVersions } from "../testing/postgres.ts";
import { Progress } from "./progress.ts";
import { RESULTS, resultFile, writeReport } from "./report.ts";
import { type SuiteResult, unexplained } from "./results.ts";
import { type Suite, suites } from "./suites.ts";

const VERSIONS: readonly PostgresVersion[] = [15, 18];
const say = (line: string): void => console.log(line);

const program = new Command("conformance")
  .argument("[words...]", `suites and versions (${VERSIONS.join(", ")}); all if none is named`)
  .option(
    "--resume",
    "go on with the last run of everything: only what it has not finished without a difference to explain",
  )
  .option("--report", "only write docs/conformance.md, from the results that there are")
  .addHelpText("after", () => `\nSuites: ${suites.map(({ name }) => `"${name}"`).join(", ")}`)
  .action(async (words: readonly string[], options: { readonly resume?: boolean; readonly report?: boolean }) => {
    if (!options.report) await run(words, options.resume ?? false);
    writeReport(suites);
  });
await program.parseAsync();

async function run(words: readonly string[], resume: boolean): Promise<void> {
  const wanted = words.length ? words.map(known) : [];
  const isWanted = (word: string): boolean => {
    const ofItsKind = wanted.filter((one) => /^\d+$/.test(one) === /^\d+$/.test(word));
    return ofItsKind.length === 0 || ofItsKind.includes(word);
  };
  mkdirSync(RESULTS, { recursive: true });
  const progress = new Progress(join(RESULTS, ".finished"));
  if (!resume && words.length === 0) progress.begin();
  let failed = 0;
  for (const suite of suites.filter(({ name }) => isWanted(name))) {
    for (const version of VERSIONS.filter((one) => isWanted(String(one)))) {
      if (resume && progress.has(resultFile(suite.name, version))) continue;
      const problems = await runOne(suite, version);
      if (problems === 0) progress.add(resultFile(suite.name, version));
      failed += problems;
    }
  }
  say(failed ? `\n${failed} failures or differences that nobody has explained` : "\nno unexplained difference");
  process.exitCode = failed ? 1 : 0;
}

function known(word: string): string {
  if (suites.some(({ name }) => name === word) || VERSIONS.some((version) => String(version) === word)) return word;
  return program.error(`There is no suite and no version "${word}". --help lists them.`);
}

/** How many problems it had. A suite that fails to run costs the others nothing, and leaves its last result. */
async function runOne(suite: Suite, version: PostgresVersion): Promise<number> {
  const where = `${suite.name} on PostgreSQL ${version}`;
  const missing = postgresVersions().found.includes(version) ? suite.missing() : "the server is not installed";
  if (missing !== null) {
    say(`SKIPPED  ${where}: ${missing}`);
    return 0;
  }
  const startedMs = performance.now();
  try {
    const result = await suite.run(version);
    writeFileSync(join(RESULTS, resultFile(suite.name, version)), `${JSON.stringify(result, null, 2)}\n`);
    sayResult(result, performance.now() - startedMs);
    return unexplained(result).length;
  } catch (error) {
    say(`FAILED   ${where}: ${error instanceof Error ? error.stack : String(error)}`);
    return 1;
  }
}

function sayResult(result: SuiteResult, tookMs: number): void {
  const { suite, postgres, checks, same, differences, pooled } = result;
  const control = pooled ? ` (through PgBouncer ${pooled.length})` : "";
  say(
    `${suite.padEnd(26)} PostgreSQL ${postgres}  ${checks} checks, ${same} the same, ${differences.length} differ${control}   ${Math.round(tookMs / 1000)} s`,
  );
  for (const { check, direct, proxied } of unexplained(result)) {
    say(`  UNEXPLAINED ${check}\n    direct:  ${indented(direct)}\n    proxied: ${indented(proxied)}`);
  }
}

function indented(text: string): string {
  return text.replaceAll("\n", "\n             ");
}
