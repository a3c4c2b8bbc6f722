/** Scenarios of node-postgres with pg-cursor and pg-copy-streams; see scenarios.md. */
import { once } from "node:events";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import pg from "pg";
import { from, to } from "pg-copy-streams";
import Cursor from "pg-cursor";
import { address, failureOf, hearing, main, raiseFence, run } from "./scenario.js";

async function connect(more) {
  const client = new pg.Client({ ...address, ...more });
  client.on("error", () => {});
  await client.connect();
  return client;
}
const withClient = async (work, more) => {
  const client = await connect(more);
  try {
    return await work(client);
  } finally {
    await client.end().catch(() => {});
  }
};
const rows = async (client, text, values) => (await client.query({ text, values, rowMode: "array" })).rows;

const scenarios = {
  "transactions commit and roll back": () =>
    withClient(async (c) => {
      await c.query("CREATE TABLE t (i int primary key, v text)");
      await c.query("BEGIN");
      await c.query("INSERT INTO t VALUES ($1, $2)", [1, "a"]);
      await c.query("COMMIT");
      await c.query("BEGIN");
      await c.query("INSERT INTO t VALUES (2, 'never')");
      await c.query("ROLLBACK");
      return rows(c, "SELECT * FROM t");
    }),
  "autocommit, simple and extended": () =>
    withClient(async (c) => {
      const a = await c.query("INSERT INTO t VALUES (3, 'simple')");
      const b = await c.query("INSERT INTO t VALUES ($1, 'extended') RETURNING i", [4]);
      return [a.command, a.rowCount, b.command, b.rows];
    }),
  "several statements in one query": () =>
    withClient(async (c) => {
      const results = await c.query(
        "INSERT INTO t VALUES (5, 'multi'); SELECT count(*)::int AS n FROM t; SELECT 2 AS two",
      );
      return results.map((r) => [r.command, r.rows]);
    }),
  "several statements with an error keep nothing": () =>
    withClient(async (c) => [
      await failureOf(c.query("INSERT INTO t VALUES (6, 'x'); SELECT 1/0; INSERT INTO t VALUES (7, 'y')")),
      await rows(c, "SELECT count(*)::int FROM t WHERE i IN (6, 7)"),
    ]),
  "isolation levels": () =>
    withClient(async (c) => {
      const levels = [];
      for (const level of ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]) {
        await c.query(`BEGIN ISOLATION LEVEL ${level}`);
        await c.query("UPDATE t SET v = v");
        levels.push(await rows(c, "SHOW transaction_isolation"));
        await c.query("COMMIT");
      }
      return levels;
    }),
  "read-only refuses": () =>
    withClient(async (c) => {
      await c.query("BEGIN READ ONLY");
      const refused = await failureOf(c.query("INSERT INTO t VALUES ($1, 'ro')", [8]));
      await c.query("ROLLBACK");
      return refused;
    }),
  "an error has its fields": () =>
    withClient(async (c) => {
      try {
        await c.query("INSERT INTO t VALUES ($1, 'dup')", [1]);
      } catch ({ code, detail, constraint, table, severity }) {
        return { code, detail, constraint, table, severity };
      }
    }),
  "an error has its position": () =>
    withClient(async (c) => {
      const found = [];
      for (const query of ["SELECT  nosuch", { text: "SELECT $1,  nosuch", values: [1] }]) {
        await c.query(query).catch(({ code, position }) => found.push({ code, position }));
      }
      await c.query("BEGIN");
      await c.query("SELECT  nosuch").catch(({ code, position }) => found.push({ code, position }));
      await c.query("ROLLBACK");
      return found;
    }),
  "COMMIT of an aborted block says ROLLBACK": () =>
    withClient(async (c) => {
      await c.query("BEGIN");
      await failureOf(c.query("SELECT 1/0"));
      const aborted = await failureOf(c.query("SELECT 1"));
      return [aborted, (await c.query("COMMIT")).command];
    }),
  savepoints: () =>
    withClient(async (c) => {
      await c.query("BEGIN; SAVEPOINT a");
      await failureOf(c.query("INSERT INTO t VALUES (1, 'dup')"));
      await c.query("ROLLBACK TO a");
      await c.query("INSERT INTO t VALUES (9, 'kept')");
      await c.query("COMMIT");
      return rows(c, "SELECT v FROM t WHERE i = 9");
    }),
  "named prepared statements": () =>
    withClient(async (c) => {
      const found = [];
      for (const n of [1, 3, 5])
        found.push(await rows(c, { name: "by-id", text: "SELECT v FROM t WHERE i = $1", values: [n] }));
      await c.query({ name: "ins", text: "INSERT INTO t VALUES ($1, 'named')", values: [10] });
      await c.query({ name: "ins", text: "INSERT INTO t VALUES ($1, 'named')", values: [11] });
      return [found.length, await rows(c, "SELECT i FROM t WHERE v = 'named' ORDER BY i")];
    }),
  "queries queued without waiting": () =>
    withClient(async (c) => {
      const all = await Promise.all([1, 2, 3, 4, 5].map((n) => rows(c, "SELECT $1::int * 10", [n])));
      const mixed = await Promise.allSettled([c.query("SELECT 1"), c.query("SELECT 1/0"), c.query("SELECT 2")]);
      return [all, mixed.map((m) => m.status)];
    }),
  "a cursor reads in parts": () =>
    withClient(async (c) => {
      const cursor = c.query(new Cursor("SELECT generate_series(1, $1::int) AS i", [100]));
      const first = await cursor.read(3);
      const second = await cursor.read(90);
      const rest = await cursor.read(100);
      const after = await cursor.read(1);
      await cursor.close();
      return [first, second.length, rest.length, after];
    }),
  "a cursor closed early": () =>
    withClient(async (c) => {
      const cursor = c.query(
        new Cursor("INSERT INTO t SELECT i, 'cursor' FROM generate_series(1000, 1009) i RETURNING i"),
      );
      const got = await cursor.read(2);
      await cursor.close();
      return [got, await rows(c, "SELECT count(*)::int FROM t WHERE v = 'cursor'")];
    }),
  "COPY in and out": () =>
    withClient(async (c) => {
      await pipeline(Readable.from(["200\tcopied\n", "201\t\\N\n"]), c.query(from("COPY t FROM STDIN")));
      let text = "";
      for await (const chunk of c.query(to("COPY (SELECT * FROM t WHERE i IN (200, 201) ORDER BY i) TO STDOUT")))
        text += chunk;
      return text;
    }),
  "COPY with an error": () =>
    withClient(async (c) => [
      await failureOf(pipeline(Readable.from(["300\tok\n", "bad\trow\n"]), c.query(from("COPY t FROM STDIN")))),
      await rows(c, "SELECT count(*)::int FROM t WHERE i = 300"),
    ]),
  "COPY that the client gives up": () =>
    withClient(async (c) => {
      const copy = c.query(from("COPY t FROM STDIN"));
      copy.on("error", () => {});
      copy.write("310\tx\n");
      copy.destroy(new Error("enough"));
      return rows(c, "SELECT count(*)::int FROM t WHERE i = 310");
    }),
  cancel: () =>
    withClient(async (c) => {
      const [[pid]] = await rows(c, "SELECT pg_backend_pid()");
      const sleeping = failureOf(c.query("SELECT pg_sleep(20)"));
      await withClient((other) => other.query("SELECT pg_sleep(0.2), pg_cancel_backend($1)", [pid]));
      return [await sleeping, await rows(c, "SELECT 'alive'")];
    }),
  "LISTEN and NOTIFY": () =>
    withClient(async (c) => {
      await c.query("LISTEN ch");
      const heard = once(c, "notification");
      await withClient((other) => other.query("SELECT pg_notify('ch', $1)", ["payload"]));
      const [{ channel, payload }] = await heard;
      return { channel, payload };
    }),
  "notices and parameters": () =>
    withClient(async (c) => {
      const heard = once(c, "notice");
      await c.query("DO $$ BEGIN RAISE NOTICE 'hello'; END $$");
      return (await heard)[0].message;
    }),
  "large objects": () =>
    withClient(async (c) => {
      await c.query("SELECT lo_from_bytea(7001, $1)", [Buffer.from("large")]);
      const read = await rows(c, "SELECT convert_from(lo_get(7001), 'UTF8')");
      await c.query("SELECT lo_unlink(7001)");
      return read;
    }),
  "types and huge values": () =>
    withClient(async (c) => {
      const big = Buffer.alloc(3_000_000, "ab");
      const [[length]] = await rows(c, "SELECT length($1::bytea)", [big]);
      return [
        length,
        await rows(c, "SELECT 1.5::numeric, '{1,NULL}'::int[], '\\x00ff'::bytea, true, '{\"a\":1}'::jsonb, NULL, ''"),
      ];
    }),
  "CALL and DO that commit": () =>
    withClient(async (c) => {
      await c.query(
        "CREATE PROCEDURE steps(n int) LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t VALUES (n, 'p'); COMMIT; INSERT INTO t VALUES (n + 1, 'p'); ROLLBACK; END $$",
      );
      await c.query("CALL steps(500)");
      await c.query("CALL steps($1)", [510]);
      return rows(c, "SELECT i FROM t WHERE v = 'p' ORDER BY i");
    }),
  "TLS wanted, unwanted, with a wrong authority": async () => {
    const outcomes = [];
    for (const ssl of [false, true, { rejectUnauthorized: false }, { ca: [] }, address.ssl]) {
      const work = withClient((c) => rows(c, "SELECT 1"), { ssl });
      outcomes.push(await work.catch(({ code, message }) => code ?? message));
    }
    return outcomes;
  },
  "a pool": async () => {
    const pool = new pg.Pool({ ...address, max: 4 });
    const sums = await Promise.all(Array.from({ length: 20 }, (_, i) => pool.query("SELECT $1::int AS n", [i])));
    await pool.end();
    return sums.map((r) => r.rows[0].n);
  },
};

await main(scenarios, async () => {
  const client = await connect();
  await client.query("CREATE TABLE IF NOT EXISTS stale (i int)");
  const idle = await connect();
  const heard = hearing(idle);
  await idle.query("SELECT 1");
  await client.query("BEGIN");
  await client.query("INSERT INTO stale VALUES (1)");
  await raiseFence();
  await run("commit of a stale generation", async () => ["committed", (await client.query("COMMIT")).command]);
  await run("write on an idle stale session", async () => [
    "committed",
    await heard(idle.query("INSERT INTO stale VALUES (2)")),
  ]);
  await run("new connection of a stale generation", async () => ["committed", await connect()]);
});
