/** Scenarios of Drizzle, Knex, Sequelize and TypeORM, one after the other; see scenarios.md. */
import pg from "pg";
import * as drizzle from "./orms/drizzle.js";
import * as knex from "./orms/knex.js";
import * as sequelize from "./orms/sequelize.js";
import * as typeorm from "./orms/typeorm.js";
import { address, main, raiseFence, run } from "./scenario.js";

const orms = { drizzle, knex, sequelize, typeorm };

const scenarios = Object.fromEntries(
  Object.entries(orms).flatMap(([name, orm]) =>
    Object.entries(orm.scenarios).map(([what, work]) => [`${name}: ${what}`, work]),
  ),
);

/** Each in a transaction when its generation ends; none of them may come back as a success. */
async function stale() {
  // node-postgres tells the end of a connection as an event too; not every ORM listens while a transaction is open.
  process.on("uncaughtException", () => {});
  const client = new pg.Client(address);
  await client.connect();
  await client.query("CREATE TABLE stale (i int)");
  await client.end();
  const over = Promise.withResolvers();
  const endings = [];
  for (const [name, { commit }] of Object.entries(orms)) {
    const isIn = Promise.withResolvers();
    const commits = commit(() => {
      isIn.resolve();
      return over.promise;
    });
    endings.push([name, Promise.allSettled([commits])]);
    await isIn.promise;
  }
  await raiseFence();
  over.resolve();
  for (const [name, ending] of endings) {
    await run(`${name}: commit of a stale generation`, async () => {
      const [{ status, reason }] = await ending;
      if (status === "rejected") throw reason;
      return "committed";
    });
    await run(`${name}: write of a stale generation`, async () => ["committed", await orms[name].write()]);
  }
}

await main(scenarios, stale);
