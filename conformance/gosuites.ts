/**
 * The test suites of pgx and lib/pq, as their Go modules carry them: copied out of the module cache into a temporary
 * directory, run by `go test -json` direct and through the proxy, compared test by test.
 */
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { type Arena, environmentOf, onEachSide, type Side, startArena } from "./arena.ts";
import { command, endsWell, inPath } from "./command.ts";
import type { Outcomes, Sides } from "./results.ts";

export interface GoSuite {
  readonly name: string;
  readonly module: string;
  readonly moduleVersion: string;
  readonly database: string;
  readonly role: string;
  readonly setup: readonly string[];
  /** How many tests of a package run at once; Go's default if absent. */
  readonly parallel?: number;
  environment(side: Side): Record<string, string>;
}

export const goSuites: readonly GoSuite[] = [
  {
    name: "pgx",
    module: "github.com/jackc/pgx/v5",
    moduleVersion: "v5.13.0",
    database: "pgx_test",
    role: "pgx_app",
    // What its own setup makes, except that none of the roles is the one that connects.
    setup: [
      "CREATE EXTENSION hstore",
      "CREATE EXTENSION ltree",
      "CREATE DOMAIN uint64 AS numeric(20,0)",
      `CREATE USER " tricky, ' } "" \\ test user " SUPERUSER`,
    ],
    environment: (side) => ({
      PGX_TEST_DATABASE: `host=${side.host} port=${side.port} user=${side.user} password=x database=${side.database} sslmode=disable`,
    }),
  },
  {
    name: "lib/pq",
    module: "github.com/lib/pq",
    moduleVersion: "v1.12.3",
    database: "pqgo",
    role: "pqgo",
    // Its listeners' tests give up after 100 ms.
    parallel: 1,
    setup: [
      "CREATE EXTENSION hstore",
      ...["ssl", "sslcert", "password", "scram", "md5"].map(
        (name) => `CREATE ROLE pqgo${name} LOGIN PASSWORD 'wordpass'`,
      ),
    ],
    environment: (side) => ({ ...environmentOf(side), PGCONNECT_TIMEOUT: "20" }),
  },
];

const GO_TEST_MS_MAX = 420_000;

/** Why they cannot run here; null when they can. */
export const goMissing = (): string | null => (inPath("go") ? null : "Go is not installed");

/** Outcomes (pass, fail, skip) by test, of both sides; the whole output stays in the temporary directory. */
export async function runGoSuite(suite: GoSuite, version: Arena["version"]): Promise<Sides> {
  const sources = await sourcesOf(suite);
  const arena = await startArena({ version, database: suite.database, role: suite.role, setup: suite.setup });
  try {
    return await onEachSide(arena, (side) => goTest(suite, sources, side));
  } finally {
    await arena.stop();
    rmSync(dirname(sources), { recursive: true, force: true });
  }
}

async function sourcesOf({ module, moduleVersion }: GoSuite): Promise<string> {
  const scratch = mkdtempSync(join(tmpdir(), "fencedjob-go-"));
  const wanted = `${module}@${moduleVersion}`;
  const download = await endsWell("go", ["mod", "download", "-json", wanted], { cwd: scratch, timeoutMs: 120_000 });
  const { Dir } = JSON.parse(download.stdout) as { Dir: string };
  const sources = join(scratch, "module");
  mkdirSync(sources);
  cpSync(Dir, sources, { recursive: true });
  // The module cache is read-only, and go test wants to write go.sum.
  await command("chmod", ["-R", "u+w", sources], { timeoutMs: 30_000 });
  return sources;
}

async function goTest(suite: GoSuite, cwd: string, side: Side): Promise<Outcomes> {
  // One package after the other: some of their tests look at what the whole server does.
  const args = [
    "test",
    "-json",
    "-count=1",
    "-p=1",
    ...(suite.parallel ? [`-parallel=${suite.parallel}`] : []),
    `-timeout=${GO_TEST_MS_MAX / 1000}s`,
    "./...",
  ];
  const env = { ...suite.environment(side), GOFLAGS: "-mod=mod -buildvcs=false" };
  const { stdout, stderr } = await command("go", args, { cwd, env, timeoutMs: GO_TEST_MS_MAX + 60_000 });
  const log = join(tmpdir(), `fencedjob-conformance-${suite.name.replaceAll(/\W/g, "")}-${side.name}.log`);
  writeFileSync(log, `${stdout}\n${stderr}`);
  const outcomes = outcomesOf(stdout);
  if (outcomes.size === 0) throw new Error(`go test of ${suite.name} ran nothing: ${stderr.slice(-2_000)}`);
  return outcomes;
}

interface TestEvent {
  readonly Action: string;
  readonly Package?: string;
  readonly Test?: string;
}

/** A package that fails although none of its tests does (a crash, a race) is a check of its own. */
export function outcomesOf(json: string): Outcomes {
  const outcomes = new Map<string, string>();
  const failedPackages = new Set<string>();
  for (const line of json.split("\n")) {
    if (!line.startsWith("{")) continue;
    const { Action, Package = "", Test } = JSON.parse(line) as TestEvent;
    if (!["pass", "fail", "skip"].includes(Action)) continue;
    const name = Package.replace(/^github\.com\/(jackc|lib)\//, "");
    if (Test !== undefined) outcomes.set(`${name} ${withoutScratch(Test)}`, Action);
    else if (Action === "fail") failedPackages.add(name);
  }
  for (const name of failedPackages) {
    const told = [...outcomes].some(([check, outcome]) => outcome === "fail" && check.startsWith(`${name} `));
    if (!told) outcomes.set(`${name} (package)`, "fail");
  }
  return outcomes;
}

/** Names of tests with a temporary directory in them differ from run to run. */
const withoutScratch = (test: string): string => test.replaceAll(/\/tmp\/[^/]*\/\d+/g, "/tmp/…");
