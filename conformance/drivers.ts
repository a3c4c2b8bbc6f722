/**
 * The scenarios of each driver: one program per driver in `drivers/`, run direct and through the proxy, and once more as a
 * generation that a successor ends in the middle of its transaction. What they print is compared scenario by scenario.
 */
import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { cacheDir } from "../e2e/cluster/paths.ts";
import type { Arena, Side } from "./arena.ts";
import { command, type Ended } from "./command.ts";
import type { Outcomes } from "./results.ts";

export interface Driver {
  readonly name: string;
  readonly what: string;
  /** Why it cannot run here; null when it can. */
  missing(): string | null;
  /** Prepares `directory`, a copy of `drivers/`, and says what to run. */
  prepare(directory: string): Promise<{ readonly program: string; readonly args: readonly string[] }>;
}

const DRIVERS = join(import.meta.dirname, "drivers");
const RUN_MS_MAX = 120_000;
const PREPARE_MS_MAX = 240_000;
const WANTED = "(wanted: refused with LF001)";
const JDBC_JAR = "/usr/share/java/postgresql.jar";
const PYTHON = "/usr/bin/python3";
const DEBIAN_PYTHON = "/usr/lib/python3/dist-packages";

const python = (name: string, module: string, what: string): Driver => ({
  name,
  what,
  missing: () =>
    existsSync(join(DEBIAN_PYTHON, module)) ? null : `Debian's package python3-${module} is not installed`,
  prepare: async (directory) => ({ program: PYTHON, args: [join(directory, `${module}-scenarios.py`)] }),
});

const javascript = (name: string, file: string, what: string): Driver => ({
  name,
  what,
  missing: () => null,
  prepare: async (directory) => {
    symlinkSync(await nodeModules(), join(directory, "node_modules"));
    return { program: process.execPath, args: [join(directory, file)] };
  },
});

/** The packages of `drivers/package-lock.json`, installed once into the cache. */
async function nodeModules(): Promise<string> {
  const lock = readFileSync(join(DRIVERS, "package-lock.json"));
  const home = join(cacheDir(), `conformance-${createHash("sha256").update(lock).digest("hex").slice(0, 12)}`);
  const installed = join(home, "node_modules", ".package-lock.json");
  if (!existsSync(installed)) {
    mkdirSync(home, { recursive: true });
    for (const file of ["package.json", "package-lock.json"]) cpSync(join(DRIVERS, file), join(home, file));
    await must(command("npm", ["ci", "--no-audit", "--no-fund", "--ignore-scripts"], at(home)));
  }
  return join(home, "node_modules");
}

const go = (name: string, folder: string, what: string): Driver => ({
  name,
  what,
  missing: () => (inPath("go") ? null : "Go is not installed"),
  prepare: async (directory) => {
    const program = join(directory, `${folder}-scenarios`);
    await must(command("go", ["build", "-o", program, `./${folder}`], at(join(directory, "go"))));
    return { program, args: [] };
  },
});

export const drivers: readonly Driver[] = [
  python("psycopg2", "psycopg2", "Debian's python3-psycopg2 over libpq"),
  python("psycopg 3", "psycopg", "Debian's python3-psycopg over libpq, pipelines included"),
  javascript("node-postgres", "nodepostgres.js", "pg with pg-cursor and pg-copy-streams"),
  javascript("postgres.js", "postgresjs.js", "postgres.js, which pipelines by itself"),
  javascript("ORMs", "orms.js", "Drizzle, Knex, Sequelize and TypeORM over node-postgres"),
  go("pgx scenarios", "pgx", "pgx v5, batches, pipelines and COPY included"),
  go("lib/pq scenarios", "libpq", "lib/pq over database/sql"),
  {
    name: "JDBC",
    what: "Debian's libpostgresql-jdbc-java",
    missing: () =>
      existsSync(JDBC_JAR) && inPath("javac") ? null : "libpostgresql-jdbc-java or a JDK is not installed",
    prepare: async (directory) => {
      await must(command("javac", ["-cp", JDBC_JAR, "-d", directory, join(directory, "Jdbc.java")], at(directory)));
      return { program: "java", args: ["-Xshare:auto", "-cp", `${JDBC_JAR}:${directory}`, "Jdbc"] };
    },
  },
];

const at = (cwd: string) => ({ cwd, timeoutMs: PREPARE_MS_MAX, inherit: true });

const inPath = (program: string): boolean =>
  (process.env.PATH ?? "").split(":").some((dir) => existsSync(join(dir, program)));

async function must(running: Promise<Ended>): Promise<void> {
  const { code, stdout, stderr } = await running;
  if (code !== 0) throw new Error(`preparing a driver failed:\n${stdout.slice(-2_000)}${stderr.slice(-2_000)}`);
}

export async function runDriver(driver: Driver, arena: Arena): Promise<{ direct: Outcomes; proxied: Outcomes }> {
  const directory = mkdtempSync(join(tmpdir(), "fencedjob-driver-"));
  try {
    cpSync(DRIVERS, directory, { recursive: true });
    const { program, args } = await driver.prepare(directory);
    const sides: Map<string, string>[] = [];
    for (const side of [arena.direct, arena.proxied]) {
      await arena.reset();
      const { outcomes, ended } = await runProgram(program, args, side, async () => "");
      if (ended.code !== 0) outcomes.set("(the program's end)", `exit ${ended.code}: ${ended.stderr.slice(-400)}`);
      sides.push(outcomes);
    }
    const [direct = new Map<string, string>(), proxied = new Map<string, string>()] = sides;
    // Direct has no generation that could end: what is wanted stands in its place.
    for (const [scenario, outcome] of await runStale(program, args, arena)) {
      // Under a name of its own, so that no reason covers it.
      const check = /committed/.test(outcome) ? `${scenario}: it committed` : scenario;
      direct.set(check, WANTED);
      proxied.set(check, /\bLF001\b/.test(outcome) && check === scenario ? WANTED : outcome);
    }
    return { direct, proxied };
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

async function runStale(program: string, args: readonly string[], arena: Arena): Promise<Outcomes> {
  const { outcomes, ended } = await runProgram(program, [...args, "stale"], arena.proxied, async () => {
    await arena.takeOver();
    return "raised";
  });
  await arena.succeed();
  if (outcomes.size === 0) outcomes.set("(stale)", `exit ${ended.code}: ${ended.stderr.slice(-400)}`);
  const { rows } = await arena.admin.query("SELECT count(*)::int AS n FROM stale");
  outcomes.set("rows that a stale generation left", rows[0].n === 0 ? "LF001" : `${rows[0].n} rows`);
  return outcomes;
}

async function runProgram(
  program: string,
  args: readonly string[],
  side: Side,
  raise: () => Promise<string>,
): Promise<{ outcomes: Map<string, string>; ended: Ended }> {
  const ended = await command(program, args, {
    env: {
      PGHOST: side.host,
      PGPORT: String(side.port),
      PGUSER: side.user,
      PGDATABASE: side.database,
      PGSSLMODE: "disable",
    },
    timeoutMs: RUN_MS_MAX,
    answer: async (line) => (line.startsWith('{"raise"') ? await raise() : undefined),
  });
  const outcomes = new Map<string, string>();
  for (const line of ended.stdout.split("\n")) {
    if (!line.startsWith("{")) continue;
    const { scenario, outcome } = JSON.parse(line) as { scenario?: string; outcome?: string };
    if (scenario !== undefined) outcomes.set(scenario, outcome ?? "");
  }
  return { outcomes, ended };
}
