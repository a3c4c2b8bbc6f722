/** Scenarios of postgres.js; see scenarios.md. */
import postgres from "postgres";
import { address, failureOf, main, raiseFence, run } from "./scenario.js";

const { user, password, ...rest } = address;
const open = (more) =>
  postgres({ ...rest, username: user, password, max: 2, onnotice: () => {}, fetch_types: true, ...more });
const sql = open();

const scenarios = {
  "begin commits and rolls back": async () => {
    await sql`CREATE TABLE t (i int primary key, v text)`;
    await sql.begin((tx) => tx`INSERT INTO t VALUES (${1}, ${"a"})`);
    const failed = await failureOf(
      sql.begin(async (tx) => {
        await tx`INSERT INTO t VALUES (2, 'never')`;
        throw new Error("stop");
      }),
    );
    return [failed, await sql`SELECT * FROM t`];
  },
  "autocommit, tagged and simple": async () => {
    const a = await sql`INSERT INTO t VALUES (${3}, 'x') RETURNING i`;
    const b = await sql`INSERT INTO t VALUES (4, 'y')`.simple();
    return [a.count, a.command, b.count, b.command];
  },
  "several statements, simple": async () =>
    (await sql`INSERT INTO t VALUES (5, 'multi'); SELECT count(*)::int AS n FROM t`.simple()).map((r) => r.count),
  savepoints: () =>
    sql.begin(async (tx) => {
      const failed = await failureOf(tx.savepoint((sp) => sp`INSERT INTO t VALUES (1, 'dup')`));
      await tx`INSERT INTO t VALUES (6, 'kept')`;
      return [failed, await tx`SELECT v FROM t WHERE i = 6`];
    }),
  "isolation and read-only": async () => [
    await sql.begin("isolation level serializable", (tx) => tx`SHOW transaction_isolation`),
    await failureOf(sql.begin("read only", (tx) => tx`INSERT INTO t VALUES (7, 'ro')`)),
  ],
  "a pipeline in a block": () =>
    sql.begin((tx) => [
      tx`INSERT INTO t VALUES (20, 'p')`,
      tx`INSERT INTO t VALUES (21, 'p')`,
      tx`SELECT count(*)::int FROM t WHERE v = 'p'`,
    ]),
  "a pipeline in a block that fails": async () => [
    await failureOf(
      sql.begin((tx) => [
        tx`INSERT INTO t VALUES (30, 'q')`,
        tx`INSERT INTO t VALUES (1, 'dup')`,
        tx`INSERT INTO t VALUES (31, 'q')`,
      ]),
    ),
    await sql`SELECT count(*)::int FROM t WHERE v = 'q'`,
  ],
  "many at once on one connection": async () => {
    const one = open({ max: 1 });
    const all = await Promise.allSettled(
      Array.from({ length: 30 }, (_, i) => (i === 7 ? one`SELECT 1/0` : one`SELECT ${i}::int AS i`)),
    );
    await one.end();
    return all.map((r) => r.value?.[0].i ?? r.reason.code);
  },
  "error fields": async () => {
    try {
      await sql`INSERT INTO t VALUES (1, 'dup')`;
    } catch ({ code, detail, constraint_name, severity }) {
      return { code, detail, constraint_name, severity };
    }
  },
  "error position": () => sql`SELECT ${1}::int,  nosuch`.catch(({ code, position }) => ({ code, position })),
  "a cursor": async () => {
    const sums = [];
    for await (const rows of sql`SELECT generate_series(1, 25) AS i`.cursor(10)) sums.push(rows.length);
    return sums;
  },
  "a cursor left early": async () => {
    let seen = 0;
    for await (const [row] of sql`SELECT generate_series(1, 1000) AS i`.cursor()) {
      seen = row.i;
      if (seen === 3) break;
    }
    return [seen, await sql`SELECT 1 AS one`];
  },
  forEach: async () => {
    let sum = 0;
    await sql`SELECT generate_series(1, 100) AS i`.forEach((row) => {
      sum += row.i;
    });
    return sum;
  },
  describe: async () => {
    const { string, types, columns } = await sql`SELECT ${1}::int AS a, 'x' AS b`.describe();
    return [string, types, columns.map((c) => [c.name, c.type])];
  },
  "COPY in and out": async () => {
    const into = await sql`COPY t FROM STDIN`.writable();
    await new Promise((resolve, reject) => {
      into.on("finish", resolve).on("error", reject);
      into.end("200\tcopied\n201\t\\N\n");
    });
    let text = "";
    for await (const chunk of await sql`COPY (SELECT * FROM t WHERE i >= 200 ORDER BY i) TO STDOUT`.readable())
      text += chunk;
    return text;
  },
  cancel: async () => {
    const query = sql`SELECT pg_sleep(20)`;
    setTimeout(() => query.cancel(), 300);
    return [await failureOf(query), await sql`SELECT 'alive' AS a`];
  },
  "LISTEN and NOTIFY": async () => {
    let hear;
    const heard = new Promise((resolve) => {
      hear = resolve;
    });
    const { unlisten } = await sql.listen("ch", hear);
    await sql.notify("ch", "payload");
    const payload = await heard;
    await unlisten();
    return payload;
  },
  "large object": () =>
    sql.begin(async (tx) => {
      const lo = await tx.largeObject();
      await lo.write(Buffer.from("hello large"));
      await lo.seek(6);
      const [{ data }] = await lo.read(5);
      await lo.close();
      return Buffer.from(data).toString();
    }),
  types: () =>
    sql`SELECT 1.5::numeric AS n, ARRAY[1,2] AS a, '\x00ff'::bytea AS b, true AS t, ${sql.json({ a: 1 })}::jsonb AS j, null AS x`,
  "insert helper of many rows": async () => {
    await sql`INSERT INTO t ${sql([
      { i: 300, v: "h" },
      { i: 301, v: "h" },
    ])}`;
    return sql`SELECT count(*)::int FROM t WHERE i IN ${sql([300, 301])}`;
  },
  "a reserved connection": async () => {
    const reserved = await sql.reserve();
    await reserved`SET work_mem = '3MB'`;
    const shown = await reserved`SHOW work_mem`;
    reserved.release();
    return shown;
  },
  "CALL that commits": async () => {
    await sql`CREATE PROCEDURE steps(n int) LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t VALUES (n, 'c'); COMMIT; INSERT INTO t VALUES (n + 1, 'c'); ROLLBACK; END $$`;
    await sql`CALL steps(500)`;
    return [await failureOf(sql`CALL steps(${510})`), await sql`SELECT i FROM t WHERE v = 'c' ORDER BY i`];
  },
  "two-phase commit": async () => [
    await failureOf(
      sql.begin(async (tx) => {
        await tx`INSERT INTO t VALUES (400, 'tpc')`;
        await tx.prepare("one");
      }),
    ),
    await failureOf(sql`COMMIT PREPARED 'one'`),
    await sql`SELECT count(*)::int FROM t WHERE i = 400`,
  ],
};

await main(scenarios, async () => {
  const once = open({ max: 1, connect_timeout: 5 });
  await once`CREATE TABLE IF NOT EXISTS stale (i int)`;
  const idle = open({ max: 1, connect_timeout: 5 });
  await idle`SELECT 1`;
  await run("commit of a stale generation", async () => {
    const done = await once.begin(async (tx) => {
      await tx`INSERT INTO stale VALUES (1)`;
      await raiseFence();
      return "ended";
    });
    return ["committed", done];
  });
  await run("write on an idle stale session", async () => ["committed", await idle`INSERT INTO stale VALUES (2)`]);
  await run("new connection of a stale generation", async () => [
    "committed",
    await open({ max: 1, connect_timeout: 5 })`SELECT 1`,
  ]);
});
