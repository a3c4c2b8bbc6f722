/** Scenarios of Sequelize; its migrations, by umzug, are in migrations.js. */
import { DataTypes, Sequelize, Transaction } from "sequelize";
import { failureOf, url } from "../scenario.js";

const q = new Sequelize(url, { logging: false, pool: { max: 3 } });
const columns = { id: { type: DataTypes.INTEGER, primaryKey: true }, v: DataTypes.TEXT, n: DataTypes.INTEGER };
const Item = q.define("item", columns, { timestamps: false });
const all = () => Item.findAll({ order: ["id"], raw: true });
const stop = () => {
  throw new Error("stop");
};

export const scenarios = {
  sync: async () => {
    await q.sync();
    await q.sync({ alter: true });
    return (await q.getQueryInterface().showAllTables()).length;
  },
  "create, bulk, update, destroy": async () => {
    await Item.create({ id: 1, v: "a", n: 0 });
    const many = await Item.bulkCreate(Array.from({ length: 100 }, (_, i) => ({ id: 10 + i, v: "bulk" })));
    const [updated] = await Item.update({ v: "z" }, { where: { id: [10, 11] } });
    const destroyed = await Item.destroy({ where: { v: "bulk" } });
    return [many.length, updated, destroyed, await all()];
  },
  upsert: async () => {
    const [made, isNew] = await Item.upsert({ id: 1, v: "up" });
    await Item.bulkCreate([{ id: 1, v: "again" }], { updateOnDuplicate: ["v"] });
    return [made.v, isNew, await all()];
  },
  "find or create": async () => {
    const twice = [];
    for (const v of ["first", "second"]) {
      const [row, made] = await Item.findOrCreate({ where: { id: 7 }, defaults: { v } });
      twice.push([row.v, made]);
    }
    return twice;
  },
  "transaction, rolled back": async () => [
    await failureOf(
      q.transaction(async (transaction) => {
        await Item.create({ id: 20, v: "never" }, { transaction });
        stop();
      }),
    ),
    await all(),
  ],
  "nested transactions": async () => {
    const t = await q.transaction();
    await Item.create({ id: 21, v: "outer" }, { transaction: t });
    const failed = await failureOf(
      q.transaction({ transaction: t }, (inner) => Item.create({ id: 21, v: "dup" }, { transaction: inner })),
    );
    await q.transaction({ transaction: t }, (inner) => Item.create({ id: 22, v: "inner" }, { transaction: inner }));
    await t.commit();
    return [failed, await all()];
  },
  "isolation levels": async () => {
    const shown = [];
    for (const isolationLevel of Object.values(Transaction.ISOLATION_LEVELS)) {
      await q.transaction({ isolationLevel }, async (transaction) => {
        await Item.increment("n", { where: { id: 1 }, transaction });
        shown.push((await q.query("SHOW transaction_isolation", { transaction }))[0]);
      });
    }
    return [shown, (await Item.findByPk(1)).n];
  },
  "read-only": () => q.transaction({ readOnly: true }, (transaction) => Item.create({ id: 30 }, { transaction })),
  "raw, with replacements and binds": async () => [
    (await q.query("SELECT :a::int + 1 AS a", { replacements: { a: 1 } }))[0],
    (await q.query("INSERT INTO items VALUES ($1, $2) RETURNING *", { bind: [31, "raw"] }))[0],
  ],
  "errors have their SQLSTATE": async () => [
    await failureOf(Item.create({ id: 1 })),
    await failureOf(q.query("SELECT 1/0")),
    await failureOf(q.query("SELECT nosuch")),
  ],
  "a pool, with row locks": async () => {
    const work = Array.from({ length: 12 }, (_, i) =>
      q.transaction(async (transaction) => {
        const row = await Item.findOne({ where: { id: 1 }, lock: transaction.LOCK.UPDATE, transaction });
        await row.update({ n: row.n + 1 }, { transaction });
        return i;
      }),
    );
    return [await Promise.all(work), (await Item.findByPk(1)).n];
  },
};

export const commit = (inside) =>
  q.transaction(async (transaction) => {
    await q.query("INSERT INTO stale VALUES (1)", { transaction });
    await inside();
  });
export const write = () => q.query("INSERT INTO stale VALUES (2)");
