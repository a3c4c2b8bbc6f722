/**
 * `make conformance`: suites direct and through the proxy against the same server, results compared; one JSON per suite
 * and version in `results/`, and docs/conformance.md from all of them. `-- pgx 18` runs one suite on one version.
 */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type PostgresVersion, postgresVersions } from "../testing/postgres.ts";
import { RESULTS, writeReport } from "./report.ts";
import { type SuiteResult, unexplained } from "./results.ts";
import { suites } from "./suites.ts";

const VERSIONS: readonly PostgresVersion[] = [15, 18];
const say = (line: string): void => console.log(line);

const words = process.argv.slice(2);
const wantedVersions = words.map(Number).filter((number) => !Number.isNaN(number));
const wantedSuites = words.filter((word) => Number.isNaN(Number(word)));
const { found } = postgresVersions();
mkdirSync(RESULTS, { recursive: true });
let failed = 0;

for (const suite of suites.filter(({ name }) => !wantedSuites.length || wantedSuites.includes(name))) {
  const missing = suite.missing();
  if (missing !== null) {
    say(`SKIPPED  ${suite.name}: ${missing}`);
    continue;
  }
  for (const version of VERSIONS.filter((one) => !wantedVersions.length || wantedVersions.includes(one))) {
    if (!found.includes(version)) {
      say(`SKIPPED  ${suite.name} on PostgreSQL ${version}: the server is not installed`);
      continue;
    }
    const startedMs = performance.now();
    const result = await suite.run(version);
    writeFileSync(
      join(RESULTS, `${suite.name.replaceAll(/\W/g, "")}-${version}.json`),
      `${JSON.stringify(result, null, 2)}\n`,
    );
    sayResult(result, performance.now() - startedMs);
    failed += unexplained(result).length;
  }
}
writeReport(suites);
say(failed ? `\n${failed} differences that nobody has explained` : "\nno unexplained difference");
process.exitCode = failed ? 1 : 0;

function sayResult(result: SuiteResult, tookMs: number): void {
  const { suite, postgres, checks, same, differences } = result;
  say(
    `${suite.padEnd(16)} PostgreSQL ${postgres}  ${checks} checks, ${same} the same, ${differences.length} differ   ${Math.round(tookMs / 1000)} s`,
  );
  for (const { check, direct, proxied } of unexplained(result)) {
    say(`  UNEXPLAINED ${check}\n    direct:  ${indented(direct)}\n    proxied: ${indented(proxied)}`);
  }
}

function indented(text: string): string {
  return text.replaceAll("\n", "\n             ");
}
