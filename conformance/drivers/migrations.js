/**
 * Migration tools; see scenarios.md. Each makes a table, then an index concurrently, then a unique index concurrently, which
 * fails and leaves what PostgreSQL leaves.
 */
import "reflect-metadata";
import { join } from "node:path";
import knex from "knex";
import { runner } from "node-pg-migrate";
import pg from "pg";
import { Sequelize } from "sequelize";
import { DataSource } from "typeorm";
import { SequelizeStorage, Umzug } from "umzug";
import { address, failureOf, hearing, main, raiseFence, run, url } from "./scenario.js";

/** In order; only the first can be in a transaction. */
const steps = {
  one: (thing) => [`CREATE TABLE ${thing} AS SELECT 1 AS i FROM generate_series(1, 2)`, `DROP TABLE ${thing}`],
  two: (thing) => [`CREATE INDEX CONCURRENTLY ${thing}_two ON ${thing} (i)`, `DROP INDEX CONCURRENTLY ${thing}_two`],
  three: (thing) => [`CREATE UNIQUE INDEX CONCURRENTLY ${thing}_three ON ${thing} (i)`, "SELECT 1"],
};
const names = Object.keys(steps);

/** Each is opened, goes up to its nth migration, down by one, and says which it has done. */
const tools = {
  knex: async () => {
    const k = knex({ client: "pg", connection: address, pool: { min: 0, max: 2 } });
    const source = (n) => ({
      migrationSource: {
        getMigrations: async () => names.slice(0, n),
        getMigrationName: (name) => name,
        getMigration: async (name) => {
          const [up, down] = steps[name]("knex_thing");
          return { up: (db) => db.raw(up), down: (db) => db.raw(down), config: { transaction: name === "one" } };
        },
      },
    });
    return {
      up: (n) => k.migrate.latest(source(n)),
      down: () => k.migrate.down(source(2)),
      close: () => k.destroy(),
    };
  },
  "node-pg-migrate": async () => {
    const dbClient = new pg.Client(address);
    const heard = hearing(dbClient);
    await dbClient.connect();
    const config = { dbClient, dir: join(import.meta.dirname, "node-pg-migrations"), migrationsTable: "pgmigrations" };
    const done = async () => {
      const { rows } = await dbClient.query("SELECT to_regclass('pgmigrations') AS t");
      return rows[0].t ? (await dbClient.query("SELECT FROM pgmigrations")).rowCount : 0;
    };
    const migrate = async (direction, count) =>
      (await runner({ ...config, direction, count, log: () => {} })).map(({ name }) => name);
    return {
      up: (n) => heard(done().then((count) => migrate("up", n - count))),
      down: () => migrate("down", 1),
      close: () => dbClient.end(),
    };
  },
  umzug: async () => {
    const sequelize = new Sequelize(url, { logging: false, pool: { max: 2 } });
    const migrations = names.map((name) => {
      const [up, down] = steps[name]("umzug_thing");
      return { name, up: () => sequelize.query(up), down: () => sequelize.query(down) };
    });
    const storage = new SequelizeStorage({ sequelize });
    const umzug = new Umzug({ migrations, storage, logger: undefined });
    const namesOf = (done) => done.map(({ name }) => name);
    return {
      up: async (n) => namesOf(await umzug.up({ to: names[n - 1] })),
      down: async () => namesOf(await umzug.down()),
      close: () => sequelize.close(),
    };
  },
  typeorm: async () => {
    const migrations = names.map((name, i) => {
      const [up, down] = steps[name]("typeorm_thing");
      // It takes the order from the digits of the class's name.
      const Migration = {
        [`Step${1_700_000_000_000 + i}`]: class {
          name = `${name}${1_700_000_000_000 + i}`;
          transaction = name === "one";
          up = (queryRunner) => queryRunner.query(up);
          down = (queryRunner) => queryRunner.query(down);
        },
      };
      return Object.values(Migration)[0];
    });
    const options = { type: "postgres", ...address, username: address.user, migrationsTableName: "typeorm_migrations" };
    const source = new DataSource({ ...options, migrations, migrationsTransactionMode: "each" });
    await source.initialize();
    const all = source.migrations;
    const first = (n) => {
      source.migrations = all.slice(0, n);
    };
    return {
      up: async (n) => {
        first(n);
        return (await source.runMigrations()).map(({ name }) => name);
      },
      down: async () => {
        first(2);
        await source.undoLastMigration();
      },
      close: () => source.destroy(),
    };
  },
};

const indexes = async (like) => {
  const client = new pg.Client(address);
  await client.connect();
  const { rows } = await client.query(
    "SELECT indexrelid::regclass::text AS index, indisvalid AS valid FROM pg_index WHERE indexrelid::regclass::text LIKE $1 ORDER BY 1",
    [`${like}%`],
  );
  await client.end();
  return rows;
};

const thingOf = { knex: "knex_thing", "node-pg-migrate": "npm_thing", umzug: "umzug_thing", typeorm: "typeorm_thing" };

const scenarios = Object.fromEntries(
  Object.entries(tools).flatMap(([name, open]) => {
    let tool;
    return Object.entries({
      "up, with a concurrent index": async () => {
        tool = await open();
        return [await tool.up(2), await indexes(thingOf[name])];
      },
      "nothing to do": () => tool.up(2),
      "a concurrent index that fails": async () => [await failureOf(tool.up(3)), await indexes(thingOf[name])],
      "down, with a concurrent index": async () => {
        const down = await tool.down();
        const left = await indexes(thingOf[name]);
        await tool.close();
        return [down, left];
      },
    }).map(([what, work]) => [`${name}: ${what}`, work]);
  }),
);

/** Open before the successor raises, and opened after it: neither may begin its second migration. */
async function stale() {
  process.on("uncaughtException", () => {});
  const opened = {};
  for (const [name, open] of Object.entries(tools)) {
    opened[name] = await open();
    await opened[name].up(1);
  }
  await raiseFence();
  for (const [name, open] of Object.entries(tools)) {
    await run(`${name}: a stale generation`, async () => ["committed", await opened[name].up(2)]);
    await run(`${name}: a new connection of a stale generation`, async () => ["committed", await (await open()).up(2)]);
  }
}

await main(scenarios, stale);
