/** The suites of the run, each on one server version. */
import type { PostgresVersion } from "../testing/postgres.ts";
import { type Arena, startArena } from "./arena.ts";
import { CORPUS_DATABASE, corpusMissing, firstDifference, runCorpus } from "./corpus.ts";
import { explain } from "./differences.ts";
import { type Driver, drivers, runDriver } from "./drivers.ts";
import { goMissing, goSuites, runGoSuite } from "./gosuites.ts";
import { pgbenchMissing, runPgbench } from "./pgbench.ts";
import { compare, type Outcomes, type SuiteResult } from "./results.ts";

export interface Suite {
  readonly name: string;
  readonly what: string;
  /** Why it cannot run on this machine; null when it can. */
  missing(): string | null;
  run(postgres: PostgresVersion): Promise<SuiteResult>;
}

interface Sides {
  readonly direct: Outcomes;
  readonly proxied: Outcomes;
}

async function inArena(
  postgres: PostgresVersion,
  names: { readonly database: string; readonly role: string },
  run: (arena: Arena) => Promise<Sides>,
): Promise<Sides> {
  const arena = await startArena({ version: postgres, ...names });
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
    const { direct, proxied } = await runGoSuite(suite, postgres);
    return compare({ suite: suite.name, postgres }, direct, proxied, explain);
  },
});

const corpus: Suite = {
  name: "corpus",
  what: "psql's whole output of each script of `conformance/corpus/`, from the same empty database",
  missing: corpusMissing,
  run: async (postgres) => {
    const { direct, proxied } = await inArena(postgres, CORPUS_DATABASE, runCorpus);
    const result = compare({ suite: "corpus", postgres }, direct, proxied, explain, () => "output");
    const shortened = result.differences.map((one) => ({ ...one, ...firstDifference(one.direct, one.proxied) }));
    return { ...result, differences: shortened };
  },
};

const pgbench: Suite = {
  name: "pgbench",
  what: "pgbench scripts in each of its protocols, pipelines included: transactions done, failures, and the rows left behind",
  missing: pgbenchMissing,
  run: async (postgres) => {
    const { direct, proxied } = await inArena(postgres, { database: "bench", role: "bench_app" }, runPgbench);
    return compare({ suite: "pgbench", postgres }, direct, proxied, explain, () => "run");
  },
};

const driverSuite = (driver: Driver): Suite => ({
  name: driver.name,
  what: `scenarios of ${driver.what}; the last ones as a generation that is over`,
  missing: () => driver.missing(),
  run: async (postgres) => {
    const run = (arena: Arena): Promise<Sides> => runDriver(driver, arena);
    const { direct, proxied } = await inArena(postgres, { database: "driver", role: "driver_app" }, run);
    return compare({ suite: driver.name, postgres }, direct, proxied, explain, () => "scenario");
  },
});

export const suites: readonly Suite[] = [...goSuites.map(goSuite), pgbench, corpus, ...drivers.map(driverSuite)];
