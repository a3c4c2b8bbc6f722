/** The suites of the run, each on one server version. */
import type { PostgresVersion } from "../testing/postgres.ts";
import { type Arena, type ArenaOptions, startArena } from "./arena.ts";
import { CORPUS_DATABASE, corpusMissing, firstDifference, runCorpus } from "./corpus.ts";
import { explain } from "./differences.ts";
import { type Driver, drivers } from "./drivers.ts";
import { goMissing, goSuites, runGoSuite } from "./gosuites.ts";
import { pgbenchMissing, runPgbench } from "./pgbench.ts";
import { compare, type Sides, type SuiteResult } from "./results.ts";
import { runDriver } from "./scenarios.ts";

export interface Suite {
  readonly name: string;
  readonly what: string;
  /** Why it cannot run on this machine; null when it can. */
  missing(): string | null;
  run(postgres: PostgresVersion): Promise<SuiteResult>;
}

async function inArena(options: ArenaOptions, run: (arena: Arena) => Promise<Sides>): Promise<Sides> {
  const arena = await startArena(options);
  try {
    return await run(arena);
  } finally {
    await arena.stop();
  }
}

const goSuite = (suite: (typeof goSuites)[number]): Suite => ({
  name: suite.name,
  what: `the test suite of ${suite.module} ${suite.moduleVersion}, as its Go module carries it, test by test`,
  missing: goMissing,
  run: async (postgres) => {
    return compare({ suite: suite.name, postgres }, await runGoSuite(suite, postgres), { explain });
  },
});

const corpus: Suite = {
  name: "corpus",
  what: "psql's whole output of each script of `conformance/corpus/`, from the same empty database",
  missing: corpusMissing,
  run: async (postgres) => {
    const sides = await inArena({ version: postgres, ...CORPUS_DATABASE, pooler: true }, runCorpus);
    return compare({ suite: "corpus", postgres }, sides, { explain, kind: () => "output", shorten: firstDifference });
  },
};

const pgbench: Suite = {
  name: "pgbench",
  what: "pgbench scripts in each of its protocols, pipelines included: transactions done, failures, and the rows left behind",
  missing: pgbenchMissing,
  run: async (postgres) => {
    const options = { version: postgres, database: "bench", role: "bench_app", pooler: true };
    return compare({ suite: "pgbench", postgres }, await inArena(options, runPgbench), { explain, kind: () => "run" });
  },
};

const driverSuite = (driver: Driver): Suite => ({
  name: driver.name,
  what: `scenarios of ${driver.what}; the last ones as a generation that is over`,
  missing: () => driver.missing(),
  run: async (postgres) => {
    const { way = "TCP", unpooled = false } = driver;
    const options = { version: postgres, database: "driver", role: "driver_app", way, pooler: !unpooled };
    const sides = await inArena(options, (arena) => runDriver(driver, arena));
    return compare({ suite: driver.name, postgres }, sides, { explain, kind: () => "scenario" });
  },
});

export const suites: readonly Suite[] = [...goSuites.map(goSuite), pgbench, corpus, ...drivers.map(driverSuite)];
