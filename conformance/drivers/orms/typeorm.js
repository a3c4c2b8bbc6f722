/** Scenarios of TypeORM; its migrations are in migrations.js. */
import "reflect-metadata";
import { DataSource, EntitySchema } from "typeorm";
import { address, failureOf } from "../scenario.js";

const Row = new EntitySchema({
  name: "row",
  columns: {
    id: { type: Number, primary: true },
    v: { type: String, nullable: true },
    n: { type: Number, default: 0 },
  },
});
const options = { type: "postgres", ...address, username: address.user, poolSize: 3, entities: [Row] };
const source = new DataSource(options);
const opened = () => (source.isInitialized ? source : source.initialize());
const repository = () => source.getRepository("row");
const all = () => repository().find({ order: { id: "ASC" } });
const stop = () => {
  throw new Error("stop");
};

export const scenarios = {
  synchronize: async () => {
    await opened();
    await source.synchronize();
    const again = await source.driver.createSchemaBuilder().log();
    return again.upQueries.map(({ query }) => query);
  },
  "save, bulk insert, update, delete": async () => {
    await repository().save([
      { id: 1, v: "a" },
      { id: 2, v: "b" },
    ]);
    await repository().save({ id: 1, v: "changed" });
    const bulk = await repository().insert(Array.from({ length: 100 }, (_, i) => ({ id: 10 + i, v: "bulk" })));
    const updated = await repository().update({ id: 2 }, { v: "z" });
    const deleted = await repository().delete({ v: "bulk" });
    return [bulk.identifiers.length, updated.affected, deleted.affected, await all()];
  },
  upsert: async () => {
    await repository().upsert({ id: 1, v: "up" }, ["id"]);
    await repository().upsert(
      [
        { id: 1, v: "again" },
        { id: 3, v: "new" },
      ],
      { conflictPaths: ["id"] },
    );
    return all();
  },
  "transaction, rolled back": async () => [
    await failureOf(
      source.transaction(async (manager) => {
        await manager.insert("row", { id: 20, v: "never" });
        stop();
      }),
    ),
    await all(),
  ],
  "nested transactions": async () => {
    let failed;
    await source.transaction(async (manager) => {
      await manager.insert("row", { id: 21, v: "outer" });
      failed = await failureOf(manager.transaction((inner) => inner.insert("row", { id: 21, v: "dup" })));
      await manager.transaction((inner) => inner.insert("row", { id: 22, v: "inner" }));
    });
    return [failed, await all()];
  },
  "isolation levels": async () => {
    const shown = [];
    for (const level of ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]) {
      await source.transaction(level, async (manager) => {
        await manager.increment("row", { id: 1 }, "n", 1);
        shown.push(await manager.query("SHOW transaction_isolation"));
      });
    }
    return [shown, (await repository().findOneBy({ id: 1 })).n];
  },
  "read-only": () =>
    source.transaction(async (manager) => {
      await manager.query("SET TRANSACTION READ ONLY");
      await manager.insert("row", { id: 30 });
    }),
  "a query runner": async () => {
    const runner = source.createQueryRunner();
    await runner.startTransaction();
    await runner.query("INSERT INTO row VALUES ($1, $2)", [31, "runner"]);
    await runner.rollbackTransaction();
    await runner.startTransaction("SERIALIZABLE");
    await runner.query("INSERT INTO row VALUES ($1, $2)", [32, "runner"]);
    await runner.commitTransaction();
    await runner.release();
    return all();
  },
  "raw and query builder": async () => [
    await source.query("SELECT $1::int + 1 AS a", [1]),
    await repository()
      .createQueryBuilder("r")
      .where("r.id IN (:...ids)", { ids: [1, 2] })
      .orderBy("r.id")
      .getMany(),
  ],
  "errors have their SQLSTATE": async () => [
    await failureOf(repository().insert({ id: 1 })),
    await failureOf(source.query("SELECT 1/0")),
    await failureOf(source.query("SELECT nosuch")),
  ],
  "a pool, with row locks": async () => {
    const work = Array.from({ length: 12 }, (_, i) =>
      source.transaction(async (manager) => {
        await manager.findOne("row", { where: { id: 1 }, lock: { mode: "pessimistic_write" } });
        await manager.increment("row", { id: 1 }, "n", 1);
        return i;
      }),
    );
    return [await Promise.all(work), (await repository().findOneBy({ id: 1 })).n];
  },
};

export const commit = async (inside) => {
  await opened();
  return source.transaction(async (manager) => {
    await manager.query("INSERT INTO stale VALUES (1)");
    await inside();
  });
};
export const write = () => source.query("INSERT INTO stale VALUES (2)");
