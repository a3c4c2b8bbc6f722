/** Scenarios of Drizzle over node-postgres. */

import { join } from "node:path";
import { eq, inArray, sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import { migrate } from "drizzle-orm/node-postgres/migrator";
import { integer, pgTable, text } from "drizzle-orm/pg-core";
import pg from "pg";
import { address, failureOf } from "../scenario.js";

const db = drizzle(new pg.Pool({ ...address, max: 3 }).on("error", () => {}));
const things = pgTable("drizzle_thing", { id: integer("id").primaryKey(), v: text("v") });
const all = () => db.select().from(things).orderBy(things.id);

export const scenarios = {
  migrations: async () => {
    const config = { migrationsFolder: join(import.meta.dirname, "drizzle-migrations"), migrationsSchema: "public" };
    await migrate(db, config);
    await migrate(db, config);
    return (await db.execute(sql`SELECT count(*)::int FROM __drizzle_migrations`)).rows;
  },
  "bulk insert, update, delete": async () => {
    const rows = Array.from({ length: 200 }, (_, i) => ({ id: i, v: `v${i}` }));
    const inserted = await db.insert(things).values(rows).returning({ id: things.id });
    const updated = await db
      .update(things)
      .set({ v: "up" })
      .where(inArray(things.id, [1, 2, 3]))
      .returning();
    const deleted = await db.delete(things).where(sql`${things.id} > 4`);
    return [inserted.length, updated, deleted.rowCount, await all()];
  },
  upsert: async () => {
    const conflict = { target: things.id, set: { v: sql`excluded.v || '!'` } };
    const upserted = await db.insert(things).values({ id: 1, v: "up" }).onConflictDoUpdate(conflict).returning();
    const ignored = await db.insert(things).values({ id: 1, v: "no" }).onConflictDoNothing();
    return [upserted, ignored.rowCount];
  },
  "transaction, rolled back": async () => {
    const stopped = await failureOf(
      db.transaction(async (tx) => {
        await tx.insert(things).values({ id: 50, v: "never" });
        tx.rollback();
      }),
    );
    return [stopped, await all()];
  },
  "nested transactions": async () => {
    let inner;
    await db.transaction(async (tx) => {
      await tx.insert(things).values({ id: 51, v: "outer" });
      inner = await failureOf(tx.transaction((sp) => sp.insert(things).values({ id: 51, v: "dup" })));
      await tx.transaction((sp) => sp.insert(things).values({ id: 52, v: "inner" }));
    });
    return [inner, await all()];
  },
  "isolation levels": async () => {
    const shown = [];
    for (const isolationLevel of ["read committed", "repeatable read", "serializable"]) {
      await db.transaction(
        async (tx) => {
          await tx.update(things).set({ v: isolationLevel }).where(eq(things.id, 51));
          shown.push((await tx.execute(sql`SHOW transaction_isolation`)).rows);
        },
        { isolationLevel },
      );
    }
    return shown;
  },
  "read-only": () =>
    db.transaction((tx) => tx.insert(things).values({ id: 60 }), {
      accessMode: "read only",
      isolationLevel: "serializable",
      deferrable: true,
    }),
  "prepared and raw": async () => {
    const one = db
      .select()
      .from(things)
      .where(eq(things.id, sql.placeholder("id")))
      .prepare("one_thing");
    const raw = await db.execute(sql`INSERT INTO drizzle_thing VALUES (${70}, ${"raw"}) RETURNING *`);
    return [await one.execute({ id: 70 }), await one.execute({ id: 71 }), raw.rows];
  },
  "errors have their SQLSTATE": async () => [
    await failureOf(db.insert(things).values({ id: 70 })),
    await failureOf(db.execute(sql`SELECT 1/0`)),
    await failureOf(db.execute(sql`SELECT nosuch`)),
  ],
  "a pool": async () => {
    const work = Array.from({ length: 12 }, (_, i) =>
      db.transaction(async (tx) => {
        await tx.execute(sql`SELECT id FROM drizzle_thing WHERE id = 70 FOR UPDATE`);
        await tx.update(things).set({ v: sql`v || '.'` }).where(eq(things.id, 70));
        return i;
      }),
    );
    return [await Promise.all(work), await db.select().from(things).where(eq(things.id, 70))];
  },
};

export const commit = (inside) =>
  db.transaction(async (tx) => {
    await tx.execute(sql`INSERT INTO stale VALUES (1)`);
    await inside();
  });
export const write = () => db.execute(sql`INSERT INTO stale VALUES (2)`);
