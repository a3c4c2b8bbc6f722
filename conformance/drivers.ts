/** The programs of `drivers/`: what each needs, how it is prepared, and by which way it connects. */
import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { cacheDir } from "../e2e/cluster/paths.ts";
import type { Way } from "./arena.ts";
import { endsWell, inPath } from "./command.ts";

export interface Driver {
  readonly name: string;
  readonly what: string;
  /** TCP if absent. */
  readonly way?: Way;
  /** Without PgBouncer for comparison. */
  readonly unpooled?: boolean;
  /** A query for `n`: what a generation that is over has left behind. The rows of table `stale` if absent. */
  readonly leftBehind?: string;
  /** Why it cannot run here; null when it can. */
  missing(): string | null;
  /** Prepares `directory`, a copy of `drivers/`, and says what to run. */
  prepare(directory: string): Promise<Program>;
}

export interface Program {
  readonly program: string;
  readonly args: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

export const DRIVERS = join(import.meta.dirname, "drivers");
const PREPARE_MS_MAX = 400_000;
const JDBC_JAR = "/usr/share/java/postgresql.jar";
const PYTHON = "/usr/bin/python3";
const DEBIAN_PYTHON = "/usr/lib/python3/dist-packages";
/** Carries libpq of its version. */
const LIBPQ_18 = join(import.meta.dirname, "..", "node_modules", "pg18", "native", "lib");

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
    await endsWell("npm", ["ci", "--no-audit", "--no-fund", "--ignore-scripts"], at(home));
  }
  return join(home, "node_modules");
}

const go = (name: string, folder: string, what: string): Driver => ({
  name,
  what,
  missing: () => (inPath("go") ? null : "Go is not installed"),
  prepare: async (directory) => {
    const program = join(directory, `${folder}-scenarios`);
    await endsWell("go", ["build", "-o", program, `./${folder}`], at(join(directory, "go")));
    return { program, args: [] };
  },
});

/** Debian's packages link dynamically to whatever libpq is found first; its PgBouncer speaks protocol 3.0 only. */
const withLibpq18 = (driver: Driver): Driver => ({
  ...driver,
  unpooled: true,
  name: `${driver.name}, protocol 3.2`,
  what: `${driver.what}, with libpq 18 and max_protocol_version=latest`,
  missing: () => driver.missing() ?? (existsSync(join(LIBPQ_18, "libpq.so.5")) ? null : "run npm ci"),
  prepare: async (directory) => ({
    ...(await driver.prepare(directory)),
    env: { LD_LIBRARY_PATH: LIBPQ_18, PGMAXPROTOCOLVERSION: "latest" },
  }),
});

const by = (way: Way, driver: Driver): Driver => ({
  ...driver,
  unpooled: true,
  way,
  name: `${driver.name}, ${way}`,
  what: `${driver.what}; over ${way === "TLS" ? "TLS, with sslmode=verify-full" : "a Unix socket"}`,
});

const psycopg2 = python("psycopg2", "psycopg2", "Debian's python3-psycopg2 over libpq");
const psycopg = python("psycopg 3", "psycopg", "Debian's python3-psycopg over libpq, pipelines included");
const nodePostgres = javascript("node-postgres", "nodepostgres.js", "pg with pg-cursor and pg-copy-streams");
const postgresJs = javascript("postgres.js", "postgresjs.js", "postgres.js, which pipelines by itself");
const pgx = go("pgx scenarios", "pgx", "pgx v5, batches, pipelines and COPY included");
const jdbc: Driver = {
  name: "JDBC",
  what: "Debian's libpostgresql-jdbc-java",
  missing: () => (existsSync(JDBC_JAR) && inPath("javac") ? null : "libpostgresql-jdbc-java or a JDK is not installed"),
  prepare: async (directory) => {
    await endsWell("javac", ["-cp", JDBC_JAR, "-d", directory, join(directory, "Jdbc.java")], at(directory));
    return { program: "java", args: ["-Xshare:auto", "-cp", `${JDBC_JAR}:${directory}`, "Jdbc"] };
  },
};

/** Its second migration, a concurrent index, must have left neither a row in a tool's table nor half an index. */
const leftByMigrations = (...versions: readonly string[]): string =>
  `SELECT ${[...versions, "pg_index WHERE NOT indisvalid"].map((from) => `(SELECT count(*) FROM ${from})`).join(" + ")} AS n`;

export const drivers: readonly Driver[] = [
  psycopg2,
  psycopg,
  nodePostgres,
  postgresJs,
  javascript("ORMs", "orms.js", "Drizzle, Knex, Sequelize and TypeORM over node-postgres"),
  {
    ...javascript(
      "migrations",
      "migrations.js",
      "the migration tools of Knex, node-pg-migrate, umzug (Sequelize) and TypeORM, each with a concurrent index",
    ),
    leftBehind: leftByMigrations(
      "knex_migrations WHERE name = 'two'",
      "pgmigrations WHERE name = '2_two'",
      `"SequelizeMeta" WHERE name = 'two'`,
      "typeorm_migrations WHERE name LIKE 'two%'",
    ),
  },
  {
    ...go("golang-migrate", "migrate", "golang-migrate with its pgx5 and postgres drivers, with a concurrent index"),
    leftBehind: leftByMigrations("pgx5_migrations WHERE version = 2", "postgres_migrations WHERE version = 2"),
  },
  pgx,
  go("lib/pq scenarios", "libpq", "lib/pq over database/sql"),
  jdbc,
  withLibpq18(psycopg),
  ...[psycopg, nodePostgres, postgresJs, pgx, jdbc].map((driver) => by("TLS", driver)),
  ...[psycopg2, psycopg, nodePostgres, pgx].map((driver) => by("Unix socket", driver)),
];

const at = (cwd: string) => ({ cwd, timeoutMs: PREPARE_MS_MAX, inherit: true });
