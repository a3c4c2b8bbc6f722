/**
 * `make test`: everything that can run on this machine, in the order of its cost, then loudly what was skipped and why.
 * Arguments name single steps: `npm test -- unit postgres`.
 */
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { corpusMissing } from "../conformance/corpus.ts";
import { apiServerPrograms, build } from "../e2e/cluster/build.ts";
import { down, isUp } from "../e2e/cluster/localnode.ts";
import { chooseProvider, requireGo } from "../e2e/cluster/prerequisites.ts";
import { modelMissing } from "../model/spin.ts";
import { postgresVersions } from "../testing/postgres.ts";
import type { Counts } from "../testing/reporter.ts";

const say = (line: string): void => console.log(line);
/** A log is read later, as text. */
const plain = process.stdout.isTTY ? {} : { NO_COLOR: "1" };
const scratch = mkdtempSync(join(tmpdir(), "fencedjob-test-"));
const total: Counts = { passed: 0, failed: 0, skipped: [] };
const lines: string[] = [];

const SIMULATED_HISTORIES = 10_000;

interface Step {
  readonly name: string;
  readonly run: () => Promise<Counts>;
  /** Why it cannot run here; null when it can. */
  readonly missing?: () => Promise<string | null>;
}

const command = (name: string, args: string[], missing?: Step["missing"]): Step => ({
  name,
  run: async () => ((await exec(args)) === 0 ? counted(1, 0) : counted(0, 1)),
  ...(missing && { missing }),
});

const vitest = (project: string, missing?: Step["missing"]): Step => ({
  name: project,
  run: () => runVitest(project),
  ...(missing && { missing }),
});

const steps: readonly Step[] = [
  command("lint", ["npm", "run", "-s", "lint"]),
  command("types", ["npm", "run", "-s", "typecheck"]),
  command("generated files", ["npm", "run", "-s", "generate", "--", "--check"]),
  vitest("unit"),
  command("model", ["npm", "run", "-s", "model"], async () => modelMissing()),
  command("simulation", ["npm", "run", "-s", "sim", "--", "--seeds", String(SIMULATED_HISTORIES)]),
  command("simulation's mutants", ["node", "sim/mutate.ts"]),
  vitest("postgres"),
  vitest("apiserver", () =>
    unless(async () => {
      await requireGo("the API server");
      // All that the tests start, before the first of them: a build in the middle of a test is a test that times out.
      await build([...apiServerPrograms, "kube-controller-manager", "helm"], say);
    }),
  ),
  vitest("cluster", () =>
    unless(async () => {
      await chooseProvider("make test");
    }),
  ),
];

async function main(): Promise<void> {
  const wanted = process.argv.slice(2);
  const wasUp = isUp();
  for (const { version, why } of postgresVersions().missing) {
    total.skipped.push({ name: `PostgreSQL ${version}`, why });
  }
  const corpus = corpusMissing();
  if (corpus !== null) total.skipped.push({ name: "the corpus of psql scripts", why: corpus });
  for (const step of steps.filter(({ name }) => !wanted.length || wanted.includes(name))) await runStep(step);
  if (!wasUp && isUp()) await down(say);
  rmSync(scratch, { recursive: true, force: true });
  say(`\n${lines.join("\n")}`);
  for (const { name, why } of total.skipped) say(`SKIPPED  ${name}: ${why}`);
  const skipped = total.skipped.length ? `, ${total.skipped.length} skipped` : "";
  say(`\n${total.passed} passed, ${total.failed} failed${skipped}`);
  process.exitCode = total.failed || !total.passed ? 1 : 0;
}

async function runStep({ name, run, missing }: Step): Promise<void> {
  say(`\n=== ${name}`);
  const startedMs = performance.now();
  const why = (await missing?.()) ?? null;
  if (why !== null) {
    total.skipped.push({ name: `all tests of ${name}`, why });
    lines.push(`${name.padEnd(16)} skipped`);
    return;
  }
  const counts = await run();
  total.passed += counts.passed;
  total.failed += counts.failed;
  total.skipped.push(...counts.skipped);
  const seconds = ((performance.now() - startedMs) / 1000).toFixed(0);
  lines.push(
    `${name.padEnd(16)} ${String(counts.passed).padStart(5)} passed ${String(counts.failed).padStart(3)} failed   ${seconds.padStart(4)} s`,
  );
}

async function unless(prepare: () => Promise<void>): Promise<string | null> {
  try {
    await prepare();
    return null;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

async function runVitest(project: string): Promise<Counts> {
  const file = join(scratch, `${project}.json`);
  const code = await exec(
    ["vitest", "run", "--project", project, "--reporter=default", "--reporter=./testing/reporter.ts"],
    { FENCEDJOB_TEST_COUNTS: file },
  );
  try {
    const counts = JSON.parse(readFileSync(file, "utf8")) as Counts;
    // A run that ends badly with every test green is a failure of its own.
    return code !== 0 && counts.failed === 0 ? { ...counts, failed: 1 } : counts;
  } catch {
    return counted(0, 1);
  }
}

function counted(passed: number, failed: number): Counts {
  return { passed, failed, skipped: [] };
}

function exec([program = "", ...args]: string[], env: Record<string, string> = {}): Promise<number> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, {
      stdio: ["ignore", "inherit", "inherit"],
      env: { ...process.env, ...plain, ...env },
    });
    child.once("error", reject);
    child.once("close", (code) => resolve(code ?? 1));
  });
}

await main();
