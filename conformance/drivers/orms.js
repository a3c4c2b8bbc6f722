/** Scenarios of Drizzle, Knex, Sequelize and TypeORM, one after the other; see scenarios.md. */
import "reflect-metadata";
import { sql as dsql, eq } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import { integer, pgTable, text } from "drizzle-orm/pg-core";
import knex from "knex";
import pg from "pg";
import { DataTypes, Sequelize, Transaction } from "sequelize";
import { DataSource, EntitySchema } from "typeorm";
import { address, failureOf, main, raiseFence, run, url } from "./scenario.js";

const quiet = (pool) => pool.on("error", () => {});

const pool = quiet(new pg.Pool({ ...address, max: 3 }));
const d = drizzle(pool);
const things = pgTable("drizzle_thing", { id: integer("id").primaryKey(), v: text("v") });
const k = knex({ client: "pg", connection: { ...address }, pool: { min: 0, max: 3 } });
const q = new Sequelize(url, { logging: false, pool: { max: 3 } });
const Item = q.define(
  "item",
  { id: { type: DataTypes.INTEGER, primaryKey: true }, v: DataTypes.TEXT },
  { timestamps: false },
);
const Row = new EntitySchema({
  name: "row",
  columns: { id: { type: Number, primary: true }, v: { type: String, nullable: true } },
});
const source = new DataSource({
  type: "postgres",
  ...address,
  username: address.user,
  entities: [Row],
  synchronize: true,
});
const stop = () => {
  throw new Error("stop");
};

const scenarios = {
  "drizzle: insert, upsert, update, delete": async () => {
    await d.execute(dsql`CREATE TABLE drizzle_thing (id int primary key, v text)`);
    const inserted = await d
      .insert(things)
      .values([
        { id: 1, v: "a" },
        { id: 2, v: "b" },
      ])
      .returning();
    await d
      .insert(things)
      .values({ id: 1, v: "z" })
      .onConflictDoUpdate({ target: things.id, set: { v: "up" } });
    await d.update(things).set({ v: "c" }).where(eq(things.id, 2));
    await d.delete(things).where(eq(things.id, 1));
    return [inserted, await d.select().from(things)];
  },
  "drizzle: transaction, nested, rolled back": async () => {
    const failed = await failureOf(
      d.transaction(async (tx) => {
        await tx.insert(things).values({ id: 3, v: "outer" });
        await failureOf(tx.transaction(async (sp) => sp.insert(things).values({ id: 2, v: "dup" })));
        await tx.insert(things).values({ id: 4, v: "after" });
      }),
    );
    const stopped = await failureOf(
      d.transaction(async (tx) => {
        await tx.insert(things).values({ id: 5, v: "never" });
        tx.rollback();
      }),
    );
    return [failed, stopped, await d.select().from(things).orderBy(things.id)];
  },
  "drizzle: isolation and read-only": async () => [
    (await d.transaction((tx) => tx.execute(dsql`SHOW transaction_isolation`), { isolationLevel: "serializable" }))
      .rows,
    await failureOf(d.transaction((tx) => tx.insert(things).values({ id: 9 }), { accessMode: "read only" })),
  ],
  "drizzle: prepared": async () => {
    const one = d
      .select()
      .from(things)
      .where(eq(things.id, dsql.placeholder("id")))
      .prepare("one_thing");
    return [await one.execute({ id: 2 }), await one.execute({ id: 3 })];
  },
  "knex: schema, insert, batch, transaction": async () => {
    await k.schema.createTable("knex_thing", (t) => {
      t.increments("id");
      t.text("v").unique();
    });
    await k("knex_thing").insert({ v: "a" });
    await k.batchInsert("knex_thing", [{ v: "b" }, { v: "c" }, { v: "d" }], 2);
    const failed = await failureOf(
      k.transaction(async (trx) => {
        await trx("knex_thing").insert({ v: "never" });
        stop();
      }),
    );
    await k.transaction((trx) => trx("knex_thing").insert({ v: "kept" }), { isolationLevel: "serializable" });
    return [failed, await k("knex_thing").orderBy("v").pluck("v")];
  },
  "knex: savepoint, read-only, error": async () => [
    await k.transaction(async (trx) => {
      const inner = await failureOf(trx.transaction((sp) => sp("knex_thing").insert({ v: "a" })));
      await trx("knex_thing").insert({ v: "outer" });
      return inner;
    }),
    await failureOf(k.transaction((trx) => trx("knex_thing").insert({ v: "ro" }), { readOnly: true })),
    await failureOf(k("nosuch").select()),
  ],
  "knex: stream and migrations": async () => {
    const seen = [];
    for await (const row of k.select(k.raw("generate_series(1, 5) AS i")).stream()) seen.push(row.i);
    const migration = {
      getMigrations: async () => ["one", "two"],
      getMigrationName: (name) => name,
      getMigration: async (name) => ({
        up: (db) =>
          db.raw(name === "one" ? "CREATE TABLE migrated (i int)" : "CREATE INDEX CONCURRENTLY mi ON migrated (i)"),
        down: async () => {},
        config: { transaction: name === "one" },
      }),
    };
    return [seen, await k.migrate.latest({ migrationSource: migration }), await k("migrated").count()];
  },
  "sequelize: sync, create, bulk, upsert, find": async () => {
    await q.sync();
    await Item.create({ id: 1, v: "a" });
    await Item.bulkCreate([
      { id: 2, v: "b" },
      { id: 3, v: "c" },
    ]);
    await Item.upsert({ id: 1, v: "up" });
    const [count] = await Item.update({ v: "z" }, { where: { id: 3 } });
    await Item.destroy({ where: { id: 2 } });
    return [
      count,
      await Item.findAll({ order: ["id"], raw: true }),
      await Item.findOrCreate({ where: { id: 7 }, defaults: { v: "f" } }).then(([, made]) => made),
    ];
  },
  "sequelize: managed and unmanaged transactions": async () => {
    const failed = await failureOf(
      q.transaction(async (transaction) => {
        await Item.create({ id: 10, v: "never" }, { transaction });
        stop();
      }),
    );
    const t = await q.transaction({ isolationLevel: Transaction.ISOLATION_LEVELS.SERIALIZABLE });
    await Item.create({ id: 11, v: "kept" }, { transaction: t });
    const nested = await failureOf(
      q.transaction({ transaction: t }, (inner) => Item.create({ id: 12, v: "nested" }, { transaction: inner })),
    );
    await t.commit();
    return [failed, nested && "nested", await Item.count(), await failureOf(Item.create({ id: 11 }))];
  },
  "sequelize: read-only and locks": async () => [
    await failureOf(q.transaction({ readOnly: true }, (transaction) => Item.create({ id: 20 }, { transaction }))),
    await q.transaction((transaction) =>
      Item.findOne({ where: { id: 11 }, lock: transaction.LOCK.UPDATE, transaction, raw: true }),
    ),
  ],
  "typeorm: synchronize, save, find, remove": async () => {
    await source.initialize();
    const repository = source.getRepository("row");
    await repository.save([
      { id: 1, v: "a" },
      { id: 2, v: "b" },
    ]);
    await repository.save({ id: 1, v: "changed" });
    await repository.upsert({ id: 3, v: "up" }, ["id"]);
    await repository.delete({ id: 2 });
    return [await repository.find({ order: { id: "ASC" } }), await failureOf(repository.insert({ id: 1 }))];
  },
  "typeorm: transactions, nested, query runner": async () => {
    const failed = await failureOf(
      source.transaction(async (manager) => {
        await manager.insert("row", { id: 10, v: "never" });
        stop();
      }),
    );
    await source.transaction("SERIALIZABLE", async (manager) => {
      await manager.insert("row", { id: 11, v: "outer" });
      await failureOf(manager.transaction((inner) => inner.insert("row", { id: 11, v: "dup" })));
      await manager.insert("row", { id: 12, v: "after" });
    });
    const runner = source.createQueryRunner();
    await runner.startTransaction();
    await runner.query("INSERT INTO row VALUES ($1, $2)", [13, "runner"]);
    await runner.rollbackTransaction();
    await runner.release();
    return [failed, await source.getRepository("row").find({ order: { id: "ASC" } })];
  },
};

/** Each in a transaction when its generation ends; none of them may come back as a success. */
async function stale() {
  // node-postgres tells the end of a connection as an event too; not every ORM listens while a transaction is open.
  process.on("uncaughtException", () => {});
  await d.execute(dsql`CREATE TABLE IF NOT EXISTS stale (i int)`);
  await source.initialize();
  const raised = [];
  let waiting;
  const allIn = new Promise((resolve) => {
    waiting = resolve;
  });
  let over;
  const isOver = new Promise((resolve) => {
    over = resolve;
  });
  const inside = async (name) => {
    raised.push(name);
    if (raised.length === 4) waiting();
    await isOver;
  };
  const insert = "INSERT INTO stale VALUES (1)";
  const commits = {
    drizzle: d.transaction(async (tx) => {
      await tx.execute(dsql.raw(insert));
      await inside("drizzle");
    }),
    knex: k.transaction(async (trx) => {
      await trx.raw(insert);
      await inside("knex");
    }),
    sequelize: q.transaction(async (transaction) => {
      await q.query(insert, { transaction });
      await inside("sequelize");
    }),
    typeorm: source.transaction(async (manager) => {
      await manager.query(insert);
      await inside("typeorm");
    }),
  };
  await allIn;
  const outcomes = Object.entries(commits).map(([name, promise]) => [
    name,
    promise.then(
      () => "committed",
      (error) => ({ error }),
    ),
  ]);
  await raiseFence();
  over();
  for (const [name, outcome] of outcomes) {
    await run(`${name}: commit of a stale generation`, async () => {
      const end = await outcome;
      if (end.error) throw end.error;
      return end;
    });
  }
}

await main(scenarios, stale);
