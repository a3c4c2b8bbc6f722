/** Scenarios of Knex; its migrations are in migrations.js. */
import knex from "knex";
import { address, failureOf } from "../scenario.js";

const k = knex({ client: "pg", connection: { ...address }, pool: { min: 0, max: 3 } });
const values = () => k("knex_thing").orderBy("v").pluck("v");
const stop = () => {
  throw new Error("stop");
};

export const scenarios = {
  schema: async () => {
    await k.schema.createTable("knex_thing", (t) => {
      t.increments("id");
      t.text("v").unique();
      t.timestamp("made").defaultTo(k.fn.now());
    });
    await k.schema.alterTable("knex_thing", (t) => t.integer("n").defaultTo(0));
    return [await k.schema.hasTable("knex_thing"), await k.schema.hasColumn("knex_thing", "n")];
  },
  "bulk insert, update, delete": async () => {
    const rows = Array.from({ length: 100 }, (_, i) => ({ v: `v${String(i).padStart(3, "0")}` }));
    const ids = await k.batchInsert("knex_thing", rows, 30).returning("id");
    const updated = await k("knex_thing").where({ v: "v001" }).update({ n: 5 }, ["v", "n"]);
    return [ids.length, updated, await k("knex_thing").where("v", ">", "v003").del(), await values()];
  },
  upsert: async () => [
    await k("knex_thing").insert({ v: "v001", n: 7 }).onConflict("v").merge().returning(["v", "n"]),
    await k("knex_thing").insert({ v: "v001" }).onConflict("v").ignore().returning("v"),
  ],
  "transaction, rolled back": async () => [
    await failureOf(
      k.transaction(async (trx) => {
        await trx("knex_thing").insert({ v: "never" });
        stop();
      }),
    ),
    await values(),
  ],
  "transaction by hand": async () => {
    const trx = await k.transaction();
    await trx("knex_thing").insert({ v: "by hand" });
    await trx.commit();
    return [trx.isCompleted(), await values()];
  },
  "nested transactions": async () => {
    const inner = await k.transaction(async (trx) => {
      const failed = await failureOf(trx.transaction((sp) => sp("knex_thing").insert({ v: "v001" })));
      await trx.transaction((sp) => sp("knex_thing").insert({ v: "inner" }));
      return failed;
    });
    return [inner, await values()];
  },
  "isolation levels": async () => {
    const shown = [];
    for (const isolationLevel of ["read committed", "repeatable read", "serializable"]) {
      await k.transaction(
        async (trx) => {
          await trx("knex_thing").where({ v: "inner" }).increment("n", 1);
          shown.push((await trx.raw("SHOW transaction_isolation")).rows);
        },
        { isolationLevel },
      );
    }
    return [shown, await k("knex_thing").where({ v: "inner" }).pluck("n")];
  },
  "read-only": () => k.transaction((trx) => trx("knex_thing").insert({ v: "ro" }), { readOnly: true }),
  "raw and stream": async () => {
    const seen = [];
    for await (const row of k.select(k.raw("generate_series(1, 300) AS i")).stream()) seen.push(row.i);
    return [seen.length, (await k.raw("SELECT ?::int + ?::int AS sum", [1, 2])).rows];
  },
  "errors have their SQLSTATE": async () => [
    await failureOf(k("knex_thing").insert({ v: "v001" })),
    await failureOf(k("nosuch").select()),
    await failureOf(k.raw("SELECT 1/0")),
  ],
  "a pool": async () => {
    const work = Array.from({ length: 12 }, (_, i) =>
      k.transaction(async (trx) => {
        await trx("knex_thing").where({ v: "inner" }).forUpdate().first();
        await trx("knex_thing").where({ v: "inner" }).increment("n", 1);
        return i;
      }),
    );
    return [await Promise.all(work), await k("knex_thing").where({ v: "inner" }).pluck("n")];
  },
};

export const commit = (inside) =>
  k.transaction(async (trx) => {
    await trx.raw("INSERT INTO stale VALUES (1)");
    await inside();
  });
export const write = () => k.raw("INSERT INTO stale VALUES (2)");
